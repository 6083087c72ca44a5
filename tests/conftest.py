"""One real server for every test that only needs some server: its start, and Spark's, are paid once."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import settings

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess

# A deadline per example measures the machine's other work, not ours.
settings.register_profile("mainstem", deadline=None)
settings.load_profile("mainstem")


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Gateway and pipeline, as `mainstem serve` starts them. Tests keep apart by their tables' names."""
    config = Config(
        server=ServerConfig(port=0),
        log=LogConfig(flush_interval_s=1.0),
        tables={
            "default.declared": {"columns": {"price": "decimal(10,2)", "day": "date"}},
            "default.only_state": {"history": False},
        },
    )
    server = ServerProcess(tmp_path_factory.mktemp("live"), config)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())
