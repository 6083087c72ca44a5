"""Every command there is, by a table: its help, where it asks, as what it prints, what it says when it fails."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mainstem.app.cli.main import main
from mainstem.app.cli.remote import table_path
from mainstem.app.cli.views import View, show

NOBODY = "http://127.0.0.1:1"
# What each command is typed with, after its name: enough to come as far as asking the server, or the folder.
ASKING = {
    "analyst as-of": ["shop.orders", "0"],
    "analyst blame": ["shop.orders", "k", "price"],
    "analyst changes": ["shop.orders", "0", "1"],
    "catalog branch": ["shop.orders", "b"],
    "catalog diff": ["shop.orders", "1", "2"],
    "catalog drop-ref": ["shop.orders", "b"],
    "catalog history": ["shop.orders"],
    "catalog list": [],
    "catalog rebuild": ["shop.orders", "--yes"],
    "catalog rollback": ["shop.orders", "1", "--yes"],
    "catalog show": ["shop.orders"],
    "catalog tag": ["shop.orders", "b"],
    "catalog verify": [],
    "dead-letters list": ["shop.orders"],
    "dead-letters replay": ["shop.orders", "--all"],
    "flush": [],
    "load": ["{folder}/rows.csv", "--table", "shop.orders", "--key", "id"],
    "status": [],
    "sync pull": ["todos", "--gateway", "team", "--db", "{folder}/copy.db"],
    "sync push": ["todos", "1", '{{"title": "tea"}}', "--gateway", "team", "--db", "{folder}/copy.db"],
    # Goes on trying, as it is for: the test of the door is tests/contract/test_sync_cli.
    "sync watch": [],
}
# They speak Kafka's protocol, so they ask at a Kafka door's address.
KAFKA = {
    "groups delete": ["g", "--yes"],
    "groups describe": ["g"],
    "groups list": [],
    "groups reset": ["g", "--topic", "t"],
    "topics create": ["t"],
    "topics delete": ["t", "--yes"],
    "topics describe": ["t"],
    "topics list": [],
}
FOLDERS = {
    "backup": ["{folder}/copy"],
    "migrate": ["--config", "{folder}/none.toml"],
    "relocate": [],
    "restore": ["{folder}/none"],
}
# They print a text that is made to be pasted, or are a server.
OTHERS = {"config", "demo", "key", "password", "serve", "token"}


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(main))


def options(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts}


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": "40", "MAINSTEM_TOKEN": ""})


def test_the_table_has_every_command() -> None:
    assert COMMANDS.keys() == ASKING.keys() | KAFKA.keys() | FOLDERS.keys() | OTHERS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_and_each_of_its_options_does(name: str) -> None:
    for flag in ("--help", "-h"):
        helped = run(*name.split(), flag)
        assert helped.exit_code == 0, helped.output
        assert "Usage" in helped.output
    command = COMMANDS[name]
    assert command.help
    for each in command.params:
        if isinstance(each, click.Option):
            assert each.help or each.metavar, f"{name}: {each.opts} has no help"


@pytest.mark.parametrize(
    ("typed", "meant"), [(["flsh"], "flush"), (["catalog", "lst"], "list"), (["statsu"], "status")]
)
def test_a_word_that_is_typed_wrong_is_answered_with_the_one_that_was_meant(typed: list[str], meant: str) -> None:
    wrong = run(*typed)
    assert wrong.exit_code == 2
    assert f"'{meant}'" in wrong.output


@pytest.mark.parametrize("group", ["analyst", "catalog", "dead-letters", "groups", "sync", "topics"])
def test_a_group_without_a_command_shows_its_commands(group: str) -> None:
    assert "Usage" in run(group).output


@pytest.mark.parametrize("name", ASKING)
def test_a_command_that_asks_a_server_takes_its_address_and_answers_in_json(name: str) -> None:
    assert {"--url", "--token", "--json"} <= options(COMMANDS[name])


@pytest.mark.parametrize("name", [*KAFKA, *FOLDERS])
def test_every_other_command_that_tells_something_answers_in_json(name: str) -> None:
    assert "--json" in options(COMMANDS[name])
    assert ("--bootstrap" if name in KAFKA else "--data") in options(COMMANDS[name])


def test_where_nobody_answers_one_line_says_who_was_asked(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,price\n1,2\n")
    for name, words in ASKING.items():
        if name == "sync watch":
            continue
        typed = [each.format(folder=tmp_path) for each in words]
        # After the command's name, and before it where it is one of a group's.
        places = [[*name.split(), *typed, "--url", NOBODY], [*name.split(), *typed, "--url", "127.0.0.1:1"]]
        if " " in name:
            group, command = name.split()
            places.append([group, "--url", NOBODY, command, *typed])
        for place in places:
            failed = run(*place)
            assert failed.exit_code != 0, place
            assert failed.exception is None or isinstance(failed.exception, SystemExit), (place, failed.exception)
            assert "http://127.0.0.1:1" in failed.output, (place, failed.output)


def test_where_no_kafka_door_answers_one_line_says_who_was_asked() -> None:
    for name, words in KAFKA.items():
        failed = run(*name.split(), *words, "--bootstrap", "127.0.0.1:1")
        assert failed.exit_code == 1, (name, failed.output)
        assert "127.0.0.1:1" in failed.output, failed.output


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    for name, words in FOLDERS.items():
        data = tmp_path / name / "no data"
        failed = run(name, *(each.format(folder=tmp_path) for each in words), "--data", str(data))
        assert failed.exit_code == 1, (name, failed.output)
        assert str(tmp_path) in failed.output, failed.output


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[server]\nport = ", "mainstem.toml"),
        ("[server]\nport = 'x'\n", "server.port"),
        ("[server]\nprot = 1\n", "prot"),
        ("[tables.'default.t']\nbukets = 1\n", "bukets"),
        ("[pipeline]\nload_from = ['exports']\n", "pipeline.load_from"),
    ],
)
def test_a_configuration_that_is_wrong_names_its_file_and_its_key(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "mainstem.toml"
    file.write_text(text)
    failed = run("serve", "--config", str(file), "--data", str(tmp_path / "data"))
    assert failed.exit_code == 1
    assert str(file) in failed.output and wanted in failed.output, failed.output


def test_a_table_without_a_namespace_is_in_the_default_one() -> None:
    assert table_path("orders") == table_path("default.orders") == "namespaces/default/tables/orders"
    for name in ("", ".orders", "shop.", "a..b"):
        with pytest.raises(click.BadParameter):
            table_path(name)


def test_ids_are_never_broken_over_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    view = View("snapshot", "time", "names", title="a title that is longer than the terminal is wide")
    view.add("8273645123098273645", 1_700_000_000_000, "x" * 50)
    show(view, View("nothing"))
    (title, _, line) = capsys.readouterr().out.splitlines()
    assert title.strip() == view.title
    assert line.split() == ["8273645123098273645", "2023-11-14", "22:13:20", "UTC", "x" * 50]
