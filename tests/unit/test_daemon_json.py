"""daemon.json: what is wanted goes in, everything else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gb10.daemon_json import merge, merged_text
from gb10.faults import BadInput

WANTED = {"features": {"cdi": True}}


@pytest.mark.parametrize("text", [None, "", "  \n", "{}"])
def test_nothing_there(text: str | None) -> None:
    assert json.loads(merged_text("box", text, WANTED)) == WANTED


def test_what_an_administrator_wrote_is_kept() -> None:
    there = {
        "data-root": "/data/docker",
        "features": {"buildkit": True},
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
        "log-opts": {"max-size": "10m"},
    }
    merged = json.loads(merged_text("box", json.dumps(there), WANTED))
    assert merged == there | {"features": {"buildkit": True, "cdi": True}}


@pytest.mark.parametrize(
    ("current", "wanted", "merged"),
    [
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 2}}}, {"a": {"b": {"c": 1, "d": 2}}}),
        ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
        ({"a": {"b": 2}}, {"a": 1}, {"a": 1}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {}, {"a": 1}),
        ({"features": {"cdi": False}}, WANTED, WANTED),
    ],
)
def test_merge(current: dict[str, Any], wanted: dict[str, Any], merged: dict[str, Any]) -> None:
    before = json.dumps(current)
    assert merge(current, wanted) == merged
    assert json.dumps(current) == before


@pytest.mark.parametrize(
    "text",
    [
        '{"features":{"cdi":true}}',
        '{ "features" : {"cdi": true},\n\t"a":1}',
        '\n\n{"features": {"cdi": true}}',
    ],
)
def test_a_text_that_says_it_already_stays_to_the_letter(text: str) -> None:
    assert merged_text("box", text, WANTED) == text


def test_twice_is_the_same() -> None:
    once = merged_text("box", '{"a": {"b": 1}}', WANTED)
    assert merged_text("box", once, WANTED) == once


@pytest.mark.parametrize(
    "text", ['{"a": 1,}', "[]", '"text"', "features:\n  cdi: true", '{"a": 1} trailing', "null"]
)
def test_what_docker_cannot_read_is_nothing_to_overwrite(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        merged_text("box", text, WANTED)
    (fault,) = caught.value.faults
    assert str(fault).startswith("box:/etc/docker/daemon.json: not valid JSON (")
    assert "\n" not in str(fault)
