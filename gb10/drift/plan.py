"""What a deploy would do to a box now: deploy.py itself, prepared by pyinfra and not executed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from pyinfra.api.command import FileUploadCommand, FunctionCommand, PyinfraCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State, StateStage

from gb10.desired import Desired
from gb10.facts.answer import LaneAnswer
from gb10.facts.shared import look
from gb10.operations import placed
from gb10.rendering import TOP
from gb10.stages import VARIABLE

DEPLOY = TOP / "deploy.py"


@dataclass(frozen=True)
class Planned:
    """An operation that would change something: its name, and what it would run."""

    name: str
    commands: tuple[PyinfraCommand, ...]

    @property
    def stage(self) -> str:
        return "lanes" if self.name.startswith("old lane out") else self.name.partition(":")[0]

    @property
    def uploads(self) -> list[str]:
        """Contents of the files that it would put on the box."""
        return [
            command.src.getvalue().decode(errors="replace")
            for command in self.commands
            if isinstance(command, FileUploadCommand) and isinstance(command.src, BytesIO)
        ]

    @property
    def id(self) -> str:
        """Its name, which begins with its stage."""
        return self.name if self.name.startswith(f"{self.stage}:") else f"{self.stage}: {self.name}"

    def target(self, paths: Collection[str]) -> str | None:
        """Which of ``paths`` it puts into place, or gives another owner or mode; None for other
        operations."""
        for command in self.commands:
            words = _split(str(command))
            sets = words[:1] in (["chown"], ["chmod"], ["mkdir"]) or any(_is_upload(word) for word in words)
            found = [word for word in words if word in paths]
            if sets and found:
                return found[-1]
        return None


def planned(state: State, host: Host, deploy: Path = DEPLOY) -> tuple[Desired, list[Planned]]:
    """``deploy`` prepared for ``host``, which must be connected, in the current context.

    The description that it deploys (with the models that were found on the box), and the operations that
    would change something. Raises `BadInput` where it would refuse, PyinfraError where a fact fails.
    """
    if state.current_stage < StateStage.Prepare:
        state.set_stage(StateStage.Prepare)
    namespace: dict[str, Any] = {"__file__": str(deploy), "__name__": "deploy"}
    with _all_stages():
        exec(compile(deploy.read_text(), str(deploy), "exec"), namespace)  # noqa: S102  (our own deploy.py)
        box: Desired = namespace["box"]
        found = changes(state, host)
    if _is_idle(host, box):
        # No model is loaded since nobody has asked for one: nothing differs from the description.
        found = [one for one in found if one.stage != "verify"]
    return box, found


def changes(state: State, host: Host) -> list[Planned]:
    """The operations that were prepared for ``host`` and would change something, in their order."""
    return [
        Planned(_name(state, operation), tuple(data.command_generator()))
        for operation in host.op_hash_order
        if (data := state.ops[host].get(operation)) is not None
        # What only runs after another operation has changed something is counted by that one.
        and not data.global_arguments.get("_if")
        and data.operation_meta.will_change
    ]


def _is_idle(host: Host, box: Desired) -> bool:
    program = box.program_files["gb10_router.py"].path
    return look(host, LaneAnswer, program=program, lane=box.lane_path).state == "idle"


def _name(state: State, operation: str) -> str:
    return sorted(state.op_meta[operation].names)[0]


@contextmanager
def _all_stages() -> Iterator[None]:
    kept = os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[VARIABLE] = kept


def shortened(command: PyinfraCommand) -> str:
    """A command for people: a script by its arguments, and what is set aside by where it is kept."""
    if isinstance(command, FileUploadCommand):
        return "upload"
    if isinstance(command, FunctionCommand):
        # What it is about is among its arguments, or its name says it.
        said = [argument for argument in command.args if isinstance(argument, str)]
        return " ".join(said) or command.function.__name__.strip("_")
    # The name of an upload is another one each time.
    words = [word for word in _split(str(command)) if not _is_upload(word)]
    if words[:3] == ["sh", "-c", placed.SET_ASIDE]:
        folder, *paths = words[4:]
        return f"set aside below {folder}: {' '.join(paths)}"
    if words[:2] == ["sh", "-c"] and len(words) > 3:
        return "script: " + " ".join(words[4:])
    return " ".join(words)


def _is_upload(word: str) -> bool:
    return word.startswith(placed.UPLOAD)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
