"""One look for all who ask the same, as long as nothing has been changed."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from gb10.facts.drift import DriftState, foresee, lane_question, lane_state, path_state
from gb10.facts.files import PathReport
from gb10.facts.probe import LaneState
from gb10.facts.shared import look
from gb10.record import state_of
from tests.unit.boxes import FactHost
from tests.unit.boxes import box as default_box
from tests.unit.drifted import seen


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
    return Planning({LaneState: {"active": "active"}})


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


def test_many_paths_in_one_look() -> None:
    box = default_box()
    answer = seen(box, **{"router: API key": "0600 10103:10103 empty"})
    answer["files"][box.presets_path] = ""
    host = Planning({DriftState: answer})
    foresee(host, box)
    assert len(host.asked) == 1
    unit = look(host, PathReport, path=box.unit_file.path)
    assert unit is not None
    assert state_of(box.unit_file) == f"{unit.mode} {unit.owner} {unit.sha256}"
    assert look(host, PathReport, path=box.presets_path) is None
    key = look(host, PathReport, path=box.key_path)
    assert key is not None
    assert key.sha256 == hashlib.sha256(b"").hexdigest()
    assert len(host.asked) == 1


def test_a_secret_that_is_there_is_not_empty() -> None:
    state = path_state("0600 10103:10103")
    assert state is not None
    assert state.sha256 != hashlib.sha256(b"").hexdigest()


def test_a_host_without_a_state_is_asked_each_time() -> None:
    host = FactHost({LaneState: {}})
    look(host, LaneState, question={})
    look(host, LaneState, question={})
    assert len(host.asked) == 2


def test_the_lanes_state_comes_with_the_wider_look() -> None:
    box = default_box()
    host = Planning({DriftState: seen(box)})
    foresee(host, box)
    state = look(host, LaneState, question=lane_question(box))
    assert len(host.asked) == 1
    assert (state["active"], state["enabled"], state["needs_reload"]) == ("active", "enabled", False)
    assert (state["container_hash"], state["presets_read"]) == (box.lane_hash, box.presets_digest)
    assert state["presets_file"] == box.presets_digest
    assert state["key"] == {"mode": "0600", "owner": "10103:10103", "size": 1}
    none = seen(box, **{"router: container": None, "router: API key": ""})
    assert (lane_state(none, box)["container_hash"], lane_state(none, box)["key"]) == ("", None)
