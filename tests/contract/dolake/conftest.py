"""What all of DoLake's rows are asked of: a server without its pipeline, over each way to write a message."""

import asyncio
from collections.abc import Iterator

import pytest

from mainstem.app.process import ServerProcess
from tests.contract.dolake.dolake_messages import ALONE
from tests.harness.cdcwire import WAYS


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("conformance"), ALONE)
    asyncio.run(process.start())
    yield process
    asyncio.run(process.stop())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)
