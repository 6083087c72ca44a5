"""The families of commands: importing one enters its commands into the table."""

from importlib import import_module

FAMILIES = (
    "hello",
    "reads",
    "explain",
    "writes",
    "modify",
    "transactions",
    "collections",
    "indexes",
    "aggregate",
    "admin",
    "users",
)


def load() -> None:
    """Enter every command."""
    for name in FAMILIES:
        import_module(f"mainstem.doors.mongo.commands.{name}")
