"""When it is our turn to lead: at once with a log of our own, else when no other gateway does.

Until then connections are passed on.
"""

import asyncio
import socket
from dataclasses import dataclass, field

from mainstem.app.config import Config
from mainstem.app.kafkalog import make_journal, stand_by
from mainstem.app.passing.forward import Forwarder
from mainstem.app.passing.listening import Doors
from mainstem.app.passing.receive import Receiver
from mainstem.log.kafka.port import Journal

# A gateway that led before, on the same machine, is about to leave its ports.
_PATIENCE_S = 7.5


@dataclass(frozen=True, slots=True)
class Turn:
    """It is ours. The doors are open, and clients wait."""

    doors: Doors
    journal: Journal | None = None
    receiver: Receiver | None = None
    # Connections that were taken while no leader could be reached, by their doors.
    waiting: list[tuple[str, socket.socket]] = field(default_factory=list)


async def take_turn(config: Config, stop: asyncio.Event) -> Turn | None:
    """Wait for our turn. None where we were told to stop before."""
    journal, doors = make_journal(config), Doors(config)
    if journal is None:
        doors.open()
        return Turn(doors)
    is_ours, waiting = await _wait(config, journal, doors, stop)
    if not is_ours:
        return None
    await doors.open_soon(_PATIENCE_S)
    receiver = await Receiver.listen(config, _PATIENCE_S)
    journal.peer = receiver.peer
    return Turn(doors, journal, receiver, waiting)


async def _wait(
    config: Config, journal: Journal, doors: Doors, stop: asyncio.Event
) -> tuple[bool, list[tuple[str, socket.socket]]]:
    if config.peers.port < 0:
        return await stand_by(config, journal, stop, lambda _: None), []
    forwarder = Forwarder(config, doors)
    return await forwarder.until(stand_by(config, journal, stop, forwarder.follow))
