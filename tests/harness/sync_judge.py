"""What must hold in the end of a world."""

from collections import Counter, defaultdict

import msgspec

from mainstem.wire.sync import RowDelta
from tests.harness.sync_server import merged
from tests.harness.sync_world import Server, World


async def judge(world: World, server: Server) -> list[RowDelta]:
    """Every replica is the merged history, nothing that was acknowledged is missing, and nothing counts twice.

    Gives the history.
    """
    history = await server.history()
    expected = merged(history)
    for client in world.clients:
        assert client.rows() == expected, f"{client.id} differs"
        shown = {row["_key"]: row["title"] for row in client.db.query("SELECT * FROM todos")}
        visible = {key[1]: row.values() for key, row in expected.items() if key[0] == "todos" and row.visible}
        assert shown == {row_id: values.get("title") for row_id, values in visible.items()}
    ids = Counter((delta.client_id, delta.delta_id) for delta in history)
    assert not [id_ for id_, count in ids.items() if count > 1], "one delta counts twice"
    missing = world.acknowledged - {delta.delta_id for delta in history}
    assert not missing, f"acknowledged and missing: {missing}"
    arrivals: dict[str, set[str]] = defaultdict(set)
    for delta in history:
        for column in delta.columns:
            arrivals[msgspec.json.decode(column.value)].add(delta.delta_id)
    assert not world.written - arrivals.keys(), "a write is lost"
    # A push may arrive long after its sender gave up on it. Where its clock was refused in between, the same write went
    # out under a new stamp as well: twice in the history, and the same row everywhere.
    honest = {client.id for client in world.clients if not client.ran_ahead}
    doubled = [token for token, found in arrivals.items() if len(found) > 1 and token.split("/")[0] in honest]
    assert not doubled, f"one write counts twice: {doubled}"
    return history
