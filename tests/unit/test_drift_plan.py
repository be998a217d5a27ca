"""What a deploy would do, read from its prepared operations."""

from __future__ import annotations

import io
from typing import Any

from pyinfra.api.command import FileUploadCommand, FunctionCommand, StringCommand
from pyinfra.api.config import Config
from pyinfra.api.inventory import Inventory
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state

from gb10.drift.plan import Planned, changes, shortened
from gb10.operations import placed

UPLOAD = f"{placed.UPLOAD}0123"


@operation()
def runs(*lines: str) -> Any:
    for line in lines:
        yield StringCommand(line)


def test_operations_that_would_change_something() -> None:
    state = State(Inventory((["@local"], {})), Config())  # type: ignore[no-untyped-call]
    (host,) = state.inventory
    with ctx_state.use(state), ctx_host.use(host):
        first = runs("reload", name="router: first")
        runs(name="router: nothing to do")
        # It would run only after the first one has: the first one is what differs.
        runs("restart", name="router: then", _if=first.did_change)
        found = changes(state, host)
    assert [(one.name, [str(command) for command in one.commands]) for one in found] == [
        ("router: first", ["reload"])
    ]


def planned(name: str, *commands: Any) -> Planned:
    return Planned(name, commands)


def test_the_stage_of_an_operation() -> None:
    assert planned("toolkit: keyring").stage == "toolkit"
    old = planned("old lane out: vllm-lane-a.service")
    assert (old.stage, old.id) == ("lanes", "lanes: old lane out: vllm-lane-a.service")


def test_the_file_that_an_operation_is_about() -> None:
    content = FileUploadCommand(io.BytesIO(b"new"), UPLOAD)
    into_place = StringCommand("sh", "-c", "'set -e'", "-", UPLOAD, "/etc/x", "0:0", "0644")
    writes = planned("router: presets", content, into_place)
    assert writes.target({"/etc/x", "/etc/y"}) == "/etc/x"
    assert writes.uploads == ["new"]
    assert planned("a: b", StringCommand("chmod", "0644", "/etc/x")).target({"/etc/x"}) == "/etc/x"
    # An argument of something else is not what it is about.
    assert planned("a: b", StringCommand("sh", "-c", "'apt'", "-", "/etc/x")).target({"/etc/x"}) is None


def test_commands_for_people() -> None:
    script = StringCommand("sh", "-c", "'a long\nscript'", "-", "/var/lib/gb10/retired", "/etc/x")
    assert shortened(script) == "script: /var/lib/gb10/retired /etc/x"
    aside = placed.set_aside("/var/lib/gb10/taken-over", ["/etc/x.conf", "/etc/y.conf"])
    assert shortened(aside) == "set aside below /var/lib/gb10/taken-over: /etc/x.conf /etc/y.conf"
    assert shortened(StringCommand("systemctl", "restart", "x")) == "systemctl restart x"
    assert shortened(FileUploadCommand(io.BytesIO(b""), UPLOAD)) == "upload"
    assert shortened(FunctionCommand(shortened, (), {})) == "shortened"
    moved = StringCommand("sh", "-c", "'set -e'", "-", UPLOAD, "/etc/x")
    assert shortened(moved) == "script: /etc/x"
