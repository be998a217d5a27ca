"""The lane's stage: what each state of the lane asks for, and that a deploy that was cut is finished."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gb10.facts.probe import LaneState
from gb10.stages import router
from tests.unit.boxes import box, commands, verbs

BOX = box()
GOOD_LANE = {
    "loaded": "loaded", "active": "active", "enabled": "enabled", "needs_reload": False,
    "container_hash": BOX.lane_hash, "presets_read": BOX.presets_digest, "presets_file": BOX.presets_digest,
    "key": {"mode": "0600", "owner": "10103:10103", "size": 44}, "key_newer": False,
    "models_newer": False,
}  # fmt: skip
RELOAD = "python3 /usr/local/lib/gb10/gb10_router.py /etc/llamacpp-playground/lane.json reload"
UNIT = "llamacpp-playground.service"
# A key from the future would be newer than any start.
TOUCH = "touch --no-create /etc/llamacpp-playground/api-key"


def settled(**state: Any) -> list[str]:
    return verbs(commands(router.settled, {LaneState: GOOD_LANE | state}, box=BOX))


def test_a_settled_lane() -> None:
    assert settled() == []


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"active": "inactive"}, [f"start {UNIT}"]),
        ({"active": "failed"}, [f"start {UNIT}"]),
        ({"active": "deactivating"}, [f"start {UNIT}"]),
        ({"container_hash": "other"}, [f"restart {UNIT}"]),
        ({"container_hash": ""}, [f"restart {UNIT}"]),  # no label: not our container
        ({"key_newer": True}, [TOUCH, f"restart {UNIT}"]),
        ({"models_newer": True}, [f"restart {UNIT}"]),
        ({"active": "activating", "container_hash": ""}, [f"restart {UNIT}"]),
        ({"active": "activating"}, []),
        ({"presets_read": "other"}, [RELOAD]),
        ({"presets_read": ""}, [RELOAD]),
        ({"active": "reloading", "presets_read": "other"}, [RELOAD]),
        ({"needs_reload": True}, ["systemctl daemon-reload"]),
        ({"enabled": "disabled"}, [f"systemctl enable --quiet {UNIT}"]),
        # A restart reads the presets anyway: never both.
        ({"container_hash": "other", "presets_read": "other"}, [f"restart {UNIT}"]),
        ({"active": "failed", "container_hash": "other", "presets_read": ""}, [f"start {UNIT}"]),
        (
            {"loaded": "not-found", "active": "inactive", "enabled": "", "container_hash": "",
             "presets_read": "", "key": None},
            [f"systemctl enable --quiet {UNIT}", f"start {UNIT}"],
        ),
        (
            {"needs_reload": True, "enabled": "disabled", "container_hash": "other"},
            ["systemctl daemon-reload", f"systemctl enable --quiet {UNIT}", f"restart {UNIT}"],
        ),
    ],
)  # fmt: skip
def test_lane_states(state: dict[str, Any], expected: list[str]) -> None:
    assert settled(**state) == expected


STATES = {
    "needs_reload": [True, False],
    "enabled": ["enabled", "disabled", ""],
    "active": ["active", "inactive", "failed", "activating"],
    "container_hash": [BOX.lane_hash, "", "other"],
    "presets_read": [BOX.presets_digest, "", "other"],
    "key_newer": [True, False],
    "models_newer": [True, False],
}


def after(state: dict[str, Any], ran: list[str]) -> dict[str, Any]:
    """The lane's state once these commands have run."""
    state = dict(state)
    for line in ran:
        if line == "systemctl daemon-reload":
            state["needs_reload"] = False
        elif line.startswith("systemctl enable"):
            state["enabled"] = "enabled"
        elif line == RELOAD:
            state["presets_read"] = BOX.presets_digest
        elif line == TOUCH:
            assert state["key_newer"]
        else:
            assert line in (f"start {UNIT}", f"restart {UNIT}")
            assert not state["needs_reload"], "systemd would start the old unit"
            state |= {"active": "active", "container_hash": BOX.lane_hash, "key_newer": False,
                      "models_newer": False, "presets_read": BOX.presets_digest}  # fmt: skip
    return state


def test_every_combination_ends_settled() -> None:
    """Wherever a deploy was cut: what the next one does brings the lane home, by one start at the most."""
    for values in product(*STATES.values()):
        state = GOOD_LANE | dict(zip(STATES, values, strict=True))
        ran = settled(**state)
        assert sum(line.startswith(("start", "restart")) for line in ran) <= 1, state
        assert settled(**after(state, ran)) == [], state


def with_reason(verb: str, folder: Path, *, fails: bool) -> subprocess.CompletedProcess[str]:
    scripts = {
        "systemctl": f'[ $1 = reset-failed ] && exit 1; echo "$@" >> {folder}/ran; exit {int(fails)}',
        "journalctl": "printf 'Starting\\nREFUSING to start x: no accelerator CUDA0\\nother\\n'",
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(["sh", "-c", router._WITH_REASON, "-", verb, UNIT], capture_output=True, text=True,
                          env={"PATH": f"{folder}:/usr/bin:/bin"}, check=False)  # fmt: skip


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    result = with_reason("start", tmp_path, fails=True)
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["REFUSING to start x: no accelerator CUDA0"]


def test_a_start_that_works_says_nothing(tmp_path: Path) -> None:
    result = with_reason("restart", tmp_path, fails=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (tmp_path / "ran").read_text() == f"restart {UNIT}\n"


def test_the_key_belongs_to_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, dict[str, Any]]] = []
    for name in ("file", "folder", "secret"):
        monkeypatch.setattr(
            router.placed, name, lambda name_=name, **arguments: called.append((name_, arguments))
        )
    monkeypatch.setattr(router, "settled", lambda **arguments: called.append(("settled", arguments)))
    for name in ("drop_ins", "container"):
        monkeypatch.setattr(router.corrections, name, lambda **_: None)
    router.serve(BOX)
    secrets = [arguments for name, arguments in called if name == "secret"]
    assert [(one["path"], one["owner"]) for one in secrets] == [
        ("/etc/llamacpp-playground/api-key", "10103:10103")
    ]
    # Everything lies there before the unit is started.
    assert called[-1][0] == "settled"
    paths = [arguments["placed"].path for name, arguments in called if name == "file"]
    assert paths[-1] == f"/etc/systemd/system/{UNIT}"
