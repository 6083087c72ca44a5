"""What is said before the bytes of a connection that a gateway passes on."""

import pytest

from mainstem.model.errors import Denied, Invalid
from mainstem.wire.passing import BODY_BYTES_MAX, HEAD_BYTES, Passed, check_head, decode_body, encode

SECRET = bytes(range(16))
PASSED = Passed(door="http", client=("203.0.113.9", 5000), came_to=("10.0.0.2", 8181), told=("b.example", 8181))


def test_whose_it_is_comes_back_as_it_was_said() -> None:
    said = encode(SECRET, PASSED)
    size = check_head(said[:HEAD_BYTES], SECRET)
    assert size == len(said) - HEAD_BYTES
    assert decode_body(said[HEAD_BYTES:]) == PASSED


def test_another_leaders_secret_is_refused() -> None:
    with pytest.raises(Denied):
        check_head(encode(bytes(16), PASSED)[:HEAD_BYTES], SECRET)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: x\r\n"[:HEAD_BYTES], b"MSP1" + SECRET + b"\xff\xff"])
def test_what_is_no_greeting_is_refused(head: bytes) -> None:
    with pytest.raises(Invalid):
        check_head(head, SECRET)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc1", b"\x81\xa4door\xa4http"])
def test_a_greeting_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        decode_body(body)


def test_a_greeting_has_a_bound() -> None:
    with pytest.raises(Invalid):
        encode(SECRET, Passed(door="http", client=("a" * BODY_BYTES_MAX, 1), came_to=("", 1), told=("", 1)))
