"""A load without the log: the server's Spark reads files where it can reach them. Asked for once, and followed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mainstem.client.loading import Target
from mainstem.model.errors import Denied, Invalid, Overloaded

POLL_S = 0.5
# A server that is started anew goes on with its jobs: it is asked again for so long.
AWAY_S_MAX = 300.0
TIMEOUT_S = 60.0
STEP = "load"


@dataclass(frozen=True, slots=True)
class Told:
    """How far a load is. `result` has numbers once it is done."""

    what: str
    done: int = 0
    tasks: int = 0
    result: dict[str, int] = field(default_factory=dict)


def load_direct(place: str, target: Target) -> Iterator[Told]:
    """Load files, and tell how far it is until it is done. Raises what stands in its way.

    Asked for again, with a server that died in between too, the same files are loaded once.
    """
    if target.mode != "upsert":
        raise Invalid("rows without a key are loaded through the log. expected=--mode upsert got=append")
    if "://" not in place:
        place = str(Path(place).absolute())
    body = {"table": target.table, "place": place, "key": list(target.key)}
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
    job: dict[str, Any] | None = None
    with httpx.Client(base_url=target.url, headers=headers, timeout=TIMEOUT_S) as client:
        while True:
            answer = _answer(client, body, job)
            # A queue that was lost with its disk: the load is asked for again.
            job = None if answer.status_code == 404 and job is not None else _checked(answer)
            if job is None:
                continue
            progress = job["progress"].get(STEP, {})
            if job["state"] == "done":
                yield Told("loaded", 1, 1, result=progress)
                return
            if job["state"] in ("failed", "cancelled"):
                raise Invalid(job["error"] or "the load was cancelled")
            what = _why_waiting(client) if job["state"] == "queued" else "Spark loads"
            yield Told(what, progress.get("tasksDone", 0), progress.get("tasks", 0))
            time.sleep(POLL_S)


def _why_waiting(client: httpx.Client) -> str:
    """What the load waits for: the server may run without Spark, or Spark may lack something."""
    try:
        answer = client.get("/status")
        status = answer.json() if answer.status_code == 200 else {}
        state = status["pipeline"]["state"]
    except (httpx.TransportError, ValueError, KeyError, TypeError):
        return "waits for Spark"
    if state not in ("off", "down"):
        return "waits for Spark"
    return f"waits for Spark, which is {state}" + (f": {status['lastError']}" if status.get("lastError") else "")


def _answer(client: httpx.Client, body: dict[str, Any], job: dict[str, Any] | None) -> httpx.Response:
    began_s = time.monotonic()
    while True:
        try:
            if job is None:
                return client.post("/v1/loads", json=body)
            return client.get(f"/v1/compaction/jobs/{job['id']}")
        except httpx.TransportError as error:
            if job is None or time.monotonic() - began_s > AWAY_S_MAX:
                trouble = f"{type(error).__name__}: {error}"
                raise Overloaded(f"no answer. url={client.base_url} got={trouble}", retry_after_s=30.0) from error
            time.sleep(POLL_S)


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code == 200:
        found: dict[str, Any] = answer.json()
        return found
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{answer.status_code} {answer.text[:200]}"
    raise Denied(message) if answer.status_code in (401, 403) else Invalid(message)
