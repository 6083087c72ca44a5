"""Who leads a log on Kafka, as those see it who stand by, and begin to read anywhere."""

import pytest

from mainstem.log.kafka.records import Beat, Claim, Mark, Note, Peer, Release, encode_note
from mainstem.log.kafka.standby import Lead, Leads, Owner

A, B = Peer("a:1", b"a" * 16), Peer("b:1", b"b" * 16)
OLD, NEW = Lead(10, "a", A), Lead(20, "b", B)


def lead_of(*records: tuple[int, bytes, Note]) -> Lead | None:
    leads, owner = Leads("t"), Owner("t")
    for offset, key, note in records:
        value = encode_note(note)
        owner.take(key, value)
        leads.take(offset, value, is_gone=owner.is_gone)
    return leads.lead


@pytest.mark.parametrize(
    ("records", "lead"),
    [
        ([], None),
        # Nothing but records of the log: it is known with the next beat.
        ([(12, b"a", Mark(1, [("l", 1)]))], None),
        ([(10, b"a", Claim("a", A))], OLD),
        # The claim is long gone.
        ([(99, b"a", Beat(10, "a", A))], OLD),
        ([(10, b"a", Claim("a", A)), (20, b"b", Claim("b", B))], NEW),
        # One that was fenced and does not know it yet.
        ([(20, b"b", Claim("b", B)), (21, b"a", Beat(10, "a", A))], NEW),
        ([(21, b"b", Beat(20, "b", B)), (22, b"a", Beat(10, "a", A))], NEW),
        ([(21, b"a", Beat(10, "a", A)), (22, b"b", Beat(20, "b", B))], NEW),
        ([(20, b"b", Claim("b", B)), (21, b"a", Release())], NEW),
        # It let go, and is about to close its doors.
        ([(10, b"a", Claim("a", A)), (11, b"a", Release())], None),
        ([(10, b"a", Claim("a", A)), (11, b"a", Release()), (20, b"b", Claim("b", B))], NEW),
        # A new one that takes no connections of others, and one of a version that does not say.
        ([(10, b"a", Claim("a", A)), (20, b"b", Claim("b"))], None),
        ([(10, b"a", Claim("a", A)), (11, b"a", Beat())], OLD),
    ],
)
def test_the_newest_claim_leads(records: list[tuple[int, bytes, Note]], lead: Lead | None) -> None:
    assert lead_of(*records) == lead
