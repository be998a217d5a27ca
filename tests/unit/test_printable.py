"""What a box says cannot move the cursor of who reads it."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from gb10.commands import image, rollback, status
from gb10.facts.docker import Generations, Images
from gb10.faults import Fault
from gb10.image_view import image_table
from gb10.printable import LINES, all_printable, printable
from gb10.status_view import status_view
from tests.unit.boxes import FactHost, box
from tests.unit.test_status import said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain - tëxt ✓ 👩‍💻", "plain - tëxt ✓ 👩‍💻"),
        ("\x1b[1A\x1b[2Kclean", "\\x1b[1A\\x1b[2Kclean"),
        ("a\rb\x07\x7f", "a\\x0db\\x07\\x7f"),
        ("\x9b2K", "\\x9b2K"),
        ("a\n\tb", "a\\x0a\\x09b"),
        ("\u202eneerg", "\\u202eneerg"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_named(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


def test_lines_stay_where_they_are_wanted() -> None:
    assert printable("a\n\tb\x1b", LINES) == "a\n\tb\\x1b"


def test_a_whole_answer() -> None:
    answer = {"a\x1b": ["b\x1b", 1, None, {"c": "\x07\n"}]}
    assert all_printable(answer) == {"a\\x1b": ["b\\x1b", 1, None, {"c": "\\x07\n"}]}


def test_a_fault_is_one_line() -> None:
    fault = Fault("box", "port 1 is held by process \x1b[2K\nall is well", "stop it")
    assert str(fault) == "box: port 1 is held by process \\x1b[2K\\x0aall is well: stop it"


# -- tables ------------------------------------------------------------------------------------------------

BOX = box()
NASTY = "\x1b[1A\x1b[2K\x9b[/red]"
GENERATIONS = {
    "current": 1,
    "installed": "",
    "going_to": 0,
    "damaged": [],
    "generations": [{"number": 1, "image": NASTY, "kept": NASTY, "digest": "d"}],
    "changes": [{"what": "back", "time": NASTY, "number": 1, "why": NASTY, "answered": True}],
}


def harmless(shown: str) -> None:
    assert "\\x1b[1A" in shown
    assert not {"\x1b", "\x9b"} & set(shown)


def test_the_status_table() -> None:
    reason = {"text": NASTY}
    answer = said(image=NASTY)
    answer["status"] |= {"reasons": [reason], "actions": [{"at": NASTY, "action": NASTY, "result": NASTY}]}
    answer["status"]["models"][0]["name"] = NASTY
    items = [{"item": NASTY}]
    found = {"state": "drift", "time": NASTY, "items": items}
    answer["night"] = {**answer["night"], "age_seconds": 1, "found": found}
    output = SimpleNamespace(stdout_lines=[json.dumps(answer)], stderr_lines=[])
    host: Any = SimpleNamespace(name="box", run_shell_command=lambda *_, **__: (True, output))
    out = io.StringIO()
    Console(file=out, width=300).print(status_view("box", status.status_of(host, BOX)))
    harmless(out.getvalue())


def test_the_table_of_images() -> None:
    images = [{"image": NASTY, "id": "1", "size": 1, "created": NASTY, "used_by": [NASTY], "proof": None}]
    host: Any = FactHost({Images: images, Generations: GENERATIONS})
    found, known = image._looked(host, BOX, whole=False)
    out = io.StringIO()
    Console(file=out, width=300).print(image_table(found, BOX, known))
    harmless(out.getvalue())


def test_the_table_of_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connected(*_: object) -> Any:
        yield FactHost({Generations: GENERATIONS})

    monkeypatch.setattr(rollback, "connected", connected)
    monkeypatch.setattr(rollback, "desired", lambda _: BOX)
    done = CliRunner().invoke(rollback.rollback, ["--list"])
    assert done.exit_code == 0, done.output
    harmless(done.output)
