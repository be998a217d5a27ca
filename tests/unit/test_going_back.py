"""A change that fails puts the last lane that answered back, and the deploy stays failed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import PyinfraError

from gb10.commands import rollback
from gb10.operations import going_back
from tests.unit.boxes import box

BACK = {
    "state": "back",
    "reason": "",
    "to": 3,
    "image": "x:1",
    "answer": {"state": "answered", "model": "m", "tokens_per_second": 9.0, "device": "CUDA0", "holder": "h"},
}


class Scripted:
    """A host whose commands have these outcomes, in this order."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.ran: list[str] = []
        self.said: list[str] = []

    def run_shell_command(self, command: StringCommand, **_: Any) -> tuple[bool, Any]:
        self.ran.append(str(command))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        ok, out, errors = outcome
        lines = SimpleNamespace(stdout_lines=out, stderr_lines=errors, stderr="\n".join(errors))
        return ok, lines

    def log_styled(self, text: str, **_: Any) -> None:
        self.said.append(text)


def guarded(*outcomes: Any, **data: Any) -> tuple[bool, Scripted]:
    host = Scripted(*outcomes)
    step = going_back.ShellStep(StringCommand("systemctl", "restart", "l.service"), 60)
    (command,) = going_back.commands(box(**data), "the restart", step)
    good = command.function(None, host, *command.args)
    assert host.outcomes == []
    return good, host


def said(state: dict[str, Any]) -> list[str]:
    good, host = guarded((False, [], ["no"]), (False, [json.dumps(state)], []))
    assert not good
    assert host.said[0] == "no"
    return host.said[1:]


def test_a_change_that_works_goes_nowhere() -> None:
    good, host = guarded((True, [], []))
    assert good
    assert host.ran == ["systemctl restart l.service"]
    assert host.said == []


def test_back_and_still_failed() -> None:
    first, second = said(BACK)
    assert first == "gone back to lane 3 (x:1): m answered with 9.0 tok/s on CUDA0 (h)"
    assert second.startswith("the deploy has failed")


def test_the_command_goes_back_only_from_what_has_not_answered() -> None:
    _, host = guarded((False, [], []), (True, [json.dumps(BACK)], []))
    program = "/usr/local/lib/gb10/gb10_generations.py"
    assert host.ran[1] == (
        f"python3 {program} /etc/llamacpp-playground/lane.json back --why 'the restart failed' --unverified"
    )


def test_one_that_does_not_answer_either() -> None:
    lines = said(BACK | {"state": "stuck", "reason": "no accelerator"})
    assert "which does not answer either: no accelerator" in lines[0]
    assert "the fault is not in the change" in lines[1]


def test_nowhere_to_go() -> None:
    assert said(BACK | {"state": "nothing", "reason": "no lane has answered yet"}) == [
        "not gone back: no lane has answered yet"
    ]


@pytest.mark.parametrize("outcome", [(False, [], ["sudo: no"]), (True, ["<html>"], []), OSError("reset")])
def test_an_outcome_that_is_not_known_is_said_so(outcome: Any) -> None:
    good, host = guarded((False, [], []), outcome)
    assert not good
    assert "going back is not known to have worked" in host.said[-1]


def test_its_reason_is_passed_on() -> None:
    for errors, words in (
        (["Traceback", "gb10: no space left"], "(gb10: no space left)"),
        ([], "(it gave no answer: the connection may be lost)"),
    ):
        _, host = guarded((False, [], []), (False, [], errors))
        assert words in host.said[-1]


def test_gb10_rollback_says_that_it_goes_on_there() -> None:
    for outcome in ((False, [], []), (False, [], ["sudo: no"]), OSError("reset"), (True, ["{}"], [])):
        host = Scripted(outcome)
        host.name = "spark"  # type: ignore[attr-defined]
        with pytest.raises(
            PyinfraError, match=r"^spark: going back is not known .* may go on there; run it again"
        ):
            rollback.go_back(host, box(), "")  # type: ignore[arg-type]


def kept(number: int, *differs: str, restarts: bool = False) -> dict[str, Any]:
    return {"number": number, "image": "x:b1-1", "differs": list(differs), "restarts": restarts}


def test_gb10_rollback_asks_with_what_it_will_do() -> None:
    lanes = [kept(1, "image", restarts=True), kept(2, "a: ctx-size = 4096"), kept(3)]
    known = {"generations": lanes, "next": 2}
    asked = "Go back on spark to lane 2 (a: ctx-size = 4096), without a restart while it runs?"
    assert rollback.question("spark", known, "") == asked
    assert rollback.question("spark", known, "1") == "Go back on spark to lane 1 (image), with a restart?"
    assert rollback.question("spark", known, "b1-1").startswith("Go back on spark to lane 3,")
    assert rollback.question("spark", known, "9") == "Go back on spark?"
    older = {"generations": [{"number": 1, "image": "x:1"}], "next": 0}
    assert rollback.question("spark", older, "") == "Go back on spark?"


def test_a_lane_with_many_differences_is_one_row() -> None:
    assert rollback.otherwise(kept(1, "a", "b")) == "a; b"
    assert rollback.otherwise(kept(1, *"abcdef")) == "a; b; c; d; and 2 more"
    assert rollback.otherwise({"number": 1}) == ""


def test_it_can_be_turned_off() -> None:
    good, host = guarded((False, [], ["no"]), rollback_on_failure=False)
    assert not good
    assert len(host.ran) == 1


def test_a_lost_connection_is_a_failed_step() -> None:
    good, host = guarded(OSError("reset"), OSError("reset"))
    assert not good
    assert host.said[0] == "connection lost (reset)"
