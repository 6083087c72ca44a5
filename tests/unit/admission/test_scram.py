"""SCRAM by the RFCs' own vectors, and against a client written from the RFC."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.admission import Role, Unauthenticated
from mainstem.admission.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    Credential,
    Exchange,
    Mechanism,
    State,
    derive,
    from_text,
    saslprep,
    to_text,
)
from mainstem.admission.users import PASSWORD_CHARS_MAX, Users, UserSettings
from mainstem.model.errors import Invalid

# hash, salt, client-first, server's part of the nonce, server-first, client-final, server-final
RFC_5802 = (
    "sha1",
    "QSXCR+Q6sek8bf92",
    b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "3rfcNHYJY1ZVvWVs7j",
    b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    "sha256",
    "W22ZaJ0SNY7soEsUEjb6gQ==",
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)

PENCIL = {
    mechanism.hash_name: derive("pencil", hash_name=mechanism.hash_name, iterations=ITERATIONS_MIN)
    for mechanism in Mechanism
}


def exchange_for(credential: Credential | None, hash_name: str = "sha256", nonce: str = "server") -> Exchange:
    return Exchange(
        lambda name: credential if name == "user" else None,
        hash_name=hash_name,
        decoy_key=b"decoy",
        nonce=lambda: nonce,
    )


def client_final(first: bytes, answer: bytes, password: str, hash_name: str, header: bytes = b"n,,") -> bytes:
    """What a client says after the server's first answer."""
    fields = dict(part.split("=", 1) for part in answer.decode().split(","))
    salt = base64.b64decode(fields["s"])
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", hash_name)
    bare = first.split(b",", 2)[2]
    without_proof = b"c=" + base64.b64encode(header) + b",r=" + fields["r"].encode()
    said = bare + b"," + answer + b"," + without_proof
    signature = hmac.digest(hashlib.new(hash_name, key).digest(), said, hash_name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize("vector", [RFC_5802, RFC_7677], ids=["rfc5802", "rfc7677"])
def test_the_vectors_of_the_rfcs(vector: tuple[str, str, bytes, str, bytes, bytes, bytes]) -> None:
    hash_name, salt, first, nonce, first_answer, final, final_answer = vector
    credential = derive("pencil", hash_name=hash_name, salt=base64.b64decode(salt), iterations=4096)
    exchange = exchange_for(credential, hash_name, nonce)
    assert exchange.step(first) == first_answer
    assert exchange.step(final) == final_answer
    assert (exchange.state, exchange.user) == (State.DONE, "user")


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_both_mechanisms_let_the_right_password_in_and_no_other(mechanism: Mechanism) -> None:
    name = mechanism.hash_name
    first = b"n,,n=user,r=abc"
    right = exchange_for(PENCIL[name], name)
    assert right.step(client_final(first, right.step(first), "pencil", name)).startswith(b"v=")
    wrong = exchange_for(PENCIL[name], name)
    with pytest.raises(Unauthenticated, match="another password"):
        wrong.step(client_final(first, wrong.step(first), "pen", name))
    assert wrong.state is State.FAILED


def test_a_name_that_nobody_has_looks_like_any_other_until_the_end() -> None:
    answers = set()
    for _ in range(2):
        unknown = exchange_for(None)
        first = b"n,,n=nobody,r=abc"
        answer = unknown.step(first)
        answers.add(answer)
        with pytest.raises(Unauthenticated, match="another password"):
            unknown.step(client_final(first, answer, "pencil", "sha256"))
    assert len(answers) == 1, "the same name must have the same salt each time"


GOOD_FIRST = b"n,,n=user,r=abc"


def in_state(state: State) -> Exchange:
    exchange = exchange_for(PENCIL["sha256"])
    if state is State.FIRST:
        return exchange
    answer = exchange.step(GOOD_FIRST)
    if state is State.DONE:
        exchange.step(client_final(GOOD_FIRST, answer, "pencil", "sha256"))
    elif state is State.FAILED:
        with pytest.raises(Unauthenticated):
            exchange.step(b"nonsense")
    return exchange


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", ["first", "final", "nonsense"])
def test_every_state_and_event(state: State, event: str) -> None:
    exchange = in_state(state)
    assert exchange.state is state
    final = client_final(GOOD_FIRST, in_state(State.FIRST).step(GOOD_FIRST), "pencil", "sha256")
    message = {"first": GOOD_FIRST, "final": final, "nonsense": b"\xff\xfe"}[event]
    after = {(State.FIRST, "first"): State.FINAL, (State.FINAL, "final"): State.DONE}.get((state, event))
    if after is not None:
        exchange.step(message)
        assert exchange.state is after
        return
    with pytest.raises(Unauthenticated):
        exchange.step(message)
    assert exchange.state is (State.DONE if state is State.DONE else State.FAILED)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=future,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,r=abc,n=user",
        b"n",
        b"",
        b"n,,n=user,r=" + b"x" * MESSAGE_BYTES_MAX,
    ],
)
def test_a_first_message_that_is_not_one_ends_the_login(first: bytes) -> None:
    exchange = exchange_for(PENCIL["sha256"])
    with pytest.raises(Unauthenticated):
        exchange.step(first)
    assert exchange.state is State.FAILED


def test_the_final_message_must_repeat_the_binding_and_the_nonce() -> None:
    for header, nonce in ((b"y,,", b""), (b"n,,", b"other")):
        exchange = exchange_for(PENCIL["sha256"])
        answer = exchange.step(GOOD_FIRST)
        said = answer.replace(b"r=abcserver", b"r=abcserver" + nonce)
        with pytest.raises(Unauthenticated):
            exchange.step(client_final(GOOD_FIRST, said, "pencil", "sha256", header))


def test_names_with_commas_and_equals_come_escaped() -> None:
    exchange = Exchange(
        lambda name: PENCIL["sha256"] if name == "a,b=c" else None, hash_name="sha256", decoy_key=b"decoy"
    )
    first = b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc"
    answer = exchange.step(first)
    exchange.step(client_final(first, answer, "pencil", "sha256", b"n,a=a=2Cb=3Dc,"))
    assert (exchange.user, exchange.state) == ("a,b=c", State.DONE)


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(deadline=None)
def test_no_bytes_but_a_proof_get_through(first: bytes, final: bytes) -> None:
    exchange = exchange_for(PENCIL["sha256"])
    for message in (first, final):
        try:
            exchange.step(message)
        except Unauthenticated:
            assert exchange.state is State.FAILED
    assert exchange.state is not State.DONE


# RFC 4013, section 3.
@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")],
)
def test_saslprep_as_the_rfc_shows(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "a\u0627"])
def test_saslprep_refuses_what_the_rfc_refuses(text: str) -> None:
    with pytest.raises(Invalid):
        saslprep(text)


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_stored_line_comes_back_as_it_was(mechanism: Mechanism) -> None:
    credential = PENCIL[mechanism.hash_name]
    text = to_text(credential)
    assert text.startswith(f"{mechanism}${ITERATIONS_MIN}:")
    assert from_text(text) == credential
    assert "pencil" not in text


@pytest.mark.parametrize(
    "text",
    [
        "pencil",
        to_text(PENCIL["sha256"]).replace(f"${ITERATIONS_MIN}:", f"${ITERATIONS_MIN - 1}:"),
        to_text(PENCIL["sha256"]).replace(f"${ITERATIONS_MIN}:", f"${ITERATIONS_MAX + 1}:"),
        to_text(PENCIL["sha256"]).replace("SHA-256", "SHA-512"),
        to_text(PENCIL["sha256"]) + "A",
    ],
)
def test_a_line_that_is_none_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_text(text)
    assert "pencil" not in str(caught.value)


async def test_users_log_in_and_are_the_principals_of_the_settings() -> None:
    lines = tuple(to_text(each) for each in PENCIL.values())
    users = Users({"user": UserSettings(lines, Role.READER, ("kafka",), ("orders*",))})
    assert users.is_on
    assert not Users().is_on
    principal = await users.check("user", "pencil")
    assert (principal.sub, principal.role, principal.namespaces) == ("user", Role.READER, ("kafka",))
    for name, password in (("user", "pen"), ("nobody", "pencil"), ("user", "x" * (PASSWORD_CHARS_MAX + 1))):
        with pytest.raises(Unauthenticated):
            await users.check(name, password)
    for mechanism in Mechanism:
        exchange = users.exchange(mechanism)
        exchange.step(client_final(GOOD_FIRST, exchange.step(GOOD_FIRST), "pencil", mechanism.hash_name))
        assert users.principal(exchange.user) == principal


def test_a_mechanism_without_a_credential_lets_nobody_in() -> None:
    users = Users({"user": UserSettings((to_text(PENCIL["sha512"]),))})
    exchange = users.exchange(Mechanism.SHA_256)
    with pytest.raises(Unauthenticated):
        exchange.step(client_final(GOOD_FIRST, exchange.step(GOOD_FIRST), "pencil", "sha256"))


def test_a_user_needs_a_credential() -> None:
    with pytest.raises(Invalid, match="no credentials"):
        Users({"user": UserSettings(())})
