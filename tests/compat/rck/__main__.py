"""Run the kit's two suites against servers of our own, and say which tests failed.

First with the catalog in a SQLite file, then in a PostgreSQL of our own; `--postgres DSN` names another database and
leaves the file out. `--url URL` takes a server that runs already, whoever made it.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from tests.compat.rck.kit import CONSOLE, class_path, ensure_kit
from tests.contract.catalog_client import new_database

SUITES = ("RESTCompatibilityKitCatalogTests", "RESTCompatibilityKitViewCatalogTests")
SUITE_S_MAX = 600
# What the server is able to do beyond the least: the kit skips the tests of what stands here as false.
ABILITIES = {
    "rck.local": "false",
    "rck.requires-namespace-create": "true",
    "rck.supports-serverside-retry": "true",
    "rck.supports-names-with-dot": "true",
    "warehouse": "lake",
}


def run_suite(kit: Path, suite: str, url: str) -> tuple[dict[str, int], str]:
    """Run one suite. Returns JUnit's counts by name, and all that it printed."""
    properties = [f"-D{name}={value}" for name, value in {**ABILITIES, "uri": url}.items()]
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = ["java", *properties, quiet, "-jar", str(kit / CONSOLE), "execute", "--disable-banner"]
    command += ["-cp", class_path(kit), "-c", f"org.apache.iceberg.rest.{suite}", "--disable-ansi-colors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_S_MAX, check=False)
    counts = {name: int(count) for count, name in re.findall(r"\[\s*(\d+) tests (\w+)\s*\]", done.stdout)}
    return counts, done.stdout + done.stderr


def run_kit(url: str) -> int:
    """Run every suite against a server; the number of tests that failed."""
    kit = ensure_kit()
    failures = 0
    for suite in SUITES:
        counts, output = run_suite(kit, suite, url)
        failed = counts.get("failed", 0)
        if not counts.get("successful"):
            # Not even one test: the suite itself did not start.
            failed = max(failed, 1)
        failures += failed
        print(f"{suite}: " + ", ".join(f"{count} {name}" for name, count in counts.items()), flush=True)
        if failed:
            print(output[output.find("Failures (") :], flush=True)
    return failures


async def _with_server(folder: Path, postgres: str | None) -> int:
    config = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
    if postgres:
        config = msgspec.structs.replace(config, catalog=msgspec.structs.replace(config.catalog, postgres=postgres))
    async with ServerProcess(folder / "data", config) as server:
        return await asyncio.to_thread(run_kit, server.url)


def main() -> int:
    """0 if every test of the kit passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--postgres", help="keep the catalog in this PostgreSQL database")
    arguments = parser.parse_args()
    if arguments.url:
        failures = run_kit(arguments.url)
    else:
        failures = 0
        places = {"PostgreSQL": arguments.postgres or new_database()}
        if not arguments.postgres:
            places = {"SQLite": None, **places}
        for place, postgres in places.items():
            print(f"on {place}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                failures += asyncio.run(_with_server(Path(folder), postgres))
    print("no failures" if not failures else f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
