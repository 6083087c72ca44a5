"""SIGKILL the server under Mongo clients with retryable writes and transactions in flight.

Nothing acknowledged is lost, nothing is applied twice, no transaction is seen in half. A Mongo client judges after
every kill, and in the end DuckDB judges the Delta tables. `make soak KILLS=40 SEED=3` runs the same for longer.
"""

import asyncio
import os
import random
import threading
from pathlib import Path
from typing import Any

import duckdb
import pymongo
import pytest
from pymongo.errors import PyMongoError

from tests.compat.mongo_server import MongoServer

CLIENTS = 4
ACCOUNTS = 10
TOTAL = ACCOUNTS * 100


class Load:
    """Writers that count what was acknowledged."""

    def __init__(self, url: str, seed: int) -> None:
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(url, retryWrites=True)
        self.stop = threading.Event()
        self.acknowledged: list[set[str]] = [set() for _ in range(CLIENTS)]
        self.counted = [0] * CLIENTS
        # Whether the outcome of an increment is not known: the counter may be one higher.
        self.unknown = [0] * CLIENTS
        # Sums that a reader saw while transfers were under way.
        self.seen: set[int] = set()
        self.reads = 0
        self._seed = seed

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._write, args=(number,)) for number in range(CLIENTS)]
        threads += [threading.Thread(target=self._transfer, args=(number,)) for number in range(2)]
        threads.append(threading.Thread(target=self._read))
        for thread in threads:
            thread.start()
        return threads

    def _write(self, number: int) -> None:
        database = self.client.kills
        step = 0
        while not self.stop.is_set():
            step += 1
            name = f"{number}-{self._seed}-{step}"
            try:
                database.documents.insert_one({"_id": name, "n": step})
                self.acknowledged[number].add(name)
            except PyMongoError:
                pass
            try:
                database.counters.update_one({"_id": number}, {"$inc": {"n": 1}})
                self.counted[number] += 1
            except PyMongoError:
                self.unknown[number] += 1

    def _transfer(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        accounts = self.client.kills.accounts
        while not self.stop.is_set():
            source, target = chance.sample(range(ACCOUNTS), 2)

            def move(session: Any, source: int = source, target: int = target) -> None:
                accounts.update_one({"_id": source}, {"$inc": {"n": -1}}, session=session)
                accounts.update_one({"_id": target}, {"$inc": {"n": 1}}, session=session)

            try:
                with self.client.start_session() as session:
                    session.with_transaction(move)
            except PyMongoError:
                pass

    def _read(self) -> None:
        accounts = self.client.kills.accounts
        while not self.stop.is_set():
            try:
                with self.client.start_session() as session, session.start_transaction():
                    # Two commands, each of which reads a half.
                    halves = [list(accounts.find({"_id": {"$mod": [2, odd]}}, session=session)) for odd in (0, 1)]
                    self.seen.add(sum(each["n"] for half in halves for each in half))
                    self.reads += 1
            except PyMongoError:
                pass

    def judge(self) -> None:
        """Compare what is there with what was acknowledged; nobody writes meanwhile."""
        database = self.client.kills
        found = {each["_id"] for each in database.documents.find({}, {"_id": 1})}
        for acknowledged in self.acknowledged:
            assert acknowledged <= found, f"lost. seed={self._seed} got={sorted(acknowledged - found)[:5]}"
        counters = {each["_id"]: each["n"] for each in database.counters.find()}
        for number in range(CLIENTS):
            low, high = self.counted[number], self.counted[number] + self.unknown[number]
            assert low <= counters.get(number, 0) <= high, f"counted twice or not at all. seed={self._seed}"
        assert sum(each["n"] for each in database.accounts.find()) == TOTAL, f"half a transaction. seed={self._seed}"
        assert self.seen <= {TOTAL}, f"a reader saw half a transaction. seed={self._seed} got={self.seen}"


@pytest.mark.spark
async def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    await killed(tmp_path, seed=1, kills=4)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_many_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    await killed(tmp_path, seed=int(os.environ.get("SEED", "2")), kills=int(os.environ.get("KILLS", "40")))


async def killed(folder: Path, *, seed: int, kills: int) -> None:
    """Kill a server so many times under load, and judge after each."""
    chance = random.Random(seed)
    server = MongoServer(folder / "data", pipeline=True)
    await server.start()
    load = Load(server.mongo_url, seed)
    try:
        load.client.kills.accounts.insert_many([{"_id": n, "n": 100} for n in range(ACCOUNTS)])
        load.client.kills.counters.insert_many([{"_id": n, "n": 0} for n in range(CLIENTS)])
        for kill in range(kills):
            load.stop.clear()
            threads = load.start()
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            server.kill()
            if kill % 2:
                # The store of documents is a cache: it is made again from the log and the tables.
                for file in (server.data / "mongo").iterdir():
                    file.unlink()
            await server.start()
            await asyncio.sleep(0.5)
            load.stop.set()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            await asyncio.to_thread(load.judge)
        assert load.reads > kills
        assert (await server.flush())["complete"]
        documents = list(load.client.kills.documents.find())
        rows = duckdb.sql(f"SELECT _id, n FROM delta_scan('{server.data}/delta/kills/documents')").fetchall()
        assert sorted(rows) == sorted((each["_id"], each["n"]) for each in documents)
        total = duckdb.sql(f"SELECT sum(n) FROM delta_scan('{server.data}/delta/kills/accounts')").fetchone()
        assert total == (TOTAL,)
    finally:
        load.stop.set()
        load.client.close()
        await server.stop()
