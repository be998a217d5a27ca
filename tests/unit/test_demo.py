"""What the demo tells its reader to type."""

from __future__ import annotations

import shlex

import click
import pytest

from gb10.cli import cli
from tests.lab import __main__ as lab
from tests.lab import demo, paths


def test_a_command_is_shown_as_it_is_typed() -> None:
    shown = demo.typed(f"{paths.REPOSITORY}/.venv/bin/gb10", "chat", "Say something.")
    assert shown == ".venv/bin/gb10 chat 'Say something.'"


@pytest.mark.parametrize("line", demo.look_around("demo"))
def test_what_the_demo_leaves_to_type_is_understood(line: str) -> None:
    """As far as that goes without a host: the program is there, and so are its verb and its options."""
    program, *words = shlex.split(line, comments=True)
    group: click.Group = cli
    if program == ".venv/bin/python":
        assert words[:2] == ["-m", "tests.lab"]
        group, words = lab.main, words[2:]
    assert program.startswith(".venv/bin/")
    command = group.get_command(click.Context(group), words[0])
    assert command
    command.make_context(words[0], words[1:])
