"""SCRAM (RFC 5802, RFC 7677), the server's side: salted, iterated keys at rest, and the exchange as a state machine.

Bytes in, bytes out: no sockets, no users. A door frames the messages as its protocol wants and asks `users` for the
credential of a name. What is stored lets a server check a password; a thief of it can neither log in nor guess cheaply.

    FIRST --client-first--> FINAL --client-final--> DONE
      \\__________________________\\______ anything wrong ______> FAILED
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from collections.abc import Callable
from enum import Enum, StrEnum

import msgspec

from mainstem.admission.auth import Unauthenticated
from mainstem.model.errors import Invalid

MESSAGE_BYTES_MAX = 4096
ITERATIONS_MIN = 4096
# A stored number beyond this would let one login hold a core for seconds.
ITERATIONS_MAX = 1_000_000
ITERATIONS = 15_000
SALT_BYTES = 28
_NONCE_BYTES = 24


class Mechanism(StrEnum):
    """What a client may ask for, by its registered name."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """The hash's name in hashlib."""
        return "sha256" if self is Mechanism.SHA_256 else "sha512"


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one password."""

    hash_name: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def is_password(self, password: str) -> bool:
        """Whether this is the password, for a client that sends it as it is."""
        try:
            again = derive(password, hash_name=self.hash_name, salt=self.salt, iterations=self.iterations)
        except Invalid:
            return False
        return hmac.compare_digest(again.stored_key, self.stored_key)


def derive(
    password: str, *, hash_name: str = "sha256", salt: bytes | None = None, iterations: int = ITERATIONS
) -> Credential:
    """The credential of a password. Takes as long as the iterations do: not for the event loop."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(hash_name, saslprep(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return Credential(
        hash_name=hash_name,
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(hash_name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", hash_name),
    )


# Stored as text, in the form that PostgreSQL made common: MECHANISM$iterations:salt$StoredKey:ServerKey.
_TEXT = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


def to_text(credential: Credential) -> str:
    """A credential as one line for a configuration."""
    mechanism = next(each for each in Mechanism if each.hash_name == credential.hash_name)
    salt, stored, server = (
        base64.b64encode(each).decode() for each in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"{mechanism}${credential.iterations}:{salt}${stored}:{server}"


def from_text(text: str) -> Credential:
    """Read such a line. Raises Invalid, without repeating what may be a password."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise Invalid("stored credential. expected=MECHANISM$iterations:salt$StoredKey:ServerKey got=something else")
    hash_name = Mechanism(match[1]).hash_name
    iterations = int(match[2])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise Invalid(f"iterations of a credential. expected={ITERATIONS_MIN}..{ITERATIONS_MAX} got={iterations}")
    try:
        salt, stored, server = (base64.b64decode(each, validate=True) for each in match.group(3, 4, 5))
    except binascii.Error as error:
        raise Invalid(f"stored credential. expected=base64 got={error}") from error
    size = hashlib.new(hash_name).digest_size
    if not salt or len(stored) != size or len(server) != size:
        raise Invalid(f"stored credential. expected=keys of {size} bytes got={len(stored)} and {len(server)}")
    return Credential(hash_name=hash_name, salt=salt, iterations=iterations, stored_key=stored, server_key=server)


def saslprep(text: str) -> str:
    """RFC 4013 for stored texts: what looks the same becomes the same, what cannot be typed is refused."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(is_in(char) for is_in in _PROHIBITED):
            raise Invalid(f"a name or password has a character that is not allowed. got=U+{ord(char):04X}")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
        raise Invalid("a name or password mixes directions of writing")
    return prepared


_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class State(Enum):
    """How far an exchange is."""

    FIRST = "first"
    FINAL = "final"
    DONE = "done"
    FAILED = "failed"


class Exchange:
    """One login. `look_up` gives the credential of a name, or None where there is no such user: the exchange then goes
    on with a made-up one and fails at its end, so that a stranger does not learn which names exist."""

    def __init__(
        self,
        look_up: Callable[[str], Credential | None],
        *,
        hash_name: str,
        decoy_key: bytes,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self.state = State.FIRST
        # Who logs in: set by the first message, proven once the state is DONE.
        self.user = ""
        self._look_up = look_up
        self._hash_name = hash_name
        self._decoy_key = decoy_key
        self._make_nonce = nonce
        # What its proof is held against, from the first message on.
        self.credential: Credential
        self._is_known = False
        self._nonce = ""
        self._header = ""
        self._said = ""

    def step(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises Unauthenticated, after which nothing more is taken."""
        if self.state is State.FIRST:
            answer, after = self._first, State.FINAL
        elif self.state is State.FINAL:
            answer, after = self._final, State.DONE
        else:
            raise Unauthenticated(f"the login is over. expected=no message got={len(message)} bytes", "login_invalid")
        self.state = State.FAILED
        if len(message) > MESSAGE_BYTES_MAX:
            raise _malformed(f"at most {MESSAGE_BYTES_MAX} bytes", f"{len(message)}")
        try:
            text = message.decode()
        except UnicodeDecodeError as error:
            raise _malformed("UTF-8", "other bytes") from error
        said = answer(text)
        self.state = after
        return said.encode()

    def _first(self, text: str) -> str:
        binding, comma, rest = text.partition(",")
        authorised, _, bare = rest.partition(",")
        # y: the client could bind to the channel and thinks that we cannot, which is true.
        if binding not in ("n", "y") or not comma:
            raise _malformed("no channel binding", f"{binding[:20]!r}")
        fields = _fields(bare, "n", "r")
        self.user = _name(fields["n"])
        if authorised not in ("", f"a={fields['n']}"):
            raise _malformed("to act as oneself", f"{authorised[:100]!r}")
        if not fields["r"].isprintable() or not fields["r"]:
            raise _malformed("a nonce", "none")
        found = self._look_up(self.user)
        self._is_known = found is not None and found.hash_name == self._hash_name
        self.credential = found if found is not None and self._is_known else self._decoy()
        self._nonce = fields["r"] + self._make_nonce()
        self._header = f"{binding},{authorised},"
        salt = base64.b64encode(self.credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self.credential.iterations}"
        self._said = f"{bare},{answer}"
        return answer

    def _decoy(self) -> Credential:
        """The same salt for the same name each time, as a real user has."""
        salt = hmac.digest(self._decoy_key, self.user.encode(), "sha256")[:SALT_BYTES]
        size = hashlib.new(self._hash_name).digest_size
        return Credential(
            hash_name=self._hash_name, salt=salt, iterations=ITERATIONS, stored_key=bytes(size), server_key=bytes(size)
        )

    def _final(self, text: str) -> str:
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof, "c", "r")
        try:
            header = base64.b64decode(fields["c"], validate=True)
            proof = base64.b64decode(proof_text, validate=True)
        except binascii.Error as error:
            raise _malformed("base64", str(error)) from error
        credential = self.credential
        said = f"{self._said},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, said, self._hash_name)
        if len(proof) != len(signature):
            raise _wrong()
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        stored = hashlib.new(self._hash_name, client_key).digest()
        is_proven = hmac.compare_digest(stored, credential.stored_key)
        if not (is_proven and self._is_known and header == self._header.encode() and fields["r"] == self._nonce):
            raise _wrong()
        return f"v={base64.b64encode(hmac.digest(credential.server_key, said, self._hash_name)).decode()}"


def _fields(text: str, *names: str) -> dict[str, str]:
    """The attributes of a message, which start with these in this order. `m=` asks for what is not defined yet."""
    found = [part.partition("=") for part in text.split(",")]
    if [name for name, _, _ in found[: len(names)]] != list(names):
        raise _malformed(f"the attributes {', '.join(names)}", ", ".join(name[:5] for name, _, _ in found[:5]))
    return {name: value for name, _, value in found[: len(names)]}


def _name(text: str) -> str:
    if re.search("=(?!2C|3D)", text) or not text:
        raise _malformed("a name with = as =3D and comma as =2C", "something else")
    try:
        return saslprep(text.replace("=2C", ",").replace("=3D", "="))
    except Invalid as error:
        raise _malformed("a name", str(error)) from error


def _malformed(expected: str, got: str) -> Unauthenticated:
    return Unauthenticated(f"message of a login. expected={expected} got={got}", "login_invalid")


def _wrong() -> Unauthenticated:
    return Unauthenticated("no such user, or another password", "login_wrong")
