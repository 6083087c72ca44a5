"""The conformance vectors of the sync protocol, which every implementation must pass."""

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Change, Hlc, HlcClock, Invalid, Operation, SourceId, merge
from mainstem.model.hlc import check_drift, pack
from mainstem.wire import sync
from mainstem.wire.sync import generate
from mainstem.wire.sync import lakesync_pb2 as pb
from mainstem.wire.sync.frames import BROADCAST_TAG
from mainstem.wire.sync.identity import canonical_text
from mainstem.wire.varint import varint

VECTORS = Path(__file__).parents[2] / "vectors" / "sync"


def load(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def delta_of(document: Any) -> sync.RowDelta:
    return sync.RowDelta(
        op=sync.Op[document["op"]],
        table=document["table"],
        row_id=document["rowId"],
        columns=tuple(
            sync.ColumnDelta(each["column"], sync.canonical(each["value"]).encode()) for each in document["columns"]
        ),
        hlc=int(document["hlc"]),
        client_id=document["clientId"],
        delta_id=document["deltaId"],
    )


def test_the_classes_are_those_of_the_schema() -> None:
    assert generate.main(["--check"]) == 0


@pytest.mark.parametrize("case", load("delta_ids"), ids=lambda case: case["id"][:8])
def test_ids(case: Any) -> None:
    delta = delta_of(case["delta"])
    made = sync.delta_id(
        table=delta.table, row_id=delta.row_id, columns=delta.columns, hlc=delta.hlc, client_id=delta.client_id
    )
    assert made == case["id"]


def test_ids_do_not_depend_on_how_a_value_was_written() -> None:
    for case in load("delta_ids"):
        for column in case["delta"]["columns"]:
            for text in (json.dumps(column["value"]), json.dumps(column["value"], indent=2, ensure_ascii=False)):
                assert canonical_text(text.encode()).decode() == sync.canonical(column["value"])


def test_clocks() -> None:
    cases = load("clocks")
    for case in cases["pack"]:
        if "error" in case:
            with pytest.raises(Invalid) as refused:
                pack(int(case["wallMs"]), int(case["counter"]))
            assert refused.value.reason == case["error"]
        else:
            assert pack(int(case["wallMs"]), int(case["counter"])) == int(case["hlc"])
    for case in cases["tick"]:
        clock = HlcClock(Hlc(int(case["last"])))
        if "error" in case:
            with pytest.raises(Invalid):
                clock.tick(int(case["nowMs"]), int(case["count"]))
            continue
        assert clock.tick(int(case["nowMs"]), int(case["count"])) == int(case["first"])
        assert clock.last == int(case["after"])


@pytest.mark.parametrize("case", load("merges"), ids=lambda case: case["name"])
def test_merges_in_any_order(case: Any) -> None:
    changes = [
        Change(
            table=each["table"],
            key=each["rowId"],
            operation=Operation(each["op"].lower()),
            columns={column["column"]: column["value"] for column in each["columns"]},
            hlc=Hlc(int(each["hlc"])),
            source=SourceId(each["clientId"]),
            batch_sequence=1,
        )
        for each in case["deltas"]
    ]
    for order in itertools.islice(itertools.permutations(changes), 50):
        row = merge(order)
        cells = {
            name: {"hlc": str(cell.stamp.hlc), "source": cell.stamp.source, "value": cell.value}
            for name, cell in row.cells.items()
        }
        assert cells == case["row"]["cells"]
        stamp = row.tombstone
        assert (stamp and {"hlc": str(stamp.hlc), "source": stamp.source}) == case["row"]["tombstone"]


@pytest.mark.parametrize("case", load("frames")["good"], ids=lambda case: case["name"])
def test_good_frames_in_both_forms(case: Any) -> None:
    frame = bytes.fromhex(case["hex"])
    message = case["message"]
    text = json.dumps(message).encode()
    match case["kind"]:
        case "push":
            push = sync.decode_request(frame)
            assert isinstance(push, sync.SyncPush)
            assert push == sync.SyncPush(
                client_id=message["clientId"],
                deltas=[delta_of(each) for each in message["deltas"]],
                last_seen_hlc=int(message["lastSeenHlc"]),
            )
            assert sync.encode_request(push) == frame
            assert msgspec.json.decode(sync.push_to_json(sync.push_from_json(text))) == message
        case "pull":
            pull = sync.decode_request(frame)
            assert isinstance(pull, sync.SyncPull)
            assert (pull.client_id, str(pull.since_hlc), pull.max_deltas) == tuple(message.values())
            assert sync.encode_request(pull) == frame
        case kind:
            body = frame.removeprefix(BROADCAST_TAG) if kind == "broadcast" else frame
            response = sync.decode_response(body)
            assert list(response.deltas) == [delta_of(each) for each in message["deltas"]]
            assert sync.encode_response(response) == body
            assert msgspec.json.decode(sync.response_to_json(sync.response_from_json(text))) == message


@pytest.mark.parametrize("case", load("frames")["bad"], ids=lambda case: case["name"])
def test_bad_frames_are_refused_by_name(case: Any) -> None:
    with pytest.raises(Invalid):
        message = sync.decode_request(bytes.fromhex(case["hex"]))
        assert isinstance(message, sync.SyncPush)
        # What is well-formed Protobuf is refused by what it says.
        for delta in message.deltas:
            sync.check_push(sync.SyncPush(client_id="", deltas=[delta]), "g", 1 << 46)


def test_checkpoint_pieces() -> None:
    case = load("frames")["checkpoint"]
    pieces = [sync.decode_response(piece) for piece in sync.split_pieces(bytes.fromhex(case["hex"]))]
    assert [msgspec.json.decode(sync.response_to_json(piece)) for piece in pieces] == case["pieces"]
    encoded = b"".join(varint(len(piece)) + piece for piece in map(sync.encode_response, pieces))
    assert encoded.hex() == case["hex"]
    with pytest.raises(Invalid):
        list(sync.split_pieces(bytes.fromhex(case["hex"])[:-1]))


def test_drift() -> None:
    with pytest.raises(Invalid, match="drift"):
        check_drift(pack(10_000, 0), 4_999)


@given(
    op=st.integers(0, 4),
    texts=st.lists(st.text(max_size=300), min_size=4, max_size=4),
    columns=st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=400)), max_size=4),
    hlc=st.integers(0, (1 << 64) - 1),
)
def test_what_is_encoded_by_hand_is_what_the_library_encodes(
    op: int, texts: list[str], columns: list[tuple[str, bytes]], hlc: int
) -> None:
    table, row_id, client_id, _ = texts
    columns_made = tuple(sync.ColumnDelta(name, value) for name, value in columns)
    delta = sync.RowDelta(
        op=op, table=table, row_id=row_id, columns=columns_made, hlc=hlc, client_id=client_id, delta_id="ab" * 32
    )
    message = pb.RowDelta(
        op=op,  # type: ignore[arg-type]
        table=table,
        row_id=row_id,
        columns=[pb.ColumnDelta(column=name, value=value) for name, value in columns],
        hlc=hlc,
        client_id=client_id,
        delta_id="ab" * 32,
    )
    response = pb.SyncResponse(deltas=[message]).SerializeToString()
    assert sync.encode_delta(delta) == response
    assert list(sync.decode_response(response).deltas) == [delta]
    push = sync.SyncPush(client_id=client_id, deltas=[delta, delta], last_seen_hlc=hlc)
    body = sync.encode_push(push)
    assert sync.decode_push(body) == push
    assert [sync.response_delta(part) for part in sync.split_push(body)] == [response, response]
