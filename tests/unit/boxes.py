"""Boxes for the tests: the one of the default inventory, with other data, and a host that answers facts."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

from pyinfra.api.command import FileUploadCommand, FunctionCommand, StringCommand
from pyinfra.context import ctx_host

from gb10.boxdata_source import assignments, read_box_data
from gb10.desired import Desired
from gb10.inventory import CONNECTION_KEYS, desired, load_inventory
from gb10.operations.going_back import ShellStep
from gb10.rendering import TOP

ALL_DATA = TOP / "group_data" / "all.py"


@cache
def _default() -> tuple[dict[str, Any], Desired]:
    (host,) = load_inventory(TOP / "inventory.py")
    return dict(host.data.dict()), desired(host)


def raw_data(**changes: Any) -> dict[str, Any]:
    """The data of the default inventory's box as pyinfra merges it; None takes a key away."""
    data = _default()[0] | changes
    return {key: value for key, value in data.items() if value is not None}


def box(**changes: Any) -> Desired:
    """The default inventory's box, with other data."""
    whole = _default()[1]
    if not changes:
        return whole
    places = assignments([ALL_DATA], TOP)
    data = read_box_data(
        raw_data(**changes), host="gb10.local", places=places, connection_keys=CONNECTION_KEYS
    )
    return Desired(data, whole.catalogue, whole.lock)


class FactHost:
    """A host that answers facts by their class: ``facts`` has the answer, or a function of the question."""

    name = "gb10.local"

    def __init__(self, facts: dict[type, Any]) -> None:
        self.facts = facts
        self.asked: list[tuple[type, dict[str, Any]]] = []
        self.said: list[str] = []

    def get_fact(self, fact: type, **question: Any) -> Any:
        self.asked.append((fact, question))
        answer = self.facts[fact]
        return answer(**question) if callable(answer) else answer

    def log(self, text: str, *_: Any, **__: Any) -> None:
        self.said.append(text)

    log_styled = log


def commands(operation: Any, facts: dict[type, Any], **arguments: Any) -> list[str]:
    """What an operation would run on a host with these facts, a text for each command."""
    with ctx_host.use(FactHost(facts)):
        return [described(command) for command in operation._inner(**arguments)]


def described(command: Any) -> str:
    """A command as one text: the shell line, ``upload CONTENT``, or ``call FUNCTION``."""
    if isinstance(command, FileUploadCommand):
        return f"upload {command.src.getvalue().decode()}"
    if isinstance(command, FunctionCommand):
        steps = [part for part in command.args if isinstance(part, ShellStep)]
        return str(steps[0].command) if steps else f"call {command.function.__name__}"
    assert isinstance(command, StringCommand)
    return str(command)


def verbs(ran: list[str]) -> list[str]:
    """Commands short enough to compare: the first words, or the verb that a script is given."""
    short = []
    for line in ran:
        words = shlex.split(line)
        short.append(" ".join(words[4:]) if words[:2] == ["sh", "-c"] else " ".join(words))
    return short
