"""The watch as a whole: look, judge, act, tell, with a router that answers and a hand that is not there."""

from __future__ import annotations

import errno
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gb10_watch as program
import gb10_watch_eyes as eyes
import gb10_watch_report as report
import gb10_watch_signals as signals
import pytest
from gb10_watch_memory import Told, remembered, to_remember
from gb10_watch_state import Action, History, Observation, Raised, Reason, Recovery, Unit, Verdict

from gb10.rendering import TOP
from gb10.watch_config import Baseline, watch_config
from tests.unit.boxes import box
from tests.unit.router_server import GOLDEN, KEY, Router, running, states
from tests.unit.watching import LOADED, Lane

METRICS = (GOLDEN / "child-metrics.txt").read_bytes()


@pytest.fixture
def router() -> Iterator[Router]:
    with running() as server:
        server.answers["GET /models"] = states(big="loaded", other="unloaded")
        server.answers["GET /metrics?model=big&autoload=false"] = METRICS
        yield server


@pytest.fixture
def watch(router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> program.Watch:
    monkeypatch.setattr(signals, "unit_of", lambda _: Unit(since=-1000.0, invocation="first"))
    (tmp_path / "key").write_text(KEY)
    whole = box()
    config = watch_config(whole.data, whole.catalogue, {"big": Baseline(40.0, "i:1", "p")}, whole.lane_path)
    config |= {
        "run": str(tmp_path), "folder": str(tmp_path), "socket": str(tmp_path / "no-hand"),
        "kernel_log": str(tmp_path / "kmsg"), "webhook_file": None, "model_files": {},
    }  # fmt: skip
    lane = {
        "lane": "llamacpp-playground", "host": "127.0.0.1", "port": router.port, "image": "i:1",
        "key_file": str(tmp_path / "key"), "presets": "/nonexistent/models.ini",
        "signal": {"kind": "file", "path": "/dev/nvidia-uvm"},
    }  # fmt: skip
    return program.Watch(config, lane)


def written(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "status.json").read_text())
    return found


def test_a_look(watch: program.Watch, tmp_path: Path) -> None:
    assert watch.look().state == "healthy"
    found = written(tmp_path)
    assert found["router"] == "answers"
    assert {model["name"]: model["state"] for model in found["models"]} == {
        "big": "loaded", "other": "unloaded",
    }  # fmt: skip
    assert found["memory"]["available"] > 0
    assert found["watch"]["looks"] == 1
    assert not list(tmp_path.glob("*.new"))


def test_a_stale_baseline_is_named_and_serves(
    watch: program.Watch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.look()
    assert written(tmp_path)["models"][0]["baseline_stale"] == ""
    watch.lane["image"] = "i:2"
    (tmp_path / "llamacpp-playground").mkdir()
    (tmp_path / "llamacpp-playground/presets.sha256").write_text("q  -\n")
    watch.eyes.run = str(tmp_path)
    watch.clock = lambda: time.monotonic() + 100
    watch.look()
    watch.look()
    (big, _) = written(tmp_path)["models"]
    assert (big["baseline"], big["baseline_stale"]) == (40.0, "another image and other presets")
    assert capsys.readouterr().out.count("the baseline of big is of another image and other presets") == 1


@pytest.mark.parametrize("answer", [b"<html>", (500, {"error": 1}), b"", b"{}"])
def test_a_router_that_talks_nonsense_ends_no_watch(
    watch: program.Watch, router: Router, tmp_path: Path, answer: Any
) -> None:
    router.answers["GET /models"] = answer
    for _ in range(3):
        watch.look()
    assert written(tmp_path)["models"] == []
    assert written(tmp_path)["router"] != "answers"


def test_a_router_that_hangs_holds_no_look_up(
    watch: program.Watch, router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eyes, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(eyes, "ROUTER_SECONDS", 0.5)
    free = threading.Event()
    router.answers["GET /models"] = lambda _: free.wait(10)
    began = time.monotonic()
    for _ in range(4):
        watch.look()
    assert time.monotonic() - began < 5
    assert "nothing in" in written(tmp_path)["router"]
    assert len([line for line in router.lines if line == "GET /models"]) == 1, "they are not piled up"
    free.set()


def test_a_model_that_is_busy_for_long_makes_no_look_long_and_no_router_silent(
    watch: program.Watch, router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.eyes._find_container = lambda: None  # type: ignore[method-assign]
    watch.look()
    monkeypatch.setattr(eyes, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(eyes, "ROUTER_SECONDS", 60.0)
    free = threading.Event()
    router.answers["GET /metrics?model=big&autoload=false"] = lambda _: free.wait(10)
    watch.look()
    free.set()
    assert written(tmp_path)["router"] == "answers"
    assert [model["state"] for model in written(tmp_path)["models"]] == ["loaded", "unloaded"]


def test_a_key_that_is_refused(watch: program.Watch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("another")
    watch.look()
    assert "401" in written(tmp_path)["router"]


@pytest.mark.parametrize(
    ("kind", "words"), [("gone", "No such file"), ("folder", "Is a directory"), ("none", "an API key")]
)
def test_a_key_that_cannot_be_read_is_no_silence_of_the_router(
    watch: program.Watch, tmp_path: Path, kind: str, words: str
) -> None:
    (tmp_path / "key").unlink()
    if kind == "folder":
        (tmp_path / "key").mkdir()
    elif kind == "none":
        (tmp_path / "key").write_text("")
    for second in range(100):
        watch.clock = lambda at=1000.0 + 5 * second: at  # type: ignore[misc]
        verdict = watch.look()
        assert not verdict.actions
    assert [reason.key for reason in verdict.reasons if reason.key.startswith("router")] == ["router.refuses"]
    assert words in written(tmp_path)["router"]
    assert str(tmp_path / "key") in written(tmp_path)["router"]


def test_a_watch_without_files_to_open_says_nothing_against_the_router(
    watch: program.Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(program.router, "model_states", full)
    for second in range(60):
        watch.clock = lambda at=1000.0 + 5 * second: at  # type: ignore[misc]
        verdict = watch.look()
        assert not verdict.actions
    assert "Too many open files" in written(tmp_path)["router"]
    assert "router.silent" not in [reason.key for reason in verdict.reasons]


@pytest.mark.parametrize(
    "name", ["x\\ud800", "x\\nMAINPID=1\\nWATCHDOG=trigger\\n<0>y", "\\x1b[2Jx", "a" * 5000, ""]
)
def test_a_hostile_name_is_only_a_name(
    watch: program.Watch,
    router: Router,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    failed = {"id": name, "status": {"value": "unloaded\n\ud800", "failed": True}}
    loaded = {"id": name + "2", "status": {"value": "loaded"}}
    router.answers["GET /models"] = {"data": [failed, loaded]}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        now = iter((1000.0, 1005.0))
        watch.clock = lambda: next(now)
        watch.look()
        assert watch.look().state == "degraded"
        lines = heard.recv(65536).decode().splitlines()
    assert [line.partition("=")[0] for line in lines] == ["READY", "WATCHDOG", "STATUS"]
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 1
    assert said.rstrip("\n").isprintable()
    assert len(written(tmp_path)["models"][0]["name"]) <= 200
    assert (tmp_path / "gb10.prom").read_text().isascii()


def test_an_action_is_recorded_before_and_after(watch: program.Watch, tmp_path: Path) -> None:
    watch.history = replace(watch.history, restarts=0)
    crash = Unit(since=-1000.0, invocation="first", restarts=6)
    signals.unit_of = lambda _: crash  # type: ignore[assignment]  # the fixture puts it back
    watch.look()
    for _ in range(50):
        watch.look()
        time.sleep(0.02)
        lines = [json.loads(line) for line in (tmp_path / "actions.jsonl").read_text().splitlines()]
        if len(lines) > 1:
            break
    assert [line["action"] for line in lines[:2]] == ["stop", "stop"]
    assert "crashed 6 times" in lines[0]["reason"]
    assert lines[0]["before"]["models"] == {"big": None}
    assert "No such file" in lines[1]["result"], "the hand is not there: that is said too"
    assert "after" in lines[1]
    assert written(tmp_path)["actions"][0]["action"] == "stop"


def full(path: str, text: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_files_that_cannot_be_written_blind_nobody_and_it_is_said_once(
    watch: program.Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signals, "holder_of", lambda *_: "")
    watch.eyes._find_container = lambda: None  # type: ignore[method-assign]
    watch.eyes.cgroup = "/x"
    monkeypatch.setattr(signals, "children_of", lambda *_: {"big": 7})
    monkeypatch.setattr(program, "write_file", full)
    actions = []
    for second in range(4):
        watch.clock = lambda at=1000.0 + 5 * second: at  # type: ignore[misc]
        actions += watch.look().actions
    assert [action.kind for action in actions] == ["restart"]
    said = capsys.readouterr().out
    assert said.count("cannot be written: No space left on device") == 3, "once for each file"
    monkeypatch.undo()
    watch.look()
    assert capsys.readouterr().out.count("can be written again") == 3
    assert written(tmp_path)["watch"]["looks"] == 5


def test_an_action_is_counted_before_it_begins(
    watch: program.Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(watch, "_begin", dies)
    now = watch.clock()
    verdict = replace(
        program.judge(watch.history, Observation(now, Unit()), watch.settings),
        history=History(attempts=(now,)),
        actions=(Action("restart", "lost"),),
    )
    monkeypatch.setattr(program, "judge", lambda *_: verdict)
    with pytest.raises(SystemExit):
        watch.look()
    assert remembered(str(tmp_path / "state.json"))[0].attempts == (now,)


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({}, ["restart"]),
        ({"active": "inactive"}, []),
        ({"active": "deactivating"}, []),
        ({"invocation": "second"}, []),
        ({"active": "unknown", "invocation": ""}, ["restart"]),  # systemd has not answered
    ],
)
def test_a_unit_that_somebody_has_changed_meanwhile_is_not_restarted(
    watch: program.Watch, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], asked: list[str]
) -> None:
    verbs: list[str] = []
    monkeypatch.setattr(
        program, "ask_hand", lambda path, verb, timeout: verbs.append(verb) or {"answer": "yes"}
    )
    judged = Unit(invocation="first")
    monkeypatch.setattr(signals, "unit_of", lambda _: replace(judged, **changed))
    done = watch._perform(Action("restart", "lost"), judged)
    assert verbs == asked
    assert bool(done.error) == (not asked)
    watch._perform(Action("stop", "crashes"), judged)
    assert verbs == [*asked, "stop"], "a stop is a stop"


def test_it_unloads_through_the_router(watch: program.Watch, router: Router) -> None:
    router.answers["POST /models/unload"] = {"success": True}
    router.answers["GET /models"] = states(big="unloaded")
    watch._unload("big")
    assert ("POST /models/unload", {"model": "big"}) in router.asked


def test_it_unloads_by_the_routers_own_name(watch: program.Watch, router: Router) -> None:
    router.answers["POST /models/unload"] = {"success": True}
    router.answers["GET /models"] = states(**{"my  model": "loaded"})
    (model,) = signals.router_models(watch.lane)
    router.answers["GET /models"] = states(**{"my  model": "unloaded"})
    assert watch._perform(Action("unload", "memory", model.name), Unit()).error == ""
    assert ("POST /models/unload", {"model": "my  model"}) in router.asked


def test_canaries_go_one_after_the_other_and_one_that_fails_says_nothing(
    watch: program.Watch, router: Router
) -> None:
    timings = {"timings": {"predicted_per_second": 39.5}}
    router.answers["POST /completion?autoload=false"] = timings
    watch.eyes.ask_canaries(("big", "other"))
    watch.eyes.jobs._threads["canary"].join(5)
    assert watch.eyes._canaries() == {"big": 39.5, "other": 39.5}
    router.answers["POST /completion?autoload=false"] = (400, {"error": {"message": "model is not loaded"}})
    watch.eyes.ask_canaries(("big",))
    watch.eyes.jobs._threads["canary"].join(5)
    assert watch.eyes._canaries() == {}


# -- what outlives a restart ------------------------------------------------------------------------------


def test_how_often_it_has_acted_outlives_a_restart(tmp_path: Path) -> None:
    history = History(
        attempts=(1.0, 2.0),
        crashes=(3.0,),
        restarts=4,
        stopped="why",
        proven="c",
        proven_full="c",
        invocation="i",
        answered="i",
        ran="i",
        container="c",
        recovery=Recovery(2.0, "w", proven=True, ended=True),
        raised={"oom:x": Raised(Reason("oom:x", "degraded", "killed"), 1.0, 2.0)},
    )
    told = Told("degraded", "2026-01-01T00:00:00Z", frozenset({"oom:x"}))
    path = tmp_path / "state.json"
    path.write_text(to_remember(history, told))
    assert remembered(str(path)) == (history, told)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"attempts": 5}', '{"attempts": ["x"]}'])
def test_a_memory_that_is_none_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert remembered(str(tmp_path / "state.json")) == (History(), None)
    assert remembered(str(tmp_path / "not-there")) == (History(), None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"since": 1.0', '"since": NaN'),
        ('"seen": 2.0', '"seen": Infinity'),
        ('"seen": 2.0', '"seen": 1e300'),
        ('"seen": 2.0', f'"seen": {"9" * 400}'),
        ('"seen": 2.0', '"seen": -1e300'),
        ('"attempts": [3.0]', '"attempts": [1e999]'),
        ('"crashes": [4.0]', '"crashes": [NaN]'),
        ('"began": 5.0', '"began": Infinity'),
        ('"restarts": 6', '"restarts": Infinity'),
        ('"restarts": 6', '"restarts": 1000001'),
        ('"restarts": 6', '"restarts": -1'),
    ],
)
def test_a_memory_with_an_absurd_figure_is_nothing_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    history = History(
        raised={"lane.failed": Raised(Reason("lane.failed", "failed", "x"), 1.0, 2.0)},
        attempts=(3.0,),
        crashes=(4.0,),
        recovery=Recovery(5.0, "w"),
        restarts=6,
    )
    text = to_remember(history, Told("failed", "", frozenset()))
    assert old in text
    path = tmp_path / "state.json"
    path.write_text(text.replace(old, new))
    assert remembered(str(path)) == (History(), None)
    assert capsys.readouterr().out.count("it begins anew") == 1


def test_that_a_memory_is_none_is_said_once(
    watch: program.Watch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        (tmp_path / "state.json").write_text('{"attempts": [NaN]}')
        assert program.Watch(watch.config, watch.lane).look().state == "healthy"
        assert program.Watch(watch.config, watch.lane).look().state == "healthy"
        assert capsys.readouterr().out.count("it begins anew") == 1
    (tmp_path / "state.json").unlink()
    program.Watch(watch.config, watch.lane)
    assert capsys.readouterr().out == "", "at the first start there is none"


@pytest.mark.parametrize(
    ("looked", "state"),
    [
        (-1800, "failed"),
        (-2 * 86400, "healthy"),
        (600, "healthy"),
        (float("nan"), "healthy"),
        (None, "healthy"),
    ],
)
def test_crashes_while_the_watch_was_away_for_long_stop_nothing(
    tmp_path: Path, looked: float | None, state: str
) -> None:
    lane = Lane()
    lane.see_for(60)
    kept = json.loads(to_remember(lane.history, Told("healthy", "", frozenset())))
    del kept["looked"]
    if looked is not None:
        kept["looked"] = time.time() + looked
    path = tmp_path / "state.json"
    path.write_text(json.dumps(kept))
    lane.history, _ = remembered(str(path))
    lane.restarted(restarts=6)
    assert lane.see().state == state
    # From here on each counts.
    lane.unit = replace(lane.unit, restarts=12)
    assert lane.see().state == "failed"


def test_a_memory_of_another_shape_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(
        to_remember(History(), Told("healthy", "", frozenset())).replace('"raised": {}', '"raised": []')
    )
    assert remembered(str(path)) == (History(), None)


def test_a_state_that_nobody_knows_is_none(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(to_remember(History(), Told("healthy", "", frozenset())).replace("healthy", "splendid"))
    assert remembered(str(path)) == (History(), None)


def test_what_was_told_is_not_told_again_after_a_restart(
    watch: program.Watch, router: Router, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    now = iter((995.0, 1000.0))
    watch.clock = lambda: next(now)
    failed = {"id": "big", "status": {"value": "unloaded", "failed": True}}
    router.answers["GET /models"] = {"data": [failed]}
    watch.look()
    assert watch.look().state == "degraded"
    since = written(tmp_path)["since"]
    assert "healthy -> degraded" in capsys.readouterr().out
    again = program.Watch(watch.config, watch.lane, lambda: 1005.0)
    again.since = again.since.replace("T", " ")
    assert again.look().state == "degraded"
    assert capsys.readouterr().out == ""
    assert written(tmp_path)["since"] == since.replace("T", " ")
    # One that has gone meanwhile is told too.
    router.answers["GET /models"] = states(big="unloaded")
    later = program.Watch(watch.config, watch.lane, lambda: 1030.0)
    assert later.look().state == "healthy"
    assert "degraded -> healthy" in capsys.readouterr().out


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        program.systemd("READY=1\n")
        assert heard.recv(100) == b"READY=1\n"
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    program.systemd("READY=1\n")


# -- what it tells ----------------------------------------------------------------------------------------

SAMPLE = re.compile(r'[a-z][a-z0-9_]*(\{[a-z]+="(\\.|[^"\\])*"\})? (-?[0-9.]+(e[+-]?[0-9]+)?|NaN)')


def verdict_of(name: str = "fast") -> tuple[Observation, Verdict]:
    lane = Lane()
    lane.models = (replace(LOADED, name=name),)
    verdict = lane.see()
    return Observation(lane.at, lane.unit, models=lane.models, available_mib=2), verdict


@pytest.mark.parametrize("name", ["fast", 'a"b\\c\nd', "ü/x"])
def test_figures_for_prometheus(name: str) -> None:
    now, verdict = verdict_of(name)
    config = {"settings": {"baselines": {name: 40.0}, "reserve_mib": 1}}
    text = report.prometheus(now, verdict, config, {"restart": 2})
    families = re.findall(r"^# TYPE (\S+) (gauge|counter)$", text, re.MULTILINE)
    assert len(families) == len(dict(families)), "each family once"
    for line in text.splitlines():
        if not line.startswith("#"):
            assert SAMPLE.fullmatch(line), line
            assert line.split("{")[0].split(" ")[0] in dict(families)
    for family, kind in families:
        assert family.startswith("gb10_")
        assert family.endswith("_total") == (kind == "counter")
    assert 'gb10_lane_state{state="healthy"} 1' in text
    assert "gb10_memory_available_bytes 2097152" in text
    assert 'gb10_watch_actions_total{action="restart"} 2' in text


def test_two_names_that_look_alike_make_one_figure() -> None:
    now, verdict = verdict_of("a b")
    config = {"settings": {"baselines": {}, "reserve_mib": 1}}
    text = report.prometheus(replace(now, models=now.models * 2), verdict, config, {})
    samples = [line.rpartition(" ")[0] for line in text.splitlines()]
    assert samples.count('gb10_model_accelerated{model="a b"}') == 1


def test_the_record_has_a_bound_and_outlives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MOST_ACTIONS", 10)
    path = tmp_path / "actions.jsonl"
    record = report.Record(str(path))
    for number in range(100):
        record.add({"number": number})
    assert len(path.read_text().splitlines()) <= 10
    with path.open("a") as file:
        file.write('{"at": "cut o')
    assert report.Record(str(path)).last()[-1]["number"] == 99


def test_a_record_that_cannot_be_written_keeps_nobody_from_acting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = report.Record(str(tmp_path / "no-folder/actions.jsonl"))
    record.add({"action": "restart"})
    assert record.last()[0]["action"] == "restart"
    assert "cannot be written" in capsys.readouterr().out


def wait_for(path: Path, text: str = "") -> str:
    for _ in range(200):
        if path.exists() and text in path.read_text() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path} has not come")


def test_a_command_is_told_on_its_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "told"
    report.Notifier(["sh", "-c", f"cat > {out}"], None).tell({"state": "failed", "reasons": ["$(id)"]})
    assert json.loads(wait_for(out, "}")) == {"state": "failed", "reasons": ["$(id)"]}


def output_of(program: str, *arguments: str) -> str:
    """What a program prints beside the watch's files.

    In a process of its own: gevent's subprocess, which pyinfra brings in here, knows no such bound.
    """
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=TOP / "files",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


HANGING = """
import time
import gb10_watch_report as report
report.NOTIFY_SECONDS = 0.2
hanging = report.Notifier(["sleep", "60"], None)
began = time.monotonic()
for _ in range(100):
    hanging.tell({"state": "failed"})
print("told in", int(time.monotonic() - began), "s")
time.sleep(1)
"""


def test_a_command_that_fails_or_hangs_holds_nothing_up() -> None:
    output = output_of(HANGING)
    assert "told in 0 s" in output
    assert "a notification was dropped" in output
    assert "the notification by command has failed (TimeoutExpired)" in output


LEFT = """
import sys, time
import gb10_watch_report as report
report.NOTIFY_SECONDS = 0.2
notifier = report.Notifier(["sh", "-c", "sleep 60 & echo $! >> " + sys.argv[1] + "; wait"], None)
for _ in range(3):
    notifier.tell({"state": "failed"})
time.sleep(2)
"""


def test_nothing_is_left_of_a_command_that_hangs(tmp_path: Path) -> None:
    output = output_of(LEFT, str(tmp_path / "pids"))
    assert output.count("(TimeoutExpired)") == 3
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    left = [pid for pid in pids if signals.arguments_of(pid)]  # one that has only not been reaped has none
    for pid in left:
        os.kill(pid, 9)
    assert (len(pids), left) == (3, [])


DRIPPING = """
import socket, sys, threading, time
import gb10_watch_report as report
report.NOTIFY_SECONDS = 0.5
listener = socket.create_server(("127.0.0.1", 0))

def drip():
    while True:
        connection, _ = listener.accept()
        connection.recv(65536)
        try:
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nX: ")
            while True:
                connection.sendall(b"a")
                time.sleep(0.1)
        except OSError:
            print("cut off")

threading.Thread(target=drip, daemon=True).start()
with open(sys.argv[1] + "/url", "w") as file:
    file.write(f"http://127.0.0.1:{listener.getsockname()[1]}/s3cret")
notifier = report.Notifier(["sh", "-c", "cat >> " + sys.argv[1] + "/told"], sys.argv[1] + "/url")
for number in range(5):
    notifier.tell({"number": number})
time.sleep(0.4)
print(open(sys.argv[1] + "/told").read().count("number"), "told by the command")
time.sleep(1)
"""


def test_a_webhook_that_drips_has_a_bound_and_holds_no_command_up(tmp_path: Path) -> None:
    output = output_of(DRIPPING, str(tmp_path))
    assert "5 told by the command" in output
    assert "the notification by webhook has failed (TimeoutError)" in output
    assert "cut off" in output
    assert "s3cret" not in output


def test_a_webhook_is_told_and_its_url_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got: list[tuple[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, json.loads(body)))
            self.send_response(204 if len(got) == 1 else 500)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = tmp_path / "webhook"
        url.write_text(f"http://127.0.0.1:{server.server_port}/hook/s3cret?t=tok3n\n")
        notifier = report.Notifier([], str(url))
        notifier.tell({"state": "degraded"})
        notifier.tell({"state": "failed"})
        for _ in range(200):
            if len(got) == 2:
                break
            time.sleep(0.02)
        server.shutdown()
    assert got[0] == ("/hook/s3cret?t=tok3n", {"state": "degraded"})
    url.write_text("ftp://example.invalid/s3cret")
    notifier.tell({"state": "failed"})
    time.sleep(0.3)
    said = capsys.readouterr().out
    assert "the webhook answered 500" in said
    assert "the notification by webhook has failed (ValueError)" in said
    assert "s3cret" not in said


def test_without_anybody_to_tell_nothing_is_queued() -> None:
    notifier = report.Notifier([], None)
    for _ in range(100):
        notifier.tell({"state": "failed"})
    assert notifier._waiting == []
