"""A log on Kafka: its settings out of the configuration, its journal, and the wait for its turn."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.app.carried import Carried
from mainstem.app.config import Config
from mainstem.app.spark.objectstore import segments_url
from mainstem.app.spark.shipping import Shipper, StoredSegments
from mainstem.log import Log
from mainstem.log.kafka.port import Journal
from mainstem.model import Invalid, Lineage, MainstemError

if TYPE_CHECKING:
    from mainstem.log.kafka.settings import KafkaLogSettings
    from mainstem.log.kafka.standby import Lead

logger = logging.getLogger(__name__)


def kafka_settings(config: Config) -> "KafkaLogSettings":
    """Where the log's topic is. Raises Invalid where nothing is installed that could reach it."""
    # Here and below, not above: most gateways have no such log, and need no client for Kafka.
    try:
        from mainstem.log.kafka.settings import KafkaLogSettings
    except ImportError as error:
        raise Invalid("a log on Kafka needs a client for it. Install mainstem[kafka].") from error
    log = config.log
    return KafkaLogSettings(
        bootstrap=log.bootstrap_servers,
        topic=f"{log.topic_prefix}.log",
        replication=log.replication,
        client=log.kafka_client,
        lease_s=log.lease_s,
    )


def make_journal(config: Config) -> Journal | None:
    """Where the log is durable; None where that is its own folder."""
    if config.log.kind == "embedded":
        return None
    settings = kafka_settings(config)
    from mainstem.log.kafka.journal import KafkaJournal

    def store_of(lineage: Lineage) -> StoredSegments | None:
        location = segments_url(config.catalog, lineage.log)
        return None if location is None else StoredSegments(location, config.catalog.io)

    return KafkaJournal(settings, store_of)


async def let_go(log: Log, carried: Carried, shipper: Shipper) -> None:
    """Let the log forget what is in the store or, where segments stay in its folder, what is in the tables."""
    done = carried.watermark if shipper.location is None else shipper.shipped
    try:
        await log.let_go(done)
    # The task's edge: it is tried again.
    except MainstemError as error:
        logger.error("the log could not be trimmed: %s", error)


async def end_if_lost(gateway_lost: asyncio.Event, stop: Callable[[], None]) -> None:
    """Stop once the log belongs to another gateway."""
    await gateway_lost.wait()
    stop()


async def stand_by(
    config: Config, journal: Journal, stop: asyncio.Event, follow: "Callable[[Lead | None], None]"
) -> bool:
    """Wait until the log has no other owner. False where we were told to stop before.

    `follow` hears on the event loop who leads meanwhile.
    """
    from mainstem.log.kafka.standby import Standby

    await asyncio.to_thread(journal.get_ready)
    loop = asyncio.get_running_loop()
    standby = Standby(kafka_settings(config), lambda lead: _tell(loop, follow, lead))
    waiting = asyncio.create_task(asyncio.to_thread(standby.wait))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
    standby.stop()
    stopping.cancel()
    return await waiting


def _tell(loop: asyncio.AbstractEventLoop, follow: "Callable[[Lead | None], None]", lead: "Lead | None") -> None:
    loop.call_soon_threadsafe(follow, lead)
