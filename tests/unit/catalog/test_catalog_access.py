"""Who may do what: tokens, credentials that are handed out, and requests that are signed, or not."""

import hashlib
from typing import Any

import msgspec
import pytest

from mainstem.catalog.access.clients import Access
from mainstem.catalog.access.tokens import TokenExpired, TokenRefused, Tokens
from mainstem.doors.catalog.auth import refusal, token_answer
from mainstem.model import Denied, Invalid
from mainstem.runtime.clock import ManualClock
from mainstem.wire.sigv4 import Keys, sign

# The keys, the time and the signatures of the examples in Amazon's description of the signature.
KEYS = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
MAY_24_2013_MS = 1_369_353_600_000
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
IO = {
    "s3.endpoint": "http://store:9000",
    "s3.access-key-id": "id",
    "s3.secret-access-key": "secret",
    "s3.region": "here",
}
TABLE = "s3://lake/db/t"


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_signature_is_amazons(query: str, signature: str) -> None:
    signed = sign(
        KEYS,
        method="GET",
        uri=f"https://examplebucket.s3.amazonaws.com/?{query}",
        region="us-east-1",
        headers={"X-Amz-Content-SHA256": [EMPTY]},
        now_ms=MAY_24_2013_MS,
    )
    assert signed["authorization"][0].endswith(f"Signature={signature}")
    assert signed["x-amz-date"] == ["20130524T000000Z"]


def attempt(method: str, uri: str, body: str | None = None, **settings: Any) -> dict[str, list[str]]:
    access = Access(IO, **settings)
    return access.sign(TABLE, method=method, uri=uri, region="", headers={}, body=body, now_ms=MAY_24_2013_MS)


DELETE_TWO = '<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>{}</Key></Object></Delete>'


@pytest.mark.parametrize(
    ("method", "uri", "body"),
    [
        ("GET", "http://store:9000/lake/db/t/data/a.parquet", None),
        ("PUT", "http://store:9000/lake/db/t/metadata/m.avro", None),
        ("HEAD", "http://lake.store:9000/db/t/data/a%20b.parquet", None),
        ("POST", "http://store:9000/lake/db/t/data/a.parquet?uploads=", None),
        ("GET", "http://store:9000/lake?list-type=2&prefix=db%2Ft%2Fdata", None),
    ],
)
def test_requests_below_the_table_are_signed(method: str, uri: str, body: str | None) -> None:
    assert "Credential=id/20130524/here/s3" in attempt(method, uri, body)["authorization"][0]


@pytest.mark.parametrize(
    ("method", "uri", "body"),
    [
        ("GET", "http://store:9000/lake/db/other/data/a.parquet", None),
        ("GET", "http://store:9000/lake/db/t2/a.parquet", None),
        ("GET", "http://store:9000/lake/db/t/../other/a.parquet", None),
        ("GET", "http://store:9000/lake/db/t/%2E%2E/other/a.parquet", None),
        ("GET", "http://store:9000/pond/db/t/a.parquet", None),
        ("GET", "http://elsewhere:9000/lake/db/t/a.parquet", None),
        ("GET", "http://store:9000/lake?list-type=2&prefix=db", None),
        ("GET", "http://store:9000/lake?list-type=2", None),
        ("DELETE", "http://store:9000/lake", None),
        ("PUT", "http://store:9000/lake?policy=", None),
        ("OPTIONS", "http://store:9000/lake/db/t/a.parquet", None),
        ("POST", "http://store:9000/lake?delete=", DELETE_TWO.format("db/other/a.parquet")),
    ],
)
def test_requests_beyond_the_table_are_not(method: str, uri: str, body: str | None) -> None:
    with pytest.raises(Denied):
        attempt(method, uri, body)


def test_the_body_of_a_delete_is_bound_to_the_signature() -> None:
    """On Amazon's store, which looks at it. Another store is tried first, and this one cannot be."""
    access = Access({name: value for name, value in IO.items() if name != "s3.endpoint"})
    body = DELETE_TWO.format("db/t/data/a.parquet")
    own = hashlib.sha256(body.encode()).hexdigest()
    uri = "https://lake.s3.us-east-1.amazonaws.com/?delete="

    def signed(on: Access, uri: str, said: dict[str, list[str]]) -> dict[str, list[str]]:
        return on.sign(TABLE, method="POST", uri=uri, region="", headers=said, body=body, now_ms=MAY_24_2013_MS)

    for said in ({}, {"x-amz-content-sha256": ["UNSIGNED-PAYLOAD"]}, {"X-Amz-Content-SHA256": [own]}):
        assert signed(access, uri, said)["x-amz-content-sha256"] == [own]
    with pytest.raises(Denied):
        signed(access, uri, {"x-amz-content-sha256": ["0" * 64]})
    with pytest.raises(Denied):
        signed(access, "https://lake.other.s3.us-east-1.amazonaws.com/?delete=", {})
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(Denied, match="another body"):
        signed(Access({**IO, "s3.endpoint": nowhere}), f"{nowhere}/lake?delete=", {})


def test_signing_needs_keys_leave_and_a_body_that_can_be_read() -> None:
    with pytest.raises(Denied):
        attempt("GET", "http://store:9000/lake/db/t/a", sign_requests=False)
    with pytest.raises(Denied):
        Access().sign(TABLE, method="GET", uri="x", region="", headers={}, body=None, now_ms=0)
    for body in (None, "<Delete", '<!DOCTYPE x [<!ENTITY a "b">]><Delete/>'):
        with pytest.raises(Invalid):
            attempt("POST", "http://store:9000/lake?delete=", body)


def test_what_clients_are_given() -> None:
    both = "vended-credentials,remote-signing"
    plain = {"s3.endpoint": "http://store:9000", "s3.region": "here", "client.region": "here"}
    # A store without a token service: nobody listens at that port.
    nowhere = {**IO, "s3.endpoint": "http://127.0.0.1:9"}
    for access in (Access(IO), Access(nowhere, vend_credentials=True)):
        signing = access.grant(TABLE, both)
        assert (signing.is_signed, signing.credentials) == (True, {})
        assert signing.config.items() >= {"s3.remote-signing-enabled": "true"}.items()
        assert not {"s3.access-key-id", "s3.secret-access-key"} & signing.config.keys(), "the catalog's own stay here"
    assert Access(IO, vend_credentials=True).grant(TABLE, None).config == plain, "who does not ask gets no keys"
    assert Access(IO, vend_credentials=True).grant("/data/t", both).config == {}
    assert Access(IO).credentials(TABLE) == {}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tokens(clock: ManualClock) -> Tokens:
    return Tokens({"spark": "hush"}, "", 60, clock)


def form(**fields: str) -> bytes:
    return "&".join(f"{name}={value}" for name, value in fields.items()).encode()


def test_a_token_is_issued_used_exchanged_and_ends(tokens: Tokens, clock: ManualClock) -> None:
    answer = token_answer(tokens, {}, form(grant_type="client_credentials", client_id="spark", client_secret="hush"))
    told = msgspec.json.decode(answer.body)
    assert (answer.status, told["token_type"], told["expires_in"]) == (200, "bearer", 60)
    headers = {"authorization": f"Bearer {told['access_token']}"}
    assert refusal(tokens, headers) is None
    exchange = form(grant_type="urn:ietf:params:oauth:grant-type:token-exchange", subject_token=told["access_token"])
    assert token_answer(tokens, headers, exchange).status == 200
    clock.advance(61)
    refused = refusal(tokens, headers)
    assert refused is not None
    assert refused.status == 419
    assert msgspec.json.decode(token_answer(tokens, headers, exchange).body)["error"] == "invalid_grant"
    with pytest.raises(TokenExpired):
        tokens.check(told["access_token"])


def test_what_is_not_let_in(tokens: Tokens) -> None:
    good = tokens.issue("spark", "hush")
    head, payload, signature = good.split(".")
    for token in ("", "x", "a.b.c", f"{head}.{payload}x.{signature}", f"{head}.{payload}."):
        with pytest.raises(TokenRefused):
            tokens.check(token)
    with pytest.raises(TokenRefused):
        tokens.issue("spark", "wrong")
    with pytest.raises(TokenRefused):
        tokens.issue("nobody", "")
    for headers in ({}, {"authorization": "Basic x"}, {"authorization": "Bearer x"}):
        refused = refusal(tokens, headers)
        assert refused is not None
        assert refused.status == 401
    assert token_answer(tokens, {}, form(grant_type="password")).status == 400
    basic = {"authorization": "Basic c3Bhcms6aHVzaA=="}
    assert token_answer(tokens, basic, form(grant_type="client_credentials")).status == 200


def test_without_clients_nothing_is_asked_for(clock: ManualClock) -> None:
    none = Tokens({}, "", 60, clock)
    assert refusal(none, {}) is None
    assert token_answer(none, {}, form(grant_type="client_credentials")).status == 400
