"""Users with passwords, for protocols whose clients log in by name: what is stored of them, and who they are.

A user is a principal like one that a token makes: a role, namespaces, tables. Only salted keys are stored
(`mainstem password` prints them); nothing here can say what a password is.
"""

import asyncio
import secrets
from collections.abc import Mapping

import msgspec

from mainstem.admission.auth import Unauthenticated
from mainstem.admission.principal import Principal, Role
from mainstem.admission.scram import Credential, Exchange, Mechanism, derive, from_text
from mainstem.model.errors import Invalid

USERS_MAX = 10_000
PASSWORD_CHARS_MAX = 1024
# Checking a plain password costs its iterations in a thread: so many at once, and the rest wait.
_CHECKS_MAX = 2


class UserSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[users.<name>]` of the configuration."""

    # As `mainstem password` prints them, one for each mechanism.
    credentials: tuple[str, ...]
    # client, reader, writer or admin.
    role: Role = Role.WRITER
    # With all that lies below them; `*` is every one.
    namespaces: tuple[str, ...] = ("*",)
    # Patterns, within the namespaces.
    tables: tuple[str, ...] = ("*",)


class Users:
    """Everybody who may log in with a password."""

    def __init__(self, settings: Mapping[str, UserSettings] | None = None) -> None:
        settings = settings or {}
        if len(settings) > USERS_MAX:
            raise Invalid(f"users. expected=at most {USERS_MAX} got={len(settings)}")
        self._principals = {name: _principal(name, user) for name, user in settings.items()}
        self._credentials = {name: _credentials(name, user) for name, user in settings.items()}
        # Names that nobody has get a salt made with this, the same as long as the process lives.
        self._decoy_key = secrets.token_bytes(32)
        self._decoy = derive(secrets.token_hex(), iterations=4096)
        self._checks = asyncio.Semaphore(_CHECKS_MAX)

    def __len__(self) -> int:
        return len(self._principals)

    def names(self) -> list[str]:
        """Everybody's name."""
        return sorted(self._principals)

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to log in."""
        return bool(self._principals)

    def exchange(self, mechanism: Mechanism) -> Exchange:
        """A new SCRAM login."""

        def look_up(name: str) -> Credential | None:
            return self._credentials.get(name, {}).get(mechanism.hash_name)

        return Exchange(look_up, hash_name=mechanism.hash_name, decoy_key=self._decoy_key)

    def principal(self, name: str) -> Principal:
        """Who a name is, once its login is proven. Raises Unauthenticated."""
        found = self._principals.get(name)
        if found is None:
            raise Unauthenticated("no such user, or another password", "login_wrong")
        return found

    async def check(self, name: str, password: str) -> Principal:
        """A login with the password as it is. Raises Unauthenticated; takes as long for a name that nobody has."""
        if len(password) > PASSWORD_CHARS_MAX:
            raise Unauthenticated(f"password. expected=at most {PASSWORD_CHARS_MAX} characters", "login_invalid")
        credential = next(iter(self._credentials.get(name, {}).values()), self._decoy)
        async with self._checks:
            is_right = await asyncio.to_thread(credential.is_password, password)
        if not is_right or credential is self._decoy:
            raise Unauthenticated("no such user, or another password", "login_wrong")
        return self.principal(name)


def _principal(name: str, user: UserSettings) -> Principal:
    namespaces = None if "*" in user.namespaces else user.namespaces
    tables = None if "*" in user.tables else user.tables
    return Principal(sub=name, role=user.role, namespaces=namespaces, tables=tables)


def _credentials(name: str, user: UserSettings) -> dict[str, Credential]:
    if not user.credentials:
        raise Invalid(f"user {name!r:.100} has no credentials. expected=what `mainstem password` prints")
    try:
        found = [from_text(text) for text in user.credentials]
    except Invalid as error:
        raise Invalid(f"user {name!r:.100}: {error}") from error
    return {each.hash_name: each for each in found}
