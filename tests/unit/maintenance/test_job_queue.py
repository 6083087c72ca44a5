"""The queue of maintenance jobs: what it keeps over a restart, what it does when a pipeline dies, what bounds it."""

import asyncio
from pathlib import Path

import pytest

from mainstem.maintenance import jobs as queue
from mainstem.maintenance.jobs import Jobs
from mainstem.model import Conflict, NotFound, Overloaded
from mainstem.runtime.clock import ManualClock
from mainstem.wire.jobs import Job, JobNews, JobState


def job(table: str, *steps: str, **more: object) -> Job:
    return Job(id="", table=table, steps=steps or ("compact",), **more)  # type: ignore[arg-type]


async def test_what_was_asked_for_comes_first_and_one_table_at_a_time(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    await jobs.submit(job("a", cause="auto"))
    asked = await jobs.submit(job("b"))
    assert (await jobs.take("w", 0.1)) == jobs.get(asked.id)
    same_table = await jobs.submit(job("b", "expire"))
    assert same_table.id != asked.id
    taken = await jobs.take("w", 0.1)
    assert taken is not None and taken.table == "a"
    assert await jobs.take("w", 0.01) is None
    await jobs.tell(asked.id, JobNews(state=JobState.DONE))
    taken = await jobs.take("w", 0.1)
    assert taken is not None and taken.id == same_table.id


async def test_the_same_again_is_the_same_job_and_more_is_another(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    first = await jobs.submit(job("a", "compact", "expire"))
    assert (await jobs.submit(job("a", "compact"))).id == first.id
    assert (await jobs.submit(job("a", "orphans", cause="auto"))).id == first.id
    assert (await jobs.submit(job("a", "orphans"))).id != first.id


async def test_behind_a_running_job_there_is_one_more_at_most(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    running = await jobs.submit(job("a"))
    await jobs.take("w", 0.1)
    waiting = [await jobs.submit(job("a")) for _ in range(3)]
    assert len({each.id for each in waiting} | {running.id}) == 2


async def test_a_job_of_a_dead_pipeline_is_done_again_but_not_for_ever(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    asked = await jobs.submit(job("a"))
    for attempt in range(1, queue.ATTEMPTS_MAX + 1):
        taken = await jobs.take(f"worker {attempt}", 0.1)
        assert taken is not None and (taken.id, taken.attempts) == (asked.id, attempt)
    assert await jobs.take("the last", 0.01) is None
    assert jobs.get(asked.id).state is JobState.FAILED
    assert "died 3 times" in (jobs.get(asked.id).error or "")


async def test_a_restart_keeps_the_queue_and_what_became_of_jobs(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    done, waiting = await jobs.submit(job("a")), await jobs.submit(job("b"))
    await jobs.take("w", 0.1)
    await jobs.tell(done.id, JobNews(state=JobState.RUNNING, progress={"compact": {"groups": 1}}))
    await jobs.tell(done.id, JobNews(state=JobState.DONE, progress={"compact": {"groups": 2}}))
    await jobs.close()
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    assert jobs.get(done.id).progress == {"compact": {"groups": 2}}
    taken = await jobs.take("another", 0.1)
    assert taken is not None and taken.id == waiting.id


async def test_a_cancelled_job_stays_so_whatever_the_pipeline_says(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    asked = await jobs.submit(job("a"))
    with pytest.raises(Conflict):
        await jobs.tell(asked.id, JobNews(state=JobState.DONE))
    await jobs.take("w", 0.1)
    await jobs.cancel(asked.id)
    told = await jobs.tell(asked.id, JobNews(state=JobState.DONE, progress={"compact": {"groups": 1}}))
    assert (told.state, told.progress) == (JobState.CANCELLED, {"compact": {"groups": 1}})
    with pytest.raises(NotFound):
        await jobs.cancel("none")


async def test_the_queue_and_the_memory_of_it_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "QUEUED_MAX", 3)
    monkeypatch.setattr(queue, "ENDED_KEPT_MAX", 2)
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    for number in range(3):
        await jobs.submit(job(f"t{number}"))
    with pytest.raises(Overloaded):
        await jobs.submit(job("one too many"))
    for each in jobs.all():
        await jobs.cancel(each.id)
    assert len(jobs.all()) == 2


async def test_nobody_waits_for_a_pipeline_that_is_not_there(tmp_path: Path) -> None:
    clock = ManualClock()
    jobs = Jobs(tmp_path / "jobs.db", clock)
    asked = await jobs.submit(job("a"))
    # A minute would be the test's own limit.
    assert (await jobs.wait(asked.id, 600)).state is JobState.QUEUED
    assert await jobs.take("w", 0.1) is not None
    await jobs.tell(asked.id, JobNews(state=JobState.DONE))
    assert (await jobs.wait(asked.id, 600)).state is JobState.DONE
    clock.advance(61)
    other = await jobs.submit(job("b"))
    assert (await jobs.wait(other.id, 600)).state is JobState.QUEUED


async def test_closing_lets_whoever_waits_go(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", ManualClock())
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.take("w", 600))
        await asyncio.sleep(0)
        await jobs.close()
    assert waiting.result() is None
