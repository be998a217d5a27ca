"""`gb10 status`: what the box said beside what is planned, as JSON and as one screen."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import PyinfraError
from rich.console import Console

from gb10.commands import status as command
from gb10.facts.probes import box_status, drift_state, watch_state
from gb10.rendering import TOP
from gb10.status import status_json
from gb10.status_view import duration, status_view
from gb10.watch_config import Baseline
from tests.unit.boxes import box
from tests.unit.commands import gb10

BOX = box(memory_total_mib=122070)
NAME = BOX.catalogue.enabled[0].name
UNIT = {"active": "active", "enabled": "enabled", "result": "success", "restarts": 1, "seconds": 7200}


def model(name: str, state: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "failed": False, "holds": None, "requests": None,
            "tokens_per_second": None, "baseline": None, **values}  # fmt: skip


NIGHT = {"found": None, "age_seconds": None, "deploy_age_seconds": 3600, "result": "success"}


def said(**changes: Any) -> dict[str, Any]:
    status = {
        "state": "degraded", "since": "2026-01-01T00:00:00Z",
        "reasons": [{"text": "fast makes 13.0 tok/s, 33 % of its 40.0"}],
        "models": [
            model(NAME, "loaded", holds="it", requests=0, tokens_per_second=13.0, baseline=40.0),
            model("cpu", "loaded", holds=""), model("dead", "unloaded", failed=True),
        ],
        "probe": {"answer": "yes", "text": "GPU 0: NVIDIA GB10"},
        "actions": [
            {"at": "2026-01-01T00:00:00Z", "action": "restart", "target": "", "reason": "why"},
            {"at": "2026-01-01T00:01:00Z", "action": "restart", "target": "", "result": "it is back"},
        ],
        "watch": {"description": BOX.watch_description},
    }  # fmt: skip
    return {
        "uptime_seconds": 200_000, "lane": UNIT, "watch": UNIT | {"restarts": 0}, "image": BOX.image,
        "memory": {"total": 122_070, "available": 60_000}, "status": status, "status_age_seconds": 3,
        "router": None, "night": NIGHT, "deploy": None, **changes,
    }  # fmt: skip


def screen(found: dict[str, Any], width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(status_view("spark.local", found))
    return out.getvalue()


def test_a_watched_box() -> None:
    found = status_json(BOX, said())
    json.dumps(found)
    assert found["state"] == "degraded"
    assert found["image"]["same"] is True
    assert found["watch"]["described"] is True
    assert found["models"][0]["tokens_per_second"] == 13.0
    text = screen(found)
    expected = (
        "degraded", "33 % of its 40.0", "2 h 0 min", "1 restarts by systemd", BOX.image, "13.0", "ON THE CPU",
        "unloaded, failed", "it is back", "2 d 7 h", "60000 MiB",
    )  # fmt: skip
    for words in expected:
        assert words in text, words


def test_a_model_that_is_in_no_catalogue_has_no_plan_here() -> None:
    text = screen(status_json(BOX, said()), 300)
    assert "on the box and in no catalogue: cpu, dead; gb10 plan --on-box has their MiB" in text


def test_a_stale_baseline_is_named() -> None:
    answer = said()
    answer["status"]["models"][0]["baseline_stale"] = "another image"
    assert f"of something else: {NAME} (another image)" in screen(status_json(BOX, answer), 300)
    assert "of something else" not in screen(status_json(BOX, said()), 300)


def test_without_a_watch_the_baselines_are_those_of_the_file() -> None:
    whole = replace(BOX, baselines={NAME: Baseline(44.5)})
    answer = said(status=None, watch=UNIT | {"active": "inactive"}, router={"models": {NAME: "loaded"}})
    assert status_json(whole, answer)["models"][0]["baseline"] == 44.5


@pytest.mark.parametrize("name", ["a[/]b", "model [q4_k_m] x", "[link=file:///x]y", "[red]"])
def test_brackets_in_a_name_are_brackets(name: str) -> None:
    answer = said()
    answer["status"]["models"] = [model(name, f"loaded {name}")]
    answer["status"]["reasons"] = [{"text": f"{name} died"}]
    answer["status"]["actions"] = [{"at": name, "action": "unload", "target": name, "result": name}]
    answer["status"]["probe"] = {"answer": "no", "text": name}
    answer["image"] = f"image:{name}"
    text = screen(status_json(BOX, answer | {"router": {"error": name}}), 300)
    assert text.count(name) == 10


@pytest.mark.parametrize("width", [40, 80, 200])
def test_one_screen(width: int) -> None:
    lines = screen(status_json(BOX, said()), width).splitlines()
    assert max(len(line) for line in lines) <= width
    if width >= 80:
        assert len(lines) <= 40


def test_a_box_without_a_watch_says_so_and_shows_the_rest() -> None:
    answer = said(
        watch={"active": "inactive", "enabled": "", "result": "", "restarts": 0, "seconds": None},
        status=None, status_age_seconds=None, router={"error": "", "models": {NAME: "loaded"}},
    )  # fmt: skip
    found = status_json(BOX, answer)
    assert found["state"] == "unknown"
    assert found["watch"]["note"] == "not installed: run the deploy"
    assert found["models"][0]["state"] == "loaded"
    assert "not installed" in screen(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"watch": UNIT | {"active": "failed"}}, "failed: gb10 logs --watch says why"),
        ({"status_age_seconds": 90}, "it has not looked for a minute"),
    ],
)
def test_a_watch_that_does_not_look_is_not_believed(change: dict[str, Any], words: str) -> None:
    answer = said(router={"error": "connection refused", "models": {}}, **change)
    found = status_json(BOX, answer)
    assert found["state"] == "unknown"
    assert words in found["watch"]["note"]
    assert found["reasons"] == []
    assert "connection refused" in screen(found)
    assert found["actions"], "what it did is still true"


def odd(**changes: Any) -> dict[str, Any]:
    return said(status={**said()["status"], **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"state": "splendid"},
        {"state": None},
        {"state": []},
        {"reasons": 5},
        {"reasons": ["a text"]},
        {"models": [model("a", "loaded", tokens_per_second="fast")]},
        {"models": [model("a", "loaded", baseline=float("nan"))]},
        {"models": [model(5, "loaded")]},  # type: ignore[arg-type]
        {"models": [{"name": "a"}]},
        {"actions": ["restart"]},
        {"probe": {"answer": "yes"}},
        {"watch": 1},
    ],
)
def test_a_status_in_another_shape_is_said_and_the_rest_is_shown(change: dict[str, Any]) -> None:
    found = status_json(BOX, odd(**change))
    assert found["state"] == "unknown"
    assert found["watch"]["note"].startswith("what it has written has another shape (")
    text = screen(found, 160)
    assert "another shape" in text
    assert "60000 MiB" in text
    json.dumps(found, allow_nan=False)


def test_an_empty_status_is_none() -> None:
    assert status_json(BOX, said(status={}))["state"] == "unknown"


def test_another_image_and_another_watch_are_told() -> None:
    answer = said(image="gb10/llama-server:old")
    answer["status"]["watch"]["description"] = "old"
    text = screen(status_json(BOX, answer), 200)
    assert f"described: {BOX.image}" in text
    assert "another version than described" in text


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_a_lane_that_rests_is_never_green(active: str) -> None:
    healthy = {**said()["status"], "state": "healthy", "reasons": []}
    found = status_json(BOX, said(status=healthy, lane=UNIT | {"active": active}))
    assert (found["state"], found["reasons"]) == ("failed", [f"the unit is {active}"])
    assert f"systemctl start {BOX.unit} starts it" in screen(found, 160)
    # A deploy does that, and starts it again.
    at_work = said(status=healthy, lane=UNIT | {"active": active}, deploy={"who": "me", "since": "now"})
    assert status_json(BOX, at_work)["state"] == "healthy"


def test_no_container() -> None:
    assert "no container runs" in screen(status_json(BOX, said(image="")))


def test_durations() -> None:
    assert [duration(s) for s in (None, 5, 65, 3700, 90_000)] == ["?", "5 s", "1 min", "1 h 1 min", "1 d 1 h"]


def test_the_probe_on_a_box_that_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(box_status, "run", lambda *_: "")
    monkeypatch.setattr(box_status.importlib, "import_module", not_there)
    question = {
        "lane": "x",
        "status": "/nonexistent",
        "drift": "/nonexistent",
        "record": "/nonexistent",
        "programs": "/nonexistent",
        "lane_file": "/nonexistent",
        "lock": "/nonexistent",
    }
    answer = box_status.main(question)
    assert answer["status"] is None
    assert answer["router"] is not None
    found = status_json(BOX, answer)
    assert found["state"] == "unknown"
    assert found["router"] == "nothing is deployed here yet: run the deploy"


def test_a_lane_that_was_never_deployed() -> None:
    never = UNIT | {"active": "inactive", "enabled": "", "seconds": None}
    text = screen(status_json(BOX, said(lane=never)), 200)
    assert f"there is no {BOX.unit} on this box" in text
    assert "for ?" not in text


def test_a_deploy_that_is_under_way_is_shown() -> None:
    holder = {"who": "me@laptop (deploy)", "since": "2026-01-01 00:00:00 UTC"}
    text = screen(status_json(BOX, said(deploy=holder)), 200)
    assert "held by me@laptop (deploy), since 2026-01-01" in text
    assert "held by" not in screen(status_json(BOX, said()), 200)


def test_the_probe_finds_the_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = [sys.executable, "files/gb10_lock.py", "me@laptop (deploy)", "token", str(lock)]
    with subprocess.Popen(holder, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline()) == {"held": True}
        held = box_status.deploy_lock(str(lock))
        process.communicate()
    assert held
    assert held["who"] == "me@laptop (deploy)"
    assert box_status.deploy_lock(str(lock)) is None


SAID = {"watch": {"description": "x"}, "reasons": [{"key": "lane.stopped"}]}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.with_name("secret").write_text(json.dumps(SAID))
    path.symlink_to("secret")


@pytest.mark.parametrize(
    "put",
    [
        pipe,
        link,
        Path.mkdir,
        lambda path: path.write_text(json.dumps({**SAID, "more": "x" * (1 << 20)})),
        lambda path: path.write_text("[" * 100_000),
    ],
    ids=["pipe", "link", "folder", "huge", "deep"],
)
def test_what_another_user_puts_in_the_place_of_the_watchs_file(tmp_path: Path, put: Any) -> None:
    """Root reads it: it is neither held up nor led away."""
    path = tmp_path / "status.json"
    path.write_text(json.dumps(SAID))
    readers = box_status.object_of, watch_state.description, drift_state.stopped_by_watch
    assert [read(str(path)) for read in readers] == [SAID, "x", True]
    path.unlink()
    put(path)
    assert [read(str(path)) for read in readers] == [None, "", False]


WHEN = "2026-11-29 03:34:00 UTC"


def found(state: str, reason: str = "", **more: Any) -> dict[str, Any]:
    items = [{"item": "box: kernel", "was": "1", "is": "2"}] if state == "drift" else []
    return {"state": state, "time": WHEN, "reason": reason, "items": items, **more}


@pytest.mark.parametrize(
    ("night", "words"),
    [
        ({}, "not looked at itself yet"),
        ({"age_seconds": 60, "found": found("clean")}, f"none on {WHEN}"),
        ({"age_seconds": 60, "found": found("drift")}, f"1 difference on {WHEN}: box: kernel"),
        ({"age_seconds": 60, "found": found("drift", untold={})}, "notify_command did not take it"),
        (
            {"age_seconds": 60, "found": found("unknown", "no Docker")},
            f"could not tell: no Docker (last look on {WHEN}",
        ),
        # An old "clean", one that a later look did not get round to replace, and none at all are none.
        ({"age_seconds": 37 * 3600, "found": found("clean")}, "could not tell"),
        ({"age_seconds": 60, "found": found("clean"), "result": "exit-code"}, "could not tell"),
        ({"age_seconds": 60, "found": None}, "could not tell"),
        ({"age_seconds": 60, "found": {}}, "could not tell"),
        ({"result": "timeout"}, "gb10-drift.service ended with timeout"),
        ({"deploy_age_seconds": 37 * 3600}, "not looked at itself for 37 h (gb10 drift)"),
        ({"deploy_age_seconds": None}, "could not tell"),
    ],
)
def test_what_the_night_has_found(night: dict[str, Any], words: str) -> None:
    status = status_json(BOX, said(night={**NIGHT, **night}))
    assert words in screen(status, 200)
    assert status["drift"] is None or ("could not tell" in words) <= (status["drift"]["state"] == "unknown")


def test_the_probe_finds_the_last_night(tmp_path: Path) -> None:
    (tmp_path / "drift.json").write_text('{"state": "clean"}')
    question = dict.fromkeys(("status", "programs", "lane_file", "record", "lock"), "/nonexistent")
    night = box_status.main({"lane": "x", **question, "drift": str(tmp_path / "drift.json")})["night"]
    assert isinstance(night, dict)
    assert (night["found"], night["deploy_age_seconds"]) == ({"state": "clean"}, None)
    assert night["age_seconds"] < 60


class Going:
    """A box that is there, goes away and comes back: what each question and each connection meets."""

    name = "spark.local"

    def __init__(self, *met: Exception | None) -> None:
        self.met = list(met)

    @contextmanager
    def connected(self, *_: object) -> Iterator[Going]:
        self.meet()
        yield self

    def meet(self, *_: object) -> dict[str, str]:
        if error := self.met.pop(0):
            raise error
        return {"state": "healthy"}


def test_following_waits_for_a_box_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = PyinfraError("spark.local cannot be reached (no route)")
    box = Going(None, None, PyinfraError("the connection broke"), away, None, None)
    monkeypatch.setattr(command, "connected", box.connected)
    monkeypatch.setattr(command, "desired", lambda host: BOX)
    monkeypatch.setattr(command, "status_of", box.meet)
    seen = command.followed(Path("inventory.py"), None, 0)
    states = [next(seen) for _ in range(4)]
    assert [found["state"] for _, found in states] == ["healthy", "unreachable", "unreachable", "healthy"]
    assert {name for name, _ in states} == {"spark.local"}
    assert "no route" in screen(states[2][1])


def test_following_without_a_terminal_shows_each_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = [("spark.local", {"state": "unreachable", "reasons": [f"look {n}"]}) for n in (1, 2)]
    monkeypatch.setattr(command, "followed", lambda *_: iter(looks))
    monkeypatch.setattr(command, "connected", Going(PyinfraError("the end")).connected)
    _, output, _ = gb10(capsys, "status", "--follow")
    assert "look 1" in output
    assert "look 2" in output


def test_following_a_box_that_was_never_there_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "connected", Going(PyinfraError("no route")).connected)
    with pytest.raises(PyinfraError, match="no route"):
        next(command.followed(Path("inventory.py"), None, 0))
