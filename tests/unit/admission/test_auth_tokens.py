"""Tokens: which are taken, which are not, and what their claims open."""

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mainstem.admission import Authenticator, AuthSettings, Principal, Role, Unauthenticated
from mainstem.admission.auth import RECHECK_S
from mainstem.admission.keys import KeyRing, private_key, secret_key, sign
from mainstem.admission.sources import RESERVED_SOURCES
from mainstem.model import Denied, Invalid, parse_table_name
from mainstem.runtime.clock import ManualClock

OLD, NEW = "o" * 32, "n" * 40
NOW_S = 1_700_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S * 1000)


def claims(**more: Any) -> dict[str, Any]:
    return {"sub": "shop", "role": "writer", "namespace": "sales", "exp": NOW_S + 3600, **more}


def reason_of(authenticator: Authenticator, token: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        authenticator.principal(token)
    return refused.value.reason


def test_keys_are_rotated_without_a_gap(clock: ManualClock) -> None:
    old_token = sign(claims(), secret_key("old", OLD))
    new_token = sign(claims(), secret_key("new", NEW))
    before = Authenticator(AuthSettings(keys={"old": OLD}), clock)
    during = Authenticator(AuthSettings(keys={"old": OLD, "new": NEW}), clock)
    after = Authenticator(AuthSettings(keys={"new": NEW}), clock)
    assert before.principal(old_token).sub == "shop"
    assert {during.principal(token).sub for token in (old_token, new_token)} == {"shop"}
    assert after.principal(new_token).sub == "shop"
    assert reason_of(before, new_token) == "token_invalid"
    assert reason_of(after, old_token) == "token_invalid"


def test_a_token_without_a_key_id_is_tried_with_every_key(clock: ManualClock) -> None:
    token = jwt.encode(claims(), NEW, algorithm="HS256")
    assert Authenticator(AuthSettings(keys={"old": OLD, "new": NEW}), clock).principal(token).role is Role.WRITER


def test_a_token_ends(clock: ManualClock) -> None:
    authenticator = Authenticator(AuthSettings(keys={"k": OLD}, leeway_s=10), clock)
    token = sign(claims(exp=NOW_S + 60), secret_key("k", OLD))
    authenticator.principal(token)
    clock.advance(69)
    authenticator.principal(token)
    clock.advance(1)
    assert reason_of(authenticator, token) == "token_expired"


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": None},
        {"exp": "soon"},
        {"nbf": NOW_S + 3600},
        {"sub": None},
        {"sub": ""},
        {"role": "root"},
        {"role": 7},
        {"namespace": 7},
        {"tables": [7]},
    ],
)
def test_claims_that_cannot_be_read_open_nothing(clock: ManualClock, wrong: dict[str, Any]) -> None:
    told = {name: value for name, value in claims(**wrong).items() if value is not None}
    token = jwt.encode(told, OLD, algorithm="HS256")
    assert reason_of(Authenticator(AuthSettings(keys={"k": OLD}), clock), token) == "token_invalid"


def test_nobody_forges_a_token(clock: ManualClock, tmp_path: Path) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public_pem = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    path = jwks_file(tmp_path, rsa_jwk(private, "r"))
    authenticator = Authenticator(AuthSettings(keys={"k": OLD}, jwks_file=str(path)), clock)
    unsigned = jwt.encode(claims(), "", algorithm="none", headers={"kid": "k"})
    # The public key as an HMAC secret: the attack on servers that let the header choose the algorithm.
    import base64
    import hashlib
    import hmac

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = f"{part(json.dumps({'alg': 'HS256', 'kid': 'r'}).encode())}.{part(json.dumps(claims()).encode())}"
    confused = f"{head}.{part(hmac.new(public_pem, head.encode(), hashlib.sha256).digest())}"
    internal = jwt.encode(claims(role="admin"), OLD, algorithm="HS256", headers={"kid": "mainstem-internal"})
    good = sign(claims(), secret_key("k", OLD))
    tampered = good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB")
    for token in (unsigned, confused, internal, tampered, "", "a.b.c", "x" * 20_000):
        assert reason_of(authenticator, token) == "token_invalid"


def test_issuer_and_audience_are_asked_for_where_they_are_set(clock: ManualClock) -> None:
    authenticator = Authenticator(AuthSettings(keys={"k": OLD}, issuer="us", audience="lake"), clock)
    key = secret_key("k", OLD)
    assert authenticator.principal(sign(claims(iss="us", aud=["lake", "other"]), key)).sub == "shop"
    assert reason_of(authenticator, sign(claims(iss="them", aud="lake"), key)) == "token_invalid"
    assert reason_of(authenticator, sign(claims(iss="us", aud="other"), key)) == "token_invalid"
    assert reason_of(authenticator, sign(claims(iss="us"), key)) == "token_invalid"
    # Our own processes are told by their key.
    assert authenticator.principal(authenticator.internal_token("pipeline")).is_unbounded


def test_a_file_of_public_keys_is_read_again_when_it_changes(clock: ManualClock, tmp_path: Path) -> None:
    rsa_private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ec_private = ec.generate_private_key(ec.SECP256R1())
    path = jwks_file(tmp_path, rsa_jwk(rsa_private, "r1"))
    authenticator = Authenticator(AuthSettings(jwks_file=str(path)), clock)
    rs256 = sign(claims(), private_key("r1", pem(rsa_private)))
    es256 = sign(claims(), private_key("e1", pem(ec_private)))
    assert authenticator.principal(rs256).sub == "shop"
    assert reason_of(authenticator, es256) == "token_invalid"
    jwks_file(tmp_path, ec_jwk(ec_private, "e1"))
    assert authenticator.principal(es256).sub == "shop"
    # A token that was good a moment ago is looked at again after a while at the latest.
    clock.advance(RECHECK_S)
    assert reason_of(authenticator, rs256) == "token_invalid"
    path.write_text("half a fi")
    assert authenticator.principal(sign(claims(sub="b"), private_key("e1", pem(ec_private)))).sub == "b"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (AuthSettings(keys={"k": "short"}), "too short"),
        (AuthSettings(keys={"mainstem-internal": OLD}), "taken"),
        (AuthSettings(jwks_file="/nowhere.json"), "/nowhere.json"),
    ],
)
def test_keys_that_do_not_protect_are_refused_at_the_start(settings: AuthSettings, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        KeyRing(settings)


@pytest.mark.parametrize("content", ["", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', "[]"])
def test_a_file_that_holds_no_keys_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(Invalid):
        KeyRing(AuthSettings(jwks_file=str(path)))


def who(**more: Any) -> Principal:
    return Principal(**{"sub": "x", "role": Role.WRITER, "namespaces": ("sales",), **more})


@pytest.mark.parametrize(
    ("principal", "readable", "hidden"),
    [
        (who(), ["sales.orders", "sales.eu.orders", "sales.orders_history"], ["default.orders", "salesx.orders"]),
        (who(namespaces=None), ["a.b", "default.t"], []),
        (who(namespaces=()), [], ["sales.orders", "default.t"]),
        (who(tables=("orders",)), ["sales.orders", "sales.orders_history", "sales.orders_dead_letters"], ["sales.o"]),
        (who(tables=("sales.o*",)), ["sales.orders"], ["sales.items", "default.orders"]),
        (who(tables=()), [], ["sales.orders"]),
        (who(role=Role.CLIENT), [], ["sales.orders"]),
        (who(namespaces=None, tables=("default.t",)), ["default.t"], ["sales.t"]),
    ],
)
def test_what_a_principal_sees(principal: Principal, readable: list[str], hidden: list[str]) -> None:
    def named(text: str) -> Any:
        namespace, _, table = text.rpartition(".")
        return parse_table_name("x.y")._replace(namespace=namespace, table=table)

    assert [name for name in readable + hidden if principal.may_read(named(name))] == readable


def test_reading_is_not_writing() -> None:
    orders = parse_table_name("sales.orders")
    assert who(role=Role.READER).may_read(orders)
    with pytest.raises(Denied, match=r"sales\.orders"):
        who(role=Role.READER).check_write([orders])
    who(role=Role.ADMIN).check_write([orders])


def test_sources_of_different_tenants_never_meet() -> None:
    names = {who().source("db"), who(namespaces=("default",)).source("db"), who(namespaces=None).source("db")}
    assert len(names) == 3
    assert "db" in names
    # Who is bound to tables alone reaches no source of others' either; nor does one set of tables those of another.
    bound = [None, ("pay",), ("pay", "plans")]
    spaces = [None, ("sales",), ("sales", "hr"), ("kafka",), ("http",), ("dead-letters",)]
    sources = [who(namespaces=namespaces, tables=tables).source("db") for namespaces in spaces for tables in bound]
    assert len(set(sources)) == len(sources)
    assert who(tables=("a", "b")).source("db") == who(tables=("b", "a")).source("db")


def test_a_namespace_may_be_called_as_a_door_is() -> None:
    for door in RESERVED_SOURCES:
        source = who(namespaces=(door.removesuffix("/"),)).source("db")
        assert not source.startswith(RESERVED_SOURCES), source


def pem(key: Any) -> bytes:
    private: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private


def rsa_jwk(key: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
    return {**jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid}


def ec_jwk(key: ec.EllipticCurvePrivateKey, kid: str) -> dict[str, Any]:
    return {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid}


def jwks_file(folder: Path, *keys: dict[str, Any]) -> Path:
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": list(keys)}))
    return path
