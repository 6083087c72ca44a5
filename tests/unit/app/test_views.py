"""What commands print of rows that anybody may have written."""

import pytest

from mainstem.app.cli.views import View, show


@pytest.mark.parametrize("text", ["[/b]", "[bold]x[/bold]", "[link=http://x]y[/link]", ":smile:"])
def test_a_cell_is_shown_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View("key", "columns")
    view.add(text, {"a": [text]})
    show(view)
    shown = capsys.readouterr().out
    assert shown.split()[2] == text and f'["{text}"]' in shown


def test_no_cell_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    view = View("key")
    view.add("\x1b]0;mine\x07\x1b[2Jok\r\nnext\x9b31m")
    show(view)
    shown = capsys.readouterr().out
    assert shown.splitlines()[1:] == [r"\x1b]0;mine\x07\x1b[2Jok\x0d\x0anext\x9b31m"]
