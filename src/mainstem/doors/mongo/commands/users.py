"""Who may log in, and the commands that make, change and remove users.

Admission keeps them (`admission/users`) for every door alike; here are MongoDB's words for it. A user has one name over
all databases and, as every principal, one role with the databases that it holds for. Roles that cannot be said that way
are refused by name.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mainstem.admission import MadeUser, Principal, Role, UserSettings
from mainstem.admission.scram import Mechanism, saslprep
from mainstem.doors.mongo.calls import Call, Reply, command
from mainstem.doors.mongo.errors import CommandFailed, wrong_type
from mainstem.wire.mongo.frames import decode_document, encode_document

logger = logging.getLogger(__name__)

NAME_CHARS_MAX = 255
ROLES_MAX = 256
CUSTOM_BYTES_MAX = 16 * 1024
ADMIN = "admin"
# MongoDB's roles, by what they are here; `*` is every database.
_OF_A_DATABASE = {"read": Role.READER, "readWrite": Role.WRITER, "dbOwner": Role.WRITER}
_OF_ALL = {"readAnyDatabase": Role.READER, "readWriteAnyDatabase": Role.WRITER, "root": Role.ADMIN}
# The least of MongoDB's roles that may do what a role may here; a client of the sync door may do nothing at this one.
_ROLES = {Role.CLIENT: None, Role.READER: "read", Role.WRITER: "readWrite", Role.ADMIN: "root"}
_EVERY_DATABASE = {"read": "readAnyDatabase", "readWrite": "readWriteAnyDatabase"}


class About(msgspec.Struct, frozen=True):
    """What a made user is in MongoDB's words: its database, its roles (name and database), its customData in BSON."""

    database: str
    roles: tuple[tuple[str, str], ...]
    custom_bson: bytes | None = None


_about = msgspec.json.Decoder(About).decode


# What is asked


@command("usersInfo", "showCredentials", "showPrivileges", "filter", "showCustomData", role=Role.ADMIN)
async def users_info(call: Call) -> Reply:
    """Who may log in: by the configuration, whose users are of the database admin, and by createUser."""
    for each in ("showCredentials", "showPrivileges", "filter"):
        if call.body.get(each):
            raise CommandFailed(238, f"the option '{each}' of usersInfo is not supported")
    wanted = call.body["usersInfo"]
    found = [_told(call, name) for name in call.door.users.names()]
    if isinstance(wanted, str | list) or (isinstance(wanted, dict) and "user" in wanted):
        asked = {_asked(call, each) for each in (wanted if isinstance(wanted, list) else [wanted])}
        found = [each for each in found if (each["user"], each["db"]) in asked or (each["user"], None) in asked]
    elif wanted not in (1, {"forAllDBs": True}):
        raise CommandFailed(
            2, f"usersInfo takes 1, a user's name, a document of user and db, or a list. got={wanted!r}"
        )
    elif wanted == 1:
        found = [each for each in found if each["db"] in (ADMIN, call.database)]
    return {"users": found}


def _asked(call: Call, wanted: Any) -> tuple[str, str | None]:
    """A user's name and its database; None where only the name was given: a name is one user's."""
    name = wanted.get("user") if isinstance(wanted, dict) else wanted
    database = wanted.get("db") if isinstance(wanted, dict) else None
    if not isinstance(name, str) or not isinstance(database, str | None):
        raise CommandFailed(2, f"usersInfo takes a user's name. got={wanted!r}")
    return name, database


def _told(call: Call, name: str) -> dict[str, Any]:
    users = call.door.users
    made = users.made(name)
    custom: dict[str, Any] = {}
    if made is None:
        database, roles = ADMIN, _roles_of(users.principal(name))
    else:
        about = _about(made.about)
        database, roles = about.database, list(about.roles)
        if about.custom_bson is not None:
            custom = {"customData": decode_document(about.custom_bson)}
    return {
        "_id": f"{database}.{name}",
        "user": name,
        "db": database,
        **custom,
        "roles": [{"role": role, "db": of} for role, of in roles],
        "mechanisms": [str(Mechanism.SHA_256)],
    }


def _roles_of(principal: Principal) -> list[tuple[str, str]]:
    role = _ROLES[principal.role]
    if role is None:
        return []
    if principal.namespaces is None or role == "root":
        return [(_EVERY_DATABASE.get(role, role), ADMIN)]
    return [(role, namespace) for namespace in principal.namespaces]


# What is changed

_FIELDS = ("pwd", "roles", "customData", "mechanisms", "digestPassword", "authenticationRestrictions")


@command("createUser", *_FIELDS, role=Role.ADMIN)
async def create_user(call: Call) -> Reply:
    """A new user."""
    name = _name(call)
    _check_options(call)
    if "roles" not in call.body:
        raise CommandFailed(40414, "BSON field 'createUser.roles' is missing but a required field")
    if "pwd" not in call.body:
        raise CommandFailed(2, "Must provide a 'pwd' field for all user documents")
    roles = _roles(call, call.body["roles"])
    role, namespaces = _rights(roles)
    credential = await call.door.users.credential(call.text("pwd"))
    if call.door.users.find(name) is not None:
        raise CommandFailed(51003, f'User "{name}@{call.database}" already exists')
    about = About(call.database, roles, _custom(call))
    settings = UserSettings((credential,), role, namespaces)
    _change(call, {name: _made(settings, about)})
    return {}


@command("updateUser", *_FIELDS, role=Role.ADMIN)
async def update_user(call: Call) -> Reply:
    """Another password, other roles, other customData."""
    name = _name(call)
    _check_options(call)
    if not any(field in call.body for field in ("pwd", "roles", "customData")):
        raise CommandFailed(2, "Must specify at least one field to update in updateUser")
    credential = await call.door.users.credential(call.text("pwd")) if "pwd" in call.body else None
    settings, about = _found(call, name)
    if credential is not None:
        settings = msgspec.structs.replace(settings, credentials=(credential,))
    if "customData" in call.body:
        about = msgspec.structs.replace(about, custom_bson=_custom(call))
    roles = _roles(call, call.body["roles"]) if "roles" in call.body else about.roles
    _change(call, {name: _with_roles(settings, about, roles)})
    return {}


@command("grantRolesToUser", "roles", role=Role.ADMIN, aliases=("revokeRolesFromUser",))
async def change_roles(call: Call) -> Reply:
    """More roles, or fewer."""
    name = _name(call)
    asked = _roles(call, call.body.get("roles"))
    settings, about = _found(call, name)
    if call.name == "grantRolesToUser":
        roles = tuple(dict.fromkeys((*about.roles, *asked)))
    else:
        roles = tuple(each for each in about.roles if each not in asked)
    _change(call, {name: _with_roles(settings, about, roles)})
    return {}


@command("dropUser", role=Role.ADMIN)
async def drop_user(call: Call) -> Reply:
    """A user goes: its connections have no user from now on."""
    name = _name(call)
    _found(call, name)
    _change(call, {name: None})
    return {}


@command("dropAllUsersFromDatabase", role=Role.ADMIN)
async def drop_all_users(call: Call) -> Reply:
    """All users that commands made in a database."""
    users = call.door.users
    gone: dict[str, MadeUser | None] = {
        name: None
        for name in users.names()
        if (made := users.made(name)) is not None and _about(made.about).database == call.database
    }
    if gone:
        _change(call, gone)
    return {"n": len(gone)}


def _change(call: Call, changes: Mapping[str, MadeUser | None]) -> None:
    if not call.door.users.can_make:
        raise CommandFailed(238, "users are those of the configuration here: the log may move to another gateway")
    call.door.users.change(changes)
    logger.info("%s by %r: %s", call.name, call.principal.sub, ", ".join(map(repr, changes)))


def _name(call: Call) -> str:
    name = call.text(call.name)
    if call.database == "$external":
        raise CommandFailed(238, "users of $external are not supported: there is no login but SCRAM-SHA-256")
    # As logins have it; some characters are nothing there.
    name = saslprep(name) if len(name) <= NAME_CHARS_MAX else name
    if not 1 <= len(name) <= NAME_CHARS_MAX or "\x00" in name:
        raise CommandFailed(2, f"a user's name has 1 to {NAME_CHARS_MAX} characters. got={len(name)}")
    if call.door.users.is_declared(name):
        raise CommandFailed(20, f"user {name!r} is declared in the configuration, and changed there")
    return name


def _found(call: Call, name: str) -> tuple[UserSettings, About]:
    made = call.door.users.made(name)
    if made is None or _about(made.about).database != call.database:
        raise CommandFailed(11, f"User '{name}@{call.database}' not found")
    return made.settings, _about(made.about)


def _made(settings: UserSettings, about: About) -> MadeUser:
    return MadeUser(settings, msgspec.json.encode(about).decode())


def _with_roles(settings: UserSettings, about: About, roles: tuple[tuple[str, str], ...]) -> MadeUser:
    role, namespaces = _rights(roles)
    settings = msgspec.structs.replace(settings, role=role, namespaces=namespaces)
    return _made(settings, msgspec.structs.replace(about, roles=roles))


def _check_options(call: Call) -> None:
    mechanisms = call.body.get("mechanisms", [Mechanism.SHA_256])
    if mechanisms != [Mechanism.SHA_256]:
        raise CommandFailed(2, f"mechanisms. expected=['{Mechanism.SHA_256}'] got={mechanisms!r}")
    if not call.flag("digestPassword", True):
        raise CommandFailed(2, "digestPassword must be true: passwords are digested by the server")
    if call.body.get("authenticationRestrictions"):
        raise CommandFailed(238, "the option 'authenticationRestrictions' is not supported")


def _custom(call: Call) -> bytes | None:
    if "customData" not in call.body:
        return None
    custom = encode_document(call.document("customData"))
    if len(custom) > CUSTOM_BYTES_MAX:
        raise CommandFailed(2, f"customData. expected=at most {CUSTOM_BYTES_MAX} bytes")
    return custom


def _roles(call: Call, listed: Any) -> tuple[tuple[str, str], ...]:
    """Roles as they are given: a name, of this database, or a document of role and db."""
    if not isinstance(listed, list):
        raise wrong_type(call.name, "roles", listed, "array")
    if len(listed) > ROLES_MAX:
        raise CommandFailed(2, f"roles. expected=at most {ROLES_MAX} got={len(listed)}")
    found: dict[tuple[str, str], None] = {}
    for each in listed:
        role = each if isinstance(each, str) else each.get("role") if isinstance(each, Mapping) else None
        database = each.get("db") if isinstance(each, Mapping) else call.database
        # To us `*` would be every database.
        if not isinstance(role, str) or not isinstance(database, str) or database in ("", "*"):
            raise CommandFailed(2, f"a role is a name, or a document of role and db. got={each!r}")
        if role not in _OF_A_DATABASE and not (role in _OF_ALL and database == ADMIN):
            known = ", ".join([*_OF_A_DATABASE, *(f"{name}@{ADMIN}" for name in _OF_ALL)])
            raise CommandFailed(31, f"Could not find role: {role}@{database}. expected=one of {known}")
        found[role, database] = None
    return tuple(found)


def _rights(roles: Iterable[tuple[str, str]]) -> tuple[Role, tuple[str, ...]]:
    """What roles amount to. Raises where that is not one role for some databases."""
    held: dict[Role, dict[str, None]] = {}
    for role, database in roles:
        if role in _OF_ALL:
            held.setdefault(_OF_ALL[role], {})["*"] = None
        else:
            held.setdefault(_OF_A_DATABASE[role], {})[database] = None
    if Role.ADMIN in held:
        return Role.ADMIN, ("*",)
    writes, reads = held.get(Role.WRITER, {}), held.get(Role.READER, {})
    if "*" in writes:
        return Role.WRITER, ("*",)
    if not writes:
        return (Role.READER, ("*",) if "*" in reads else tuple(reads)) if reads else (Role.CLIENT, ())
    if reads.keys() - writes.keys():
        raise CommandFailed(
            238,
            f"a user has one role for all of its databases. expected=databases that are read are written as well "
            f"got=reads {', '.join(reads)} and writes {', '.join(writes)}",
        )
    return Role.WRITER, tuple(writes)
