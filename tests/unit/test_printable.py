"""What a box says cannot move the cursor of who reads it."""

from __future__ import annotations

import pytest

from gb10.faults import Fault
from gb10.printable import LINES, all_printable, printable


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
