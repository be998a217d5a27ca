"""One look for all who ask the same, as long as nothing has been changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gb10.facts.files import PathReport, PathState
from gb10.facts.probe import LaneState
from gb10.facts.shared import PathReports, foresee, look
from tests.unit.boxes import FactHost

STATE = {"kind": "regular file", "mode": "0644", "owner": "0:0", "sha256": "ab"}


class Planning(FactHost):
    """A host with a state, as pyinfra's own has."""

    def __init__(self, facts: dict[type, Any]) -> None:
        super().__init__(facts)
        self.connector_data: dict[str, Any] = {}
        self.operation = SimpleNamespace(is_complete=lambda: False, executed=False)
        operations = {self: {"one": SimpleNamespace(operation_meta=self.operation)}}
        self.state = SimpleNamespace(is_executing=False, ops=operations)

    def executed(self) -> None:
        self.operation.is_complete = lambda: True
        self.operation.executed = True


@pytest.fixture
def host() -> Planning:
    return Planning({LaneState: {"active": "active"}, PathReports: {"paths": {"/a": STATE, "/b": None}}})


def test_the_same_question_is_asked_once(host: Planning) -> None:
    for _ in range(3):
        assert look(host, LaneState, question={"unit": "a"}) == {"active": "active"}
    assert len(host.asked) == 1
    look(host, LaneState, question={"unit": "b"})
    assert len(host.asked) == 2


def test_an_operation_that_ran_something_ends_what_was_known(host: Planning) -> None:
    look(host, LaneState, question={})
    host.operation.is_complete = lambda: True  # without a command: nothing was changed
    look(host, LaneState, question={})
    assert len(host.asked) == 1
    host.executed()
    look(host, LaneState, question={})
    assert len(host.asked) == 2


def test_what_the_plan_saw_is_not_what_the_deploy_acts_on(host: Planning) -> None:
    look(host, LaneState, question={})
    host.state.is_executing = True
    look(host, LaneState, question={})
    assert len(host.asked) == 2


def test_many_paths_in_one_look(host: Planning) -> None:
    foresee(host, ["/a", "/b", "/a"])
    foresee(host, ["/a"])
    assert look(host, PathReport, path="/a") == PathState(**STATE)
    assert look(host, PathReport, path="/b") is None
    assert host.asked == [(PathReports, {"question": {"paths": ["/a", "/b"]}})]


def test_a_host_without_a_state_is_asked_each_time() -> None:
    host = FactHost({LaneState: {}})
    look(host, LaneState, question={})
    look(host, LaneState, question={})
    foresee(host, ["/a"])
    assert len(host.asked) == 2
