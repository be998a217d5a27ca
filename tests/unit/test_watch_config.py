"""What the watch is told, its units, and the stage that puts them there."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gb10_watch import settings_of
from gb10_watch_hand import judge_probe

from gb10 import watch_config
from gb10.facts.files import PathReport
from gb10.facts.probe import WatchState
from gb10.faults import BadInput
from gb10.rendering import TOP
from gb10.stages import watch
from gb10.watch_config import Baseline, read_baselines
from tests.unit.boxes import box, commands, verbs

BOX = box()
WATCH, HAND, SOCKET = watch_config.UNITS


def unit(**changes: Any) -> str:
    (text,) = [placed.content for placed in box(**changes).watch_files if placed.path.endswith(WATCH)]
    return text


# -- what it is told ------------------------------------------------------------------------------------


def test_every_key_of_the_data_is_told() -> None:
    changes = {
        "watch_interval_seconds": 7, "watch_probe": ["probe"], "watch_probe_expect": "there",
        "watch_probe_seconds": 11, "watch_processes": ["list"], "watch_processes_allowed": ["python"],
        "watch_rivals": ["rival"], "watch_kernel_log": "/var/log/kernel", "watch_memory_reserve_mib": 1234,
        "watch_pressure_percent": 12.5, "watch_slow_ratio": 0.25, "watch_canary_seconds": 0,
        "watch_canary_tokens": 64, "watch_actions": ["unload"], "watch_restarts_an_hour": 1,
        "watch_backoff_seconds": 2, "watch_crash_restarts": 3, "watch_settle_seconds": 4,
        "watch_clear_seconds": 5, "notify_command": ["tell"], "watch_webhook_file": "/etc/gb10/hook",
    }  # fmt: skip
    before = json.loads(BOX.watch_files[0].content)
    after = json.loads(box(**changes).watch_files[0].content)
    text = json.dumps(after)
    for value in (
        "probe",
        "there",
        11,
        "list",
        "python",
        "rival",
        "/var/log/kernel",
        1234,
        12.5,
        0.25,
        "tell",
    ):
        assert json.dumps(value) in text
    assert after["settings"] != before["settings"]
    assert after["settings"]["actions"] == ["unload"]
    assert after["webhook"] is True
    assert "/etc/gb10/hook" not in text, "the unit names it, the watch reads its credential"


def test_the_program_takes_the_settings_as_they_are_told() -> None:
    settings = settings_of(json.loads(BOX.watch_files[0].content))
    assert settings.reserve_mib == 6144
    assert settings.actions == {"restart-lost", "restart-hung", "unload", "stop-crash-loop"}


def test_a_model_that_is_off_or_made_at_home_is_not_missed() -> None:
    files = json.loads(BOX.watch_files[0].content)["model_files"]
    wanted = {one.name for one in BOX.catalogue.enabled if one.file is not None and one.conversion is None}
    assert set(files) == wanted
    assert all(path.startswith("/srv/models/") for path in files.values())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("watch_interval_seconds", 0, "too small"),
        ("watch_probe", [], "is empty"),
        ("watch_probe_expect", "(", "must be a regular expression"),
        ("watch_rivals", ["["], "must be a regular expression"),
        ("watch_slow_ratio", 1, "should be less than 1"),
        ("watch_actions", ["reboot"], "correct the value"),
        ("watch_memory_reserve_mib", 20000, "more than memory_reserve_mib"),
        ("watch_webhook_file", "hook", "must be an absolute path"),
        ("notify_command", "mail", "is not a list"),
        ("watch_intervall_seconds", 5, "did you mean 'watch_interval_seconds'"),
    ],
)
def test_wrong_data_is_refused(key: str, value: object, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        box(**{key: value})
    assert words in str(caught.value)
    assert key in str(caught.value)


# -- baselines --------------------------------------------------------------------------------------------

GOOD = {"version": 1, "models": {"a": {"tokens_per_second": 44.5, "spread": 0.5, "image": "x:1",
                                       "presets": "0" * 64, "measured": "2026-01-01T00:00:00Z"}}}  # fmt: skip


def test_baselines(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    assert read_baselines(path, "box.json") == {}
    path.write_text(json.dumps(GOOD))
    assert read_baselines(path, "box.json") == {"a": Baseline(44.5, "x:1", "0" * 64)}
    path.write_text('{"version": 1, "models": {"a": {"tokens_per_second": 3}}}')
    assert read_baselines(path, "box.json") == {"a": Baseline(3.0)}


def test_a_baseline_of_something_else_is_stale() -> None:
    baseline = Baseline(44.5, "x:1", "0" * 64)
    assert baseline.stale("x:1", "0" * 64) == ""
    assert baseline.stale("x:2", "0" * 64) == "another image"
    assert baseline.stale("x:1", "1" * 64) == "other presets"
    assert baseline.stale("x:2", "1" * 64) == "another image and other presets"
    assert baseline.stale("x:1", None) == "", "not known here"
    assert Baseline(44.5).stale("x:2", "1" * 64) == "", "made by hand"


def test_the_watch_is_told_what_a_baseline_was_measured_with() -> None:
    told = watch_config.watch_config(
        BOX.data, BOX.catalogue, {"a": Baseline(44.5, "x:1", "0" * 64)}, "lane.json"
    )
    assert told["settings"]["baselines"] == {"a": 44.5}
    assert told["measured"] == {"a": {"image": "x:1", "presets": "0" * 64}}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "models": {}}', '{"version": 1, "models": []}',
     '{"version": 1, "models": {"a": {}}}', '{"version": 1, "models": {"a": {"tokens_per_second": "x"}}}',
     '{"version": 1, "models": {"a": {"tokens_per_second": 0}}}',
     '{"version": 1, "models": {"a": {"tokens_per_second": NaN}}}'],
)  # fmt: skip
def test_baselines_that_are_none_are_a_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "box.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"box\.json"):
        read_baselines(path, "box.json")


# -- the units --------------------------------------------------------------------------------------------


def test_the_watch_has_the_least_rights() -> None:
    text = unit()
    assert "User=10103\n" in text
    assert "CapabilityBoundingSet=CAP_SYSLOG\n" in text
    assert "IPAddressDeny=any\n" in text
    assert "LoadCredential" not in text
    assert "CapabilityBoundingSet=\n" in unit(watch_kernel_log="/run/kernel.log")


def test_the_probe_opens_what_cuda_opens(tmp_path: Path) -> None:
    # nvidia-smi answers as if nothing were wrong without it, and cuInit fails.
    (shell, option, script) = BOX.data.watch_probe
    assert "/dev/nvidia-uvm" in script
    assert script.endswith("nvidia-smi -L")
    node, tool = tmp_path / "nvidia-uvm", tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho GPU 0: NVIDIA GB10\n")
    tool.chmod(0o755)
    line = [
        shell,
        option,
        script.replace("/dev/nvidia-uvm", str(node / "uvm")).replace("nvidia-smi", str(tool)),
    ]
    lost = subprocess.run(line, capture_output=True, text=True, check=False)
    said = judge_probe(lost.returncode, lost.stdout + lost.stderr, BOX.data.watch_probe_expect)
    assert said["answer"] == "no"
    node.mkdir()
    (node / "uvm").touch()
    there = subprocess.run(line, capture_output=True, text=True, check=False)
    assert judge_probe(there.returncode, there.stdout, BOX.data.watch_probe_expect)["answer"] == "yes"


def test_the_hand_keeps_its_count_in_a_folder_of_root() -> None:
    (text,) = [placed.content for placed in BOX.watch_files if placed.path.endswith(HAND)]
    assert "RuntimeDirectory=gb10-watch-hand\nRuntimeDirectoryMode=0700\n" in text
    assert "RuntimeDirectoryPreserve=yes\n" in text
    config = json.loads(BOX.watch_files[0].content)
    assert config["restarts_file"] == "/run/gb10-watch-hand/restarts.json"
    assert re.search(config["devices"]["expect"], "Available devices:\n  CUDA0: NVIDIA GB10 (1 MiB)")
    assert not re.search(config["devices"]["expect"], "Available devices:\n  CUDA01: x\n  (none)")


def test_with_a_webhook_it_may_reach_out_and_the_url_stays_roots() -> None:
    text = unit(watch_webhook_file="/etc/gb10/webhook")
    assert "LoadCredential=webhook:/etc/gb10/webhook\n" in text
    assert "IPAddressDeny" not in text


def test_a_command_that_is_told_may_reach_out_too() -> None:
    text = unit(notify_command=["mail", "me"])
    assert "IPAddressDeny" not in text
    assert "LoadCredential" not in text


def test_any_change_is_another_description() -> None:
    assert BOX.watch_description in unit()
    others = [{"watch_slow_ratio": 0.4}, {"lane_port": 10104}, {"watch_webhook_file": "/etc/gb10/webhook"}]
    found = {BOX.watch_description, *(box(**change).watch_description for change in others)}
    assert len(found) == 4


def test_all_programs_of_the_watch_are_put_there() -> None:
    there = {path.name for path in (TOP / "files").glob("gb10_watch*.py")}
    assert there == set(watch_config.PROGRAMS)
    # They import nothing but each other and what Python brings.
    for name in watch_config.PROGRAMS:
        for line in (TOP / "files" / name).read_text().splitlines():
            if line.startswith(("import gb10", "from gb10")):
                assert f"{line.split()[1]}.py" in (*watch_config.PROGRAMS, "gb10_router.py")


# -- the stage --------------------------------------------------------------------------------------------


def good() -> dict[str, Any]:
    files = [*(BOX.program_files[name] for name in watch_config.PROGRAMS), *BOX.watch_files]
    paths: dict[str, Any] = {
        placed.path: {
            "mode": placed.mode,
            "owner": placed.owner,
            "sha256": hashlib.sha256(placed.content.encode()).hexdigest(),
        }
        for placed in files
    }
    paths["/var/lib/gb10/watch"] = {"mode": "0755", "owner": "10103:10103", "sha256": ""}
    units = {
        name: {"active": "active", "enabled": "enabled", "needs_reload": False} for name in watch_config.UNITS
    }
    return {"paths": paths, "units": units, "user": True, "description": BOX.watch_description}


def settled(state: dict[str, Any]) -> list[str]:
    return verbs(commands(watch.settled, {WatchState: state}, box=BOX))


def test_a_settled_watch() -> None:
    assert commands(watch.files, {WatchState: good()}, box=BOX) == []
    assert settled(good()) == []


def test_only_the_file_that_differs_is_written() -> None:
    state = good()
    state["paths"]["/etc/gb10/watch.json"]["sha256"] = "another"
    ran = commands(watch.files, {WatchState: state, PathReport: None}, box=BOX)
    assert len(ran) == 2
    assert "/etc/gb10/watch.json" in ran[1]


def test_the_folder_belongs_to_the_watch() -> None:
    state = good()
    state["paths"]["/var/lib/gb10/watch"] = None
    assert commands(watch.files, {WatchState: state}, box=BOX) == [
        "mkdir -p /var/lib/gb10/watch",
        "chown 10103:10103 /var/lib/gb10/watch",
        "chmod 0755 /var/lib/gb10/watch",
    ]


@pytest.mark.parametrize("change", [{"description": "another"}, {"description": ""}])
def test_a_watch_that_runs_with_something_else_is_restarted(change: dict[str, str]) -> None:
    assert settled(good() | change) == [WATCH]


def test_a_watch_that_is_not_there() -> None:
    state = good() | {"user": False, "description": ""}
    for name in watch_config.UNITS:
        state["units"][name] = {"active": "inactive", "enabled": "", "needs_reload": False}
    assert settled(state) == [
        "systemd-sysusers /etc/sysusers.d/gb10-watch.conf", f"systemctl enable --quiet {SOCKET}",
        f"systemctl enable --quiet {WATCH}", f"systemctl stop {HAND}", f"systemctl restart {SOCKET}", WATCH,
    ]  # fmt: skip


def test_a_watch_that_was_stopped_is_started() -> None:
    state = good()
    state["units"][WATCH]["active"] = "failed"
    assert settled(state) == [WATCH]


def test_a_changed_unit_is_read_again() -> None:
    state = good() | {"description": "another"}
    state["units"][WATCH]["needs_reload"] = True
    assert settled(state) == ["systemctl daemon-reload", WATCH]
