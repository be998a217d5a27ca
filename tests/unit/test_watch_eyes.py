"""One look: what is asked how often, and that nothing from another container or from before counts."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import gb10_watch_eyes as eyes
import gb10_watch_signals as signals
import pytest
from gb10_watch_state import Done, Model, Observation, Probe, Unit

from gb10.watch_config import watch_config
from tests.unit.boxes import box

CGROUP = "/system.slice/docker-{}.scope"


class Hand:
    """Answers probes; counts what it was asked."""

    def __init__(self) -> None:
        self.answer = "yes"
        self.users = "yes"
        self.asked: list[str] = []

    def __call__(self, path: str, verb: str, timeout: float) -> dict[str, Any]:
        self.asked.append(verb)
        if self.answer == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        if verb == "processes":
            return {"answer": self.users, "text": "" if self.users == "yes" else "no driver"}
        return {"answer": self.answer, "text": "GPU 0"}

    def probes(self) -> int:
        return self.asked.count("probe")


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    found = Hand()
    monkeypatch.setattr(eyes, "ask_hand", found)
    return found


@pytest.fixture
def looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand: Hand) -> eyes.Eyes:
    whole = box()
    config = watch_config(whole.data, whole.catalogue, {}, whole.lane_path)
    config |= {"kernel_log": str(tmp_path / "kmsg"), "rivals": [], "units_out": []}
    lane = {"lane": "llamacpp-playground", "presets": "/etc/p/models.ini", "signal": {}}
    monkeypatch.setattr(signals, "unit_of", lambda _: Unit(invocation="first"))
    monkeypatch.setattr(signals, "router_models", lambda *_: ())
    (tmp_path / "proc").mkdir()
    start_container(tmp_path, "a")
    return eyes.Eyes(config, lane, str(tmp_path / "proc"), str(tmp_path / "sys"))


def start_container(tmp_path: Path, letter: str, pid: int = 9) -> None:
    cgroup = CGROUP.format(letter * 64)
    process = tmp_path / f"proc/{pid}"
    process.mkdir(exist_ok=True)
    (process / "cmdline").write_text("llama-server\0--models-preset\0/etc/p/models.ini\0")
    (process / "cgroup").write_text(f"0::{cgroup}\n")
    folder = tmp_path / "sys/fs/cgroup" / cgroup.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(f"{pid}\n")


def end_container(tmp_path: Path, letter: str) -> None:
    folder = tmp_path / "sys/fs/cgroup" / CGROUP.format(letter * 64).lstrip("/")
    (folder / "cgroup.procs").write_text("")


def look_for(looking: eyes.Eyes, seconds: float, at: float = 1000.0) -> Observation:
    for step in range(int(seconds / 5)):
        seen = looking.look(at + 5 * step)
    return seen


def test_the_probe_has_its_own_rhythm(looking: eyes.Eyes, hand: Hand) -> None:
    seen = look_for(looking, 100)
    assert hand.probes() == 10
    assert seen.probe is not None
    assert seen.probe.answer == "yes"
    assert seen.container == "a" * 64


@pytest.mark.parametrize("answer", ["unknown", "gone", "odd"])
def test_a_probe_that_fails_at_once_is_tried_again_in_its_rhythm(
    looking: eyes.Eyes, hand: Hand, answer: str
) -> None:
    hand.answer = answer
    seen = look_for(looking, 180)
    assert hand.probes() == 18
    assert seen.probe is not None
    assert seen.probe.answer == "unknown"
    assert seen.probe.text


def test_a_probe_that_hangs_is_not_piled_up(
    looking: eyes.Eyes, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eyes, "PROBE_SECONDS", 0.01)
    free, asked = threading.Event(), list[str]()

    def hangs(path: str, verb: str, timeout: float) -> dict[str, Any]:
        asked.append(verb)
        if verb == "probe":
            free.wait(10)
        return {"answer": "unknown", "text": "docker has not ended after 15 s"}

    monkeypatch.setattr(eyes, "ask_hand", hangs)
    look_for(looking, 20)
    free.set()
    looking.jobs._threads["probe"].join(5)
    look_for(looking, 40, at=1020.0)  # until 60 s after it was asked
    assert asked.count("probe") == 1
    look_for(looking, 5, at=1060.0)
    assert asked.count("probe") == 2


def test_a_loss_behind_a_moment_without_docker_is_seen_in_time(looking: eyes.Eyes, hand: Hand) -> None:
    hand.answer = "unknown"
    looking.look(1000.0)
    hand.answer = "no"
    seen = look_for(looking, 15, at=1000.0)
    assert seen.probe is not None
    assert seen.probe.answer == "no"


def test_looks_that_come_a_moment_early_keep_the_probes_rhythm(looking: eyes.Eyes, hand: Hand) -> None:
    for look in range(20):
        looking.look(1000.0 + 5 * look - 0.001 * look)
    assert hand.probes() == 10


def test_a_new_container_is_looked_at_at_once(looking: eyes.Eyes, hand: Hand, tmp_path: Path) -> None:
    hand.answer = "no"
    looking.look(1000.0)
    end_container(tmp_path, "a")
    start_container(tmp_path, "b")
    hand.answer = "yes"
    seen = looking.look(1001.0)
    assert seen.container == "b" * 64
    assert seen.probe is not None
    assert seen.probe.answer == "yes"


def test_a_probe_that_hung_in_the_container_before_says_nothing_of_the_new_one(
    looking: eyes.Eyes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eyes, "PROBE_SECONDS", 0.05)
    free = threading.Event()
    answers = [lambda: free.wait(10) and "unknown", lambda: "yes"]

    def ask(path: str, verb: str, timeout: float) -> dict[str, Any]:
        return {"answer": answers.pop(0)() if verb == "probe" else "yes", "text": ""}

    monkeypatch.setattr(eyes, "ask_hand", ask)
    look_for(looking, 20)
    free.set()
    looking.jobs._threads["probe"].join(5)
    end_container(tmp_path, "a")
    start_container(tmp_path, "b")
    seen = looking.look(1020.0)
    assert seen.probe is not None
    assert (seen.probe.at, seen.probe.answer) == (1020.0, "yes")


def test_without_a_container_nothing_is_probed(looking: eyes.Eyes, hand: Hand, tmp_path: Path) -> None:
    end_container(tmp_path, "a")
    (tmp_path / "proc/9/cmdline").write_text("")
    assert looking.look(1000.0).container == ""
    assert hand.probes() == 0


def test_while_an_action_runs_nothing_is_probed_and_after_it_all_is_looked_at_anew(
    looking: eyes.Eyes, hand: Hand
) -> None:
    looking.look(1000.0)
    free = threading.Event()
    looking.jobs.start("action", lambda: free.wait(10) and Done("restart", ""))
    seen = looking.look(1030.0)
    assert seen.busy
    assert hand.probes() == 1
    free.set()
    while looking.jobs.running("action"):
        time.sleep(0.01)
    seen = looking.look(1031.0)
    assert seen.done == (Done("restart", ""),)
    assert not seen.busy
    assert hand.probes() == 2


def loaded(looking: eyes.Eyes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with its process in the container."""
    monkeypatch.setattr(signals, "router_models", lambda *_: (Model("big", "loaded", tokens=1.0),))
    monkeypatch.setattr(signals, "holder_of", lambda *_: "has it mapped")
    folder = tmp_path / "proc/21"
    folder.mkdir()
    (folder / "cmdline").write_text("llama-server\0--alias\0big\0")
    (tmp_path / "sys/fs/cgroup" / looking_cgroup() / "cgroup.procs").write_text("9\n21\n")


def looking_cgroup() -> str:
    return CGROUP.format("a" * 64).lstrip("/")


def lock_map(pid: int, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Its command line does not come until the event is set: a driver has locked its memory map."""
    free, read = threading.Event(), signals.arguments_of

    def locked(one: int, proc: str) -> list[str]:
        if one == pid:
            free.wait(10)
        return read(one, proc)

    monkeypatch.setattr(signals, "arguments_of", locked)
    monkeypatch.setattr(eyes, "PROC_SECONDS", 0.2)
    return free


def test_a_child_whose_memory_map_is_locked_holds_no_look_up(
    looking: eyes.Eyes, hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(looking, tmp_path, monkeypatch)
    (model,) = looking.look(1000.0).models
    assert (model.pid, model.holder) == (21, "has it mapped")
    free = lock_map(21, monkeypatch)
    hand.answer = "no"
    began = time.monotonic()
    seen = look_for(looking, 60, at=1005.0)
    assert time.monotonic() - began < 2, "it is waited for once"
    (model,) = seen.models
    assert (model.pid, model.holder) == (21, None), "it is there, and not known"
    assert seen.probe is not None
    assert seen.probe.answer == "no", "the probe goes on"
    assert "/proc" in seen.blind["the models' processes"]
    free.set()
    looking.jobs._threads["the models' processes"].join(5)
    seen = looking.look(1100.0)
    assert seen.models[0].holder == "has it mapped"
    assert "the models' processes" not in seen.blind


def test_a_strangers_memory_map_that_is_locked_hides_other_strangers_only(
    looking: eyes.Eyes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking.config |= {"rivals": ["vllm"]}  # type: ignore[operator]
    (tmp_path / "proc/123").mkdir()
    (tmp_path / "proc/123/cgroup").write_text("0::/user.slice\n")
    free = lock_map(123, monkeypatch)
    began = time.monotonic()
    seen = look_for(looking, 60)
    assert time.monotonic() - began < 2
    assert seen.container == "a" * 64
    assert seen.rivals == ()
    assert "/proc" in seen.blind["other programs"]
    free.set()


def test_what_came_too_late_for_its_look_is_not_taken_for_another(
    looking: eyes.Eyes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eyes, "PROC_SECONDS", 0.05)
    loaded(looking, tmp_path, monkeypatch)
    looking.look(1000.0)
    monkeypatch.setattr(signals, "holder_of", lambda *_: time.sleep(0.2) or "as it was")
    assert looking.look(1005.0).models[0].holder is None
    looking.jobs._threads["the models' processes"].join(5)
    monkeypatch.setattr(signals, "holder_of", lambda *_: "")
    assert looking.look(1010.0).models[0].holder == ""


def test_an_action_that_broke_is_told(looking: eyes.Eyes) -> None:
    looking.jobs.start("action", lambda: 1 / 0)
    while looking.jobs.running("action"):
        time.sleep(0.01)
    (done,) = looking.look(1000.0).done
    assert "division" in done.error


def test_llama_cpps_own_list_is_asked_when_it_is_wanted(looking: eyes.Eyes, hand: Hand) -> None:
    assert look_for(looking, 5).probe == Probe(1000.0, "yes", "GPU 0")
    looking.fully = True
    assert looking.look(1010.0).probe == Probe(1010.0, "yes", "GPU 0", full=True)
    looking.fully = False
    assert looking.look(1020.0).probe == Probe(1020.0, "yes", "GPU 0")
    assert [verb for verb in hand.asked if verb != "processes"] == ["probe", "devices", "probe"]


def test_what_gives_no_answer_is_named(looking: eyes.Eyes, hand: Hand, tmp_path: Path) -> None:
    seen = look_for(looking, 5)
    assert "No such file" in seen.blind["the kernel's log"]
    (tmp_path / "kmsg").write_text("")
    hand.users = "unknown"
    seen = look_for(looking, 100, 2000.0)
    assert seen.blind == {"who is on the GPU": "no driver"}
    hand.users = "yes"
    assert look_for(looking, 100, 3000.0).blind == {}


def test_an_action_is_under_way_until_its_outcome_is_told(looking: eyes.Eyes) -> None:
    def ends_meanwhile(_: str) -> Unit:
        while looking.jobs.running("action"):
            time.sleep(0.01)
        return Unit(invocation="first")

    signals.unit_of = ends_meanwhile  # type: ignore[assignment]  # the fixture puts it back
    looking.jobs.start("action", lambda: time.sleep(0.1) or Done("stop", ""))
    assert looking.look(1000.0).busy, "or it would count as a change by somebody else"
    seen = looking.look(1005.0)
    assert not seen.busy
    assert seen.done == (Done("stop", ""),)


class LateRouter:
    """Answers after the look that has asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers, self.skipped = list(answers), list[frozenset[str]]()
        monkeypatch.setattr(signals, "router_models", self)
        monkeypatch.setattr(eyes, "WAIT_SECONDS", 0.02)

    def __call__(self, lane: dict[str, Any], skip: frozenset[str]) -> tuple[Model, ...]:
        self.skipped.append(skip)
        answer = self.answers.pop(0)
        time.sleep(0.1 if self.answers else 0.0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_comes_too_late_for_its_look_is_known_to_the_next(
    looking: eyes.Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, hung = Model("a", "loaded", tokens=5.0, seconds=1.0), Model("b", "loaded")
    gone = Model("a", "unloaded", failed=True)
    router = LateRouter(monkeypatch, (whole, hung), (gone, hung))
    seen = looking.look(1000.0)
    assert (seen.models, seen.waiting) == ((), True)
    time.sleep(0.15)
    assert looking.look(1005.0).models == (gone, hung)
    assert router.skipped == [frozenset(), {"b"}], "what gave no figures is not waited for again"


def test_a_canary_waits_for_the_counters_that_it_has_moved(
    looking: eyes.Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Model("a", "loaded", tokens=32.0, seconds=1.0)
    found = [(Model("a", "loaded"),), (moved,), (moved,)]
    monkeypatch.setattr(signals, "router_models", lambda *_: found.pop(0))
    monkeypatch.setattr(signals, "canary", lambda *_: 40.0)
    looking.ask_canaries(("a",))
    while looking.jobs.running("canary"):
        time.sleep(0.01)
    seen = [looking.look(1000.0 + 5 * look) for look in range(3)]
    assert [one.canaries for one in seen] == [{}, {"a": 40.0}, {}]
    assert [one.asking for one in seen] == [{"a"}, frozenset(), frozenset()]


def test_a_fault_that_comes_too_late_for_its_look_is_told_by_the_next(
    looking: eyes.Eyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    LateRouter(monkeypatch, ConnectionRefusedError(111, "Connection refused"), ())
    assert looking.look(1000.0).router_fault == ""
    time.sleep(0.15)
    assert "refused" in looking.look(1005.0).router_fault
    assert looking.look(1010.0).router_fault == ""


def test_one_job_of_a_name_at_a_time() -> None:
    jobs, free, begun = eyes.Jobs(), threading.Event(), []
    for _ in range(5):
        jobs.start("probe", lambda: begun.append(1) or free.wait(10))
        assert jobs.outcome("probe") is None
    free.set()
    outcome = jobs.outcome("probe", 5)
    assert outcome is not None
    assert begun == [1]
    assert jobs.outcome("probe") is None, "once"
