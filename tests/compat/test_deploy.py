"""What is in deploy/: each file held against its schema and against the others, and what compose starts, started here.

There is no container runtime here: the services of the compose file are run by their own commands out of wheels, with
addresses of this machine in the place of the containers' names.
"""

import configparser
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement

from mainstem.app.config import Config, load_config
from mainstem.app.process import ServerProcess, reserve_port
from tests.contract.catalog_client import new_database
from tests.harness import seaweed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
BESIDE = DEPLOY / "compose" / "two-gateways.yaml"
EXAMPLE = DEPLOY / "compose" / "mainstem.example.toml"
ONE, TWO = DEPLOY / "kubernetes" / "mainstem.yaml", DEPLOY / "kubernetes" / "two-gateways.yaml"
CLUSTER = DEPLOY / "kubernetes" / "spark" / "cluster.yaml"
UV = Path(sys.executable).with_name("uv")
# The server ends within this after SIGTERM (tests/contract/test_server_process holds it to that).
STOP_S_MAX = 8
STORE_S_MAX = 120
KEY = "a key for this test alone, of 32 bytes and more"


def tool(package: str, *words: str | Path) -> None:
    """A program of PyPI's in an environment of its own, which must find nothing wrong."""
    done = subprocess.run(
        [UV, "tool", "run", "--from", package, *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def documents(*files: Path) -> list[dict[str, Any]]:
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def of_kind(gateways: Path, *kinds: str) -> list[dict[str, Any]]:
    """Of what is applied together: one of the two manifests of gateways, and Spark's beside it."""
    found = [each for each in documents(gateways, CLUSTER) if each["kind"] in kinds]
    assert found
    return found


def containers(gateways: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for workload in of_kind(gateways, "StatefulSet", "Deployment"):
        pod = workload["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield pod, container


@pytest.fixture(params=[ONE, TWO], ids=["one", "two"])
def gateways(request: pytest.FixtureRequest) -> Path:
    """Either manifest of gateways."""
    assert isinstance(request.param, Path)
    return request.param


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_manifests_are_what_kubernetes_takes(version: str) -> None:
    tool("kubernetes-validate==1.37.0", "kubernetes-validate", "--strict", "-k", version, ONE, TWO, CLUSTER)
    assert {*(DEPLOY / "kubernetes").rglob("*.yaml")} == {ONE, TWO, CLUSTER}


def test_the_compose_file_is_what_compose_takes() -> None:
    tool("check-jsonschema==0.37.2", "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE, BESIDE)


def test_the_checks_above_find_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace_perido"))
    with pytest.raises(AssertionError, match="perido"):
        tool("check-jsonschema==0.37.2", "check-jsonschema", "--builtin-schema", "vendor.compose-spec", wrong)
    wrong.write_text(ONE.read_text().replace("periodSeconds", "periodSecond"))
    with pytest.raises(AssertionError, match="periodSecond"):
        tool("kubernetes-validate==1.37.0", "kubernetes-validate", "--strict", wrong)


def test_every_name_in_the_compose_file_is_one_of_it() -> None:
    compose, beside = (yaml.safe_load(file.read_text()) for file in (COMPOSE, BESIDE))
    # As compose lays one file over the other: what the second says of a service of the first is added to that.
    needs_more = beside["services"].pop("mainstem")
    assert needs_more.keys() == {"depends_on"}
    compose["services"]["mainstem"]["depends_on"] |= needs_more["depends_on"]
    assert not compose["services"].keys() & beside["services"].keys()
    compose["services"] |= beside["services"]
    compose["volumes"] |= beside["volumes"]
    for service in compose["services"].values():
        assert service.keys() & {"image"} and "restart" in service
        assert service.get("depends_on", {}).keys() <= compose["services"].keys()
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            # mainstem.toml is the reader's copy of the example.
            known = source in compose["volumes"] or (COMPOSE.parent / source).name in (
                "mainstem.toml",
                "mainstem-2.toml",
                "s3.json",
            )
            assert known, mount
        for name, needed in service.get("depends_on", {}).items():
            if needed["condition"] == "service_healthy":
                assert "healthcheck" in compose["services"][name]
    first, second = compose["services"]["mainstem"], compose["services"]["mainstem-2"]
    for gateway in (first, second):
        assert "/health" in gateway["healthcheck"]["test"][-1]
        assert int(gateway["stop_grace_period"].removesuffix("s")) > STOP_S_MAX
    # The same but for where they are: no volume, and no port of this machine, is both's.
    assert first.keys() == second.keys()
    places = {"hostname", "volumes", "ports", "depends_on"}
    assert {name for name in first if first[name] != second[name]} <= places
    assert first["depends_on"] == second["depends_on"]
    for name in ("volumes", "ports"):
        ours, theirs = ({each.split(":")[0] for each in gateway[name]} for gateway in (first, second))
        assert not ours & theirs
    assert {"store", "postgres", "spark-master"} <= compose["services"].keys()


def test_every_pod_has_probes_bounds_and_time_to_end(gateways: Path) -> None:
    for pod, container in containers(gateways):
        assert {"readinessProbe", "livenessProbe"} <= container.keys()
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        assert pod["terminationGracePeriodSeconds"] > STOP_S_MAX
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        named = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container.get(probe)
            if asked is not None:
                way = asked.get("httpGet") or asked["tcpSocket"]
                assert way["port"] in named
                assert way.get("path", "/health") == "/health"


def test_nobody_but_spark_reaches_spark_and_no_drain_takes_the_last_gateway(gateways: Path) -> None:
    """Who reaches a master, a worker or a driver runs code with the keys of the store."""
    parts = {"spark-master", "spark-worker", "mainstem"}
    open_ports: dict[str, set[int]] = {}
    for policy in of_kind(gateways, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        chosen = selector.get("matchLabels", {}).get("app") or selector["matchExpressions"][0]["values"]
        for rule in policy["spec"]["ingress"]:
            callers = {
                app for peer in rule.get("from", ()) for app in peer["podSelector"]["matchExpressions"][0]["values"]
            }
            assert callers <= parts
            for app in [chosen] if isinstance(chosen, str) else chosen:
                ports = set() if callers else {port["port"] for port in rule["ports"]}
                open_ports.setdefault(app, set()).update(ports)
    assert open_ports == {"spark-master": set(), "spark-worker": set(), "mainstem": {8181, 9092, 27017}}
    (budget,) = of_kind(gateways, "PodDisruptionBudget")
    (gateway,) = of_kind(gateways, "StatefulSet")
    assert budget["spec"]["maxUnavailable"] == gateway["spec"]["replicas"] - 1


def test_what_stands_by_gets_clients_by_the_leader_s_health_and_lives_by_its_own() -> None:
    (gateway,) = of_kind(TWO, "StatefulSet")
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    assert gateway["spec"]["podManagementPolicy"] == "Parallel"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert container["livenessProbe"].keys() & {"httpGet", "tcpSocket"} == {"tcpSocket"}
    # The port between the gateways is one that they reach, and that no service shows to others.
    (secret,) = of_kind(TWO, "Secret")
    port = tomllib.loads(secret["stringData"]["mainstem.toml"])["peers"]["port"]
    assert {"name": "peers", "containerPort": port} in container["ports"]
    assert all(each["port"] != port for service in of_kind(TWO, "Service") for each in service["spec"]["ports"])
    (policy,) = [each for each in of_kind(TWO, "NetworkPolicy") if each["metadata"]["name"] == "mainstem"]
    (callers,) = [rule["from"] for rule in policy["spec"]["ingress"] if {"port": port} in rule["ports"]]
    assert callers == [
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["mainstem"]}]}}
    ]


def test_every_service_finds_its_pods_and_every_mount_its_source(gateways: Path) -> None:
    workloads = of_kind(gateways, "StatefulSet", "Deployment")
    pods = [each["spec"]["template"] for each in workloads]
    for service in of_kind(gateways, "Service"):
        wanted = service["spec"]["selector"].items()
        chosen = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
        assert len(chosen) == 1, service["metadata"]["name"]
        ports = {port["name"] for each in chosen[0]["spec"]["containers"] for port in each["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"] if "targetPort" in port} <= ports
    for workload in workloads:
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels
        pod = workload["spec"]["template"]["spec"]
        claims = workload["spec"].get("volumeClaimTemplates", [])
        there = {each["name"] for each in pod.get("volumes", [])} | {each["metadata"]["name"] for each in claims}
        for container in pod["containers"]:
            assert {each["name"] for each in container.get("volumeMounts", [])} == there
    (gateway,) = of_kind(gateways, "StatefulSet")
    assert gateway["spec"]["replicas"] == (1 if gateways == ONE else 2)
    services = {each["metadata"]["name"] for each in of_kind(gateways, "Service")}
    assert gateway["spec"]["serviceName"] in services


def configurations() -> dict[str, str]:
    one, two = (of_kind(gateways, "Secret")[0]["stringData"]["mainstem.toml"] for gateways in (ONE, TWO))
    return {"compose": EXAMPLE.read_text(), "kubernetes": one, "two gateways": two}


@pytest.mark.parametrize("place", ["compose", "kubernetes", "two gateways"])
def test_the_configurations_are_taken_once_their_places_are_filled_in(place: str, tmp_path: Path) -> None:
    text = configurations()[place]
    file = tmp_path / "mainstem.toml"
    # As it is, no server starts with it: a key that everybody knows would be no key.
    file.write_text(re.sub(r"^postgres = .*$", "", text, flags=re.MULTILINE))
    serve: list[str | Path] = [sys.executable, "-m", "mainstem.app.cli.main", "serve", "--host", "0.0.0.0"]
    command = [*serve, "--config", file, "--data", tmp_path / "data"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 1
    assert "32" in refused.stderr
    # With what it leaves out for a cluster, too: a `#` before a setting and no blank line of words.
    left_out = r"""master|port|kind|bootstrap_servers|replication|\[[a-z_.]+\]|"s(?:park|3|ecurity|asl)\."""
    whole = re.sub(rf"^# ({left_out})", r"\1", text, flags=re.MULTILINE)
    file.write_text(whole.replace('"change-me" = "change-me"', f'"2026-11" = "{KEY}"'))
    config = load_config(file)
    assert config.pipeline.master.startswith("spark://spark-master")
    assert config.pipeline.spark["spark.driver.bindAddress"] == "0.0.0.0"
    assert config.mongo.port == 27017
    if place != "kubernetes":
        assert (config.log.kind, config.peers.port) == ("kafka", 8190) and config.log.bootstrap_servers
    assert config.catalog.warehouse.startswith("s3://") and config.catalog.postgres


def test_the_unit_of_systemd_gives_the_server_time_to_end() -> None:
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / "mainstem.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > STOP_S_MAX
    assert "mainstem serve" in service["ExecStart"]
    assert service["KillMode"] == "mixed"


def test_the_image_installs_what_the_configurations_need() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    assert "[kafka,postgres]" in text and "spark.jars --s3" in text
    (uid,) = set(re.findall(r"--uid (\d+)", text))
    for pod, _ in (*containers(ONE), *containers(TWO)):
        assert pod["securityContext"]["runAsUser"] == int(uid)


def test_the_image_s_constraints_name_every_package_of_the_lock_once_for_its_python(tmp_path: Path) -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    (command,) = re.findall(r"^RUN (sed .*) /tmp/install/dev.txt", text, flags=re.MULTILINE)
    lock = ROOT / "requirements" / "dev.txt"
    done = subprocess.run(["sh", "-c", f"{command} {lock}"], capture_output=True, text=True, check=True)
    wanted = [Requirement(line) for line in done.stdout.splitlines()]
    assert len(wanted) == len(re.findall(r"^[a-z0-9].*==", lock.read_text(), flags=re.MULTILINE))
    there = {"python_full_version": "3.12.9", "python_version": "3.12"}
    used = [each.name for each in wanted if each.marker is None or each.marker.evaluate(there)]
    assert len(used) == len(set(used)) and {"pyspark", "pandas", "numpy", "psycopg"} <= set(used)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """The store and the bucket of the compose file, by their own commands. Its endpoint."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    places = [reserve_port("127.0.0.1") for _ in seaweed._PORTS]
    ports = {name: place.getsockname()[1] for name, place in zip(seaweed._PORTS, places, strict=True)}
    config = tmp_path / "s3.json"
    config.write_text((DEPLOY / "compose" / "s3.json").read_text())
    (tmp_path / "store").mkdir()
    here = {"/data": str(tmp_path / "store"), "=store": "=127.0.0.1", "/etc/seaweedfs/s3.json": str(config)}
    words = [replaced(word, here) for word in services["store"]["command"]]
    more = [
        "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-filer.localSocket={tmp_path}/filer.sock", f"-s3.localSocket={tmp_path}/s3.sock",
    ]  # fmt: skip
    command = [seaweed._binary(), *words, *more, *(f"{name}={port}" for name, port in ports.items())]
    with (tmp_path / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        endpoint = f"http://127.0.0.1:{ports['-s3.port']}"
        until(lambda: httpx.get(endpoint + "/healthz", timeout=5).status_code == 200)
        make = services["bucket"]["entrypoint"][-1]
        master = f"127.0.0.1:{ports['-master.port']}.{ports['-master.port.grpc']}"
        make = make.replace("weed shell", f"{seaweed._binary()} shell").replace("store:9333", master)
        subprocess.run(["sh", "-c", make], check=True, timeout=STORE_S_MAX, cwd=tmp_path, stdout=subprocess.DEVNULL)
        yield endpoint
    finally:
        process.kill()
        process.wait()
        for place in places:
            for path in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{place.getsockname()[1]}.sock"):
                path.unlink(missing_ok=True)
            place.close()


def replaced(text: str, places: dict[str, str]) -> str:
    for named, real in places.items():
        text = text.replace(named, real)
    return text


def until(condition: Any) -> None:
    ends_s = time.monotonic() + STORE_S_MAX
    while time.monotonic() < ends_s:
        try:
            if condition():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError("the store did not come up")


@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_what_compose_starts_takes_a_row_and_answers_in_sql(store: str, tmp_path: Path) -> None:
    file = tmp_path / "mainstem.toml"
    text = EXAMPLE.read_text().replace('"change-me" = "change-me"', f'"2026-11" = "{KEY}"')
    text = text.replace("postgresql://mainstem:change-me@postgres:5432/mainstem", new_database())
    file.write_text(text.replace("http://store:8333", store))
    config = ports_picked(load_config(file))
    made = subprocess.run(
        [sys.executable, "-m", "mainstem.app.cli.main", "token", "--config", file, "--expires", "1h"],
        capture_output=True,
        text=True,
        check=True,
    )
    token = made.stdout.strip()
    async with ServerProcess(tmp_path / "data", config, token=token) as server:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
            sent = await http.post("/v1/ingest/default/deployed?key=id", json=[{"id": "d1", "amount": 12.5}])
            assert sent.status_code == 200, sent.text
            flushed = await server.flush(timeout_s=240)
            assert flushed["complete"], flushed
            told = await http.post("/v1/query", json={"sql": "SELECT id, amount FROM deployed"})
            assert told.json()["rows"] in ([["d1", 12.5]], [{"id": "d1", "amount": 12.5}]), told.text
            shown = await http.get("/v1/namespaces/default/tables/deployed")
            assert json.loads(shown.text)["metadata"]["location"].startswith("s3://lake/tables/")


def ports_picked(config: Config) -> Config:
    """The same on free ports of this machine."""
    replace = msgspec.structs.replace
    return replace(
        config,
        server=replace(config.server, port=0),
        kafka=replace(config.kafka, port=0, advertised=""),
        mongo=replace(config.mongo, port=0),
    )
