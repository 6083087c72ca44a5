"""Users with passwords, for protocols whose clients log in by name: what is stored of them, and who they are.

A user is a principal like one that a token makes: a role, namespaces, tables. Only salted keys are stored
(`mainstem password` prints them); nothing here can say what a password is.

The configuration declares users. A door whose protocol has commands for it may add others (`made`): they are kept in a
file of the data folder. A name is one user's, and those of the configuration are changed there and nowhere else.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mainstem.admission.auth import Unauthenticated
from mainstem.admission.principal import Principal, Role
from mainstem.admission.scram import Credential, Exchange, Mechanism, derive, from_text, to_text
from mainstem.model.errors import Conflict, Corrupt, Invalid
from mainstem.runtime import durable

logger = logging.getLogger(__name__)

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


class MadeUser(msgspec.Struct, frozen=True):
    """A user that a door's command made."""

    settings: UserSettings
    # What the door keeps of it for itself; nothing else reads it.
    about: str = ""


class _File(msgspec.Struct, frozen=True):
    """What the file of made users holds."""

    version: int
    users: dict[str, MadeUser]


_FILE_VERSION = 1


class Users:
    """Everybody who may log in with a password. `file` keeps those that commands make; without it they cannot."""

    def __init__(self, settings: Mapping[str, UserSettings] | None = None, file: Path | None = None) -> None:
        self._declared = dict(settings or {})
        self._file = file
        self._made = {} if file is None else _read(file)
        if len(self) > USERS_MAX:
            raise Invalid(f"users. expected=at most {USERS_MAX} got={len(self)}")
        if both := self._made.keys() & self._declared.keys():
            logger.warning("users of the configuration hide users of the same names: %s", ", ".join(sorted(both)[:10]))
        # Grows with every change: who is logged in must be looked up again then.
        self.version = 0
        self._principals: dict[str, Principal] = {}
        self._credentials: dict[str, dict[str, Credential]] = {}
        # As of which version a name is this user's, where another one may have had it before.
        self._since: dict[str, int] = {}
        for name, user in ({name: made.settings for name, made in self._made.items()} | self._declared).items():
            self._enter(name, user)
        # Names that no user has get a salt made with this, the same as long as the process lives.
        self._decoy_key = secrets.token_bytes(32)
        self._decoy = derive(secrets.token_hex(), iterations=4096)
        self._checks = asyncio.Semaphore(_CHECKS_MAX)

    @classmethod
    def of_folder(cls, settings: Mapping[str, UserSettings], data: Path, *, is_derived: bool) -> "Users":
        """Those of a data folder. One that is made anew from a log elsewhere keeps none of its own: the next owner of
        the log would not know who was made here, and would still let in who was removed."""
        return cls(settings, None if is_derived else data / "users.json")

    def __len__(self) -> int:
        return len(self._made.keys() | self._declared.keys())

    def names(self) -> list[str]:
        """Everybody's name."""
        return sorted(self._principals)

    @property
    def is_on(self) -> bool:
        """Whether a login is asked for: the configuration says so by declaring users."""
        return bool(self._declared)

    @property
    def can_make(self) -> bool:
        """Whether commands may make users here."""
        return self._file is not None

    def made(self, name: str) -> MadeUser | None:
        """A user that a command made; None for those of the configuration, too."""
        return None if name in self._declared else self._made.get(name)

    def is_declared(self, name: str) -> bool:
        """Whether the configuration has a user of this name."""
        return name in self._declared

    async def credential(self, password: str) -> str:
        """What is kept of a password."""
        if not 1 <= len(password) <= PASSWORD_CHARS_MAX:
            raise Invalid(f"password. expected=1 to {PASSWORD_CHARS_MAX} characters got={len(password)}")
        async with self._checks:
            return to_text(await asyncio.to_thread(derive, password))

    def change(self, changes: Mapping[str, MadeUser | None]) -> None:
        """Make users, change them, or with None remove them. When this returns it lasts. It waits for the disk (a
        small file, and rarely), so that no other call decides by what is about to change, and a caller that goes away
        does not leave it half done."""
        if self._file is None:
            raise Invalid("users are those of the configuration here")
        if declared := [name for name in changes if name in self._declared]:
            raise Conflict(f"user {declared[0]!r:.100} is declared in the configuration, and changed there")
        kept = {name: user for name, user in {**self._made, **changes}.items() if user is not None}
        if len(kept.keys() | self._declared.keys()) > USERS_MAX:
            raise Invalid(f"users. expected=at most {USERS_MAX} got={len(kept)}")
        for name in changes.keys() & kept.keys():
            _credentials(name, kept[name].settings)
        durable.replace(self._file, msgspec.json.encode(_File(_FILE_VERSION, kept)))
        new = changes.keys() - self._made.keys()
        self._made = kept
        self.version += 1
        for name, changed in changes.items():
            self._principals.pop(name, None)
            self._credentials.pop(name, None)
            if changed is not None:
                self._enter(name, changed.settings)
                if name in new:
                    self._since[name] = self.version
            else:
                self._since.pop(name, None)

    def _enter(self, name: str, user: UserSettings) -> None:
        self._credentials[name] = _credentials(name, user)
        self._principals[name] = _principal(name, user)

    def exchange(self, mechanism: Mechanism) -> Exchange:
        """A new SCRAM login."""

        def look_up(name: str) -> Credential | None:
            return self._credentials.get(name, {}).get(mechanism.hash_name)

        return Exchange(look_up, hash_name=mechanism.hash_name, decoy_key=self._decoy_key)

    def find(self, name: str, version: int | None = None) -> Principal | None:
        """Who a name is at this moment; None where no user has it any more, or not the user of that version."""
        if version is not None and self._since.get(name, 0) > version:
            return None
        return self._principals.get(name)

    def proven(self, exchange: Exchange) -> Principal:
        """Who logged in. Raises Unauthenticated also where the password is another one by now."""
        self._check_still(exchange.user, exchange.credential)
        return self.principal(exchange.user)

    def _check_still(self, name: str, credential: Credential) -> None:
        if self._credentials.get(name, {}).get(credential.hash_name) != credential:
            raise Unauthenticated("no such user, or another password", "login_wrong")

    def principal(self, name: str) -> Principal:
        """Who a name is, once its login is proven. Raises Unauthenticated."""
        found = self._principals.get(name)
        if found is None:
            raise Unauthenticated("no such user, or another password", "login_wrong")
        return found

    async def check(self, name: str, password: str) -> Principal:
        """A login with the password as it is. Raises Unauthenticated; takes as long for a name that no user has."""
        if len(password) > PASSWORD_CHARS_MAX:
            raise Unauthenticated(f"password. expected=at most {PASSWORD_CHARS_MAX} characters", "login_invalid")
        credential = next(iter(self._credentials.get(name, {}).values()), self._decoy)
        async with self._checks:
            is_right = await asyncio.to_thread(credential.is_password, password)
        if not is_right or credential is self._decoy:
            raise Unauthenticated("no such user, or another password", "login_wrong")
        self._check_still(name, credential)
        return self.principal(name)


def _read(file: Path) -> dict[str, MadeUser]:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise Corrupt(f"users cannot be read. got={error}", place=str(file)) from error
    if found.version != _FILE_VERSION:
        raise Corrupt(f"users. expected=version {_FILE_VERSION} got={found.version}", place=str(file))
    return found.users


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
