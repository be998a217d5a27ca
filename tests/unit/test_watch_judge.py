"""The watch's judgement: states with hysteresis, actions with a bound, by a clock that the test turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from gb10_watch_judge import AGAIN, LIMIT_CRASHES, LIMIT_SECONDS
from gb10_watch_kernel import kernel_events
from gb10_watch_state import DEGRADED, FAILED, HEALTHY, Action, Done, Event, Model, Probe, Unit, Verdict

from gb10.rendering import TOP
from tests.unit.watching import LOADED, UNIT, Lane, keys, kinds


def raised(key: str):  # type: ignore[no-untyped-def]
    return lambda verdict: key in keys(verdict)


def acts(kind: str):  # type: ignore[no-untyped-def]
    return lambda verdict: kind in kinds(verdict)


@pytest.fixture
def lane() -> Lane:
    lane = Lane()
    lane.see_for(120)
    assert lane.verdicts[-1].state == HEALTHY
    return lane


# -- nothing is wrong -----------------------------------------------------------------------------------


def test_a_lane_that_is_well_stays_healthy_for_an_hour() -> None:
    lane = Lane()
    lane.see_for(3600)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_models_come_and_go_without_a_word(lane: Lane) -> None:
    for state in ("unloaded", "loading", "loaded", "sleeping", "unloaded"):
        lane.change(state=state, tokens=None, seconds=None, pid=1 if state == "loaded" else None, holder="x")
        assert lane.see().state == HEALTHY


def test_the_same_look_gives_the_same_verdict(lane: Lane) -> None:
    history = lane.history
    first = lane.see()
    lane.history, lane.at = history, lane.at - 5
    assert lane.see() == first


# -- the accelerator ------------------------------------------------------------------------------------


def test_a_model_without_the_accelerator_is_seen_at_the_second_look(lane: Lane) -> None:
    lane.change(holder="")
    assert lane.see().state == HEALTHY
    verdict = lane.see()
    assert verdict.state == DEGRADED
    assert keys(verdict) == ["accelerator.model:fast"]
    assert kinds(verdict) == ["restart"]


def test_one_bad_look_is_no_loss(lane: Lane) -> None:
    lane.change(holder="")
    lane.see()
    lane.change(holder="it")
    assert lane.see_for(60).state == HEALTHY
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_a_loss_that_only_a_new_process_meets(lane: Lane) -> None:
    lane.probe = "no"
    assert lane.until(acts("restart")) <= 10
    assert keys(lane.verdicts[-1]) == ["accelerator.new"]


def test_a_probe_that_never_worked_in_this_container_restarts_nothing() -> None:
    lane = Lane()
    lane.probe = "no"
    verdict = lane.see_for(300)
    assert verdict.state == DEGRADED
    assert "never succeeded in this container" in verdict.reasons[0].text
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_a_probe_that_cannot_be_run_is_said_after_a_minute_and_restarts_nothing(lane: Lane) -> None:
    lane.probe = "unknown"
    assert lane.see_for(55).state == HEALTHY
    assert lane.until(raised("accelerator.unknown")) <= 20
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_a_process_that_cannot_be_looked_into_is_said_and_restarts_nothing(lane: Lane) -> None:
    lane.change(holder=None)
    assert lane.until(raised("accelerator.unseen:fast")) <= 70
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_the_answer_of_a_probe_from_before_the_start_does_not_count(lane: Lane) -> None:
    lane.restarted()
    old = Probe(lane.at - 1, "no", "lost")
    assert lane.see_for(30, probe=old).state == HEALTHY


def test_what_has_just_been_started_by_somebody_is_not_restarted(lane: Lane) -> None:
    lane.restarted()
    lane.change(holder="")
    waited = lane.until(acts("restart"))
    assert any(verdict.state == DEGRADED for verdict in lane.verdicts), "it must be said all the same"
    assert 55 <= waited <= 65


# -- after a restart ------------------------------------------------------------------------------------


def _lost_and_restarted(lane: Lane) -> None:
    lane.change(holder="")
    lane.until(acts("restart"))
    lane.unit = replace(lane.unit, active="deactivating")
    lane.see(busy=True, models=(), probe=None)
    lane.restarted()
    lane.see(done=(Done("restart", ""),), models=(), router_fault="not yet", probe=None)


def test_a_restart_that_helped(lane: Lane) -> None:
    _lost_and_restarted(lane)
    assert lane.verdicts[-1].state == DEGRADED, "not yet known"
    lane.models = (replace(LOADED, pid=99, holder="it"),)
    verdict = lane.see()
    assert not verdict.recovered, "the model has a baseline: its speed is waited for"
    while not verdict.canaries:
        verdict = lane.see()
    assert verdict.canaries == ("fast",)
    verdict = lane.see(canaries={"fast": 39.0})
    assert verdict.recovered.startswith("the lane is back on its accelerator after ")
    assert verdict.recovered.endswith("; fast 39.0 of 40.0 tok/s")
    assert lane.until(lambda verdict: verdict.state == HEALTHY) <= 20
    assert len([v for v in lane.verdicts if v.recovered]) == 1


def test_a_restart_with_nothing_loaded_after_it_needs_no_speed(lane: Lane) -> None:
    _lost_and_restarted(lane)
    lane.models = ()
    assert "no speed is known" in lane.see().recovered


def test_a_speed_that_does_not_come_is_not_waited_for_without_end(lane: Lane) -> None:
    _lost_and_restarted(lane)
    lane.models = (replace(LOADED, pid=99, holder="it"),)
    assert lane.until(lambda verdict: bool(verdict.recovered)) <= 65


def test_restarts_back_off_and_end_in_a_stop(lane: Lane) -> None:
    lane.change(holder="")
    times = []
    for _ in range(3):
        lane.until(acts("restart"))
        times.append(lane.at)
        lane.restarted(invocation=f"try {len(times)}", container=f"{len(times)}" * 64)
    assert times[1] - times[0] >= 30
    assert times[2] - times[1] >= 60
    lane.until(acts("stop"))
    stop = lane.verdicts[-1].actions[0]
    assert "3 restarts in an hour have not helped" in stop.reason
    lane.see(busy=True)
    lane.unit = replace(lane.unit, active="inactive")
    verdict = lane.see(done=(Done("stop", ""),), models=(), probe=None)
    assert verdict.state == FAILED
    assert "the watch has stopped the lane" in verdict.reasons[0].text
    after = lane.see_for(3000, models=(), probe=None)
    assert after.state == FAILED
    assert keys(after) == ["lane.stopped"]
    assert [kind for v in lane.verdicts for kind in kinds(v)] == ["restart"] * 3 + ["stop"]


def test_a_lane_that_does_not_come_back_is_tried_again_and_then_left(lane: Lane) -> None:
    lane.change(holder="")
    lane.until(acts("restart"))
    lane.unit = replace(UNIT, active="failed", result="exit-code")
    lane.until(acts("stop"), models=(), probe=None)
    assert [kind for v in lane.verdicts for kind in kinds(v)] == ["restart"] * 3 + ["stop"]
    assert lane.verdicts[-1].actions[0].reason.count("did not come back") == 1


def _stops(lane: Lane, seconds: float) -> list[float]:
    """When a stop was asked for, none of which succeeds."""
    times: list[float] = []
    done: tuple[Done, ...] = ()
    began = lane.at
    while lane.at - began < seconds:
        verdict = lane.see(done=done)
        done = tuple(Done(kind, "", "Connection refused") for kind in kinds(verdict))
        times += [lane.at] * kinds(verdict).count("stop")
    return times


def test_a_stop_that_fails_is_tried_again_ever_more_rarely(lane: Lane) -> None:
    lane.probe = lane.devices = "no"
    times = _stops(lane, 1500)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == [65, 125, 245, 485]
    lane.see_for(30)
    assert lane.verdicts[-1].state == FAILED
    assert "could not stop the lane (Connection refused)" in lane.verdicts[-1].reasons[0].text


def test_a_stop_that_fails_in_another_container_is_tried_again_too(lane: Lane) -> None:
    lane.probe = lane.devices = "no"
    for number in range(3):
        lane.until(acts("restart"))
        lane.restarted(invocation=f"try {number}", container=f"{number}" * 64)
        lane.see(done=(Done("restart", ""),))
    assert len(_stops(lane, 450)) == 3


def test_a_crash_loop_whose_stop_fails_is_not_forgotten(lane: Lane) -> None:
    lane.unit = replace(lane.unit, restarts=6)
    assert len(_stops(lane, 300)) == 3
    assert {verdict.state for verdict in lane.verdicts[-50:]} == {FAILED}


@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize("cause", ["lost", "crashes"])
def test_who_starts_a_lane_anew_that_could_not_be_stopped_finds_no_word_of_it(
    lane: Lane, cause: str, between: bool
) -> None:
    if cause == "lost":
        lane.probe = lane.devices = "no"
    else:
        lane.unit = replace(lane.unit, restarts=6)
    assert _stops(lane, 400)
    lane.probe = lane.devices = "yes"
    if between:
        lane.unit = replace(lane.unit, active="inactive")
        lane.see(models=(), probe=None)
    lane.restarted(invocation="person", container="e" * 64, restarts=0)
    assert lane.until(lambda verdict: verdict.state == HEALTHY) <= 30
    assert not any(verdict.actions for verdict in [lane.see() for _ in range(100)])


def test_a_lane_that_is_started_again_after_a_stop_is_watched_as_before(lane: Lane) -> None:
    lane.change(holder="")
    for _ in range(3):
        lane.until(acts("restart"))
    lane.until(acts("stop"))
    lane.unit = replace(lane.unit, active="inactive")
    lane.see(models=(), probe=None)
    lane.restarted()
    lane.change(holder="it")
    assert lane.until(lambda verdict: verdict.state == HEALTHY) <= 30


def test_what_failed_by_itself_is_reported_and_not_restarted(lane: Lane) -> None:
    lane.unit = replace(UNIT, active="failed", result="start-limit-hit")
    verdict = lane.see(models=(), probe=None)
    assert verdict.state == FAILED
    assert "start-limit-hit" in verdict.reasons[0].text
    lane.see_for(600, models=(), probe=None)
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_restarts_that_are_turned_off_are_not_done() -> None:
    lane = Lane(actions=frozenset({"unload"}))
    lane.see_for(120)
    lane.change(holder="")
    lane.probe = "no"
    assert lane.see_for(600, router_fault="nothing").state == FAILED
    assert not any(verdict.actions for verdict in lane.verdicts)


# -- the unit and the router ----------------------------------------------------------------------------


def test_a_restart_by_a_deploy_changes_no_state(lane: Lane) -> None:
    for state in ("deactivating", "inactive", "activating"):
        lane.unit = replace(lane.unit, active=state)
        lane.see_for(15, models=(), probe=None)
    lane.restarted()
    lane.see_for(60, models=(), router_fault="not listening yet")
    lane.see_for(60)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_a_router_whose_first_answer_is_awaited_has_not_answered(lane: Lane) -> None:
    lane.restarted()
    lane.see(models=(), waiting=True)
    waited = lane.until(acts("restart"), models=(), router_fault="nothing in 9 s")
    assert waited >= 160, "it may be starting"


def test_a_unit_that_stays_stopped_is_said(lane: Lane) -> None:
    lane.unit = replace(lane.unit, active="inactive")
    assert 55 <= lane.until(raised("lane.down"), models=(), probe=None) <= 70
    assert lane.verdicts[-1].state == FAILED


def test_a_router_that_hangs_is_restarted(lane: Lane) -> None:
    waited = lane.until(acts("restart"), models=(), router_fault="nothing in 4 s")
    assert waited <= 30
    assert lane.verdicts[-1].state == FAILED


def test_a_router_that_is_slow_once_is_no_fault(lane: Lane) -> None:
    for _ in range(20):
        lane.see_for(15, models=(), router_fault="nothing in 4 s")
        lane.see()
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_a_router_that_hangs_is_restarted_though_each_ask_takes_a_while_to_fail(lane: Lane) -> None:
    first = lane.at
    while not lane.verdicts[-1].actions:
        lane.see(waiting=True)  # the models are as they were, without figures
        lane.see(models=(), router_fault="GET /models got no answer in 3 s")
        assert lane.at - first < 60
    assert kinds(lane.verdicts[-1]) == ["restart"]


def test_a_router_that_hangs_from_its_start_has_as_long_as_one_that_refuses(lane: Lane) -> None:
    lane.restarted()
    first = lane.at
    while not lane.verdicts[-1].actions:
        lane.see(models=(), waiting=True)
        lane.see(models=(), router_fault="nothing in 5 s")
        assert lane.at - first < 300
    assert 180 <= lane.at - first <= 200


def test_one_slow_answer_among_late_ones_is_no_silence(lane: Lane) -> None:
    for _ in range(20):
        lane.see(models=(), router_fault="GET /models got no answer in 3 s")
        lane.see_for(60, waiting=True)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_a_crash_now_and_then_is_counted_over_an_hour(lane: Lane) -> None:
    for count in range(1, 6):
        lane.restarted(invocation=f"crash {count}", restarts=count)
        lane.see_for(500)
    assert not any(verdict.actions for verdict in lane.verdicts)
    lane.restarted(invocation="crash 6", restarts=6)
    verdict = lane.see()
    assert kinds(verdict) == ["stop"]
    assert "crashed 6 times" in verdict.reasons[0].text


def test_crashes_from_before_the_watch_began_do_not_count() -> None:
    lane = Lane()
    lane.unit = replace(UNIT, restarts=50)
    assert lane.see_for(60).state == HEALTHY


def test_after_the_stop_of_a_crash_loop_the_count_begins_anew(lane: Lane) -> None:
    lane.unit = replace(lane.unit, restarts=6)
    assert kinds(lane.see()) == ["stop"]
    lane.unit = replace(lane.unit, active="inactive")
    lane.see(models=(), probe=None)
    lane.restarted(restarts=0)
    lane.see_for(120)
    assert [kind for v in lane.verdicts for kind in kinds(v)] == ["stop"]
    assert lane.verdicts[-1].state == HEALTHY


def test_an_answer_that_is_no_answer_is_said_and_restarts_nothing(lane: Lane) -> None:
    assert lane.until(raised("router.refuses"), refusal="GET /models answered 401", models=()) <= 25
    assert not any(verdict.actions for verdict in lane.verdicts)


# -- models ---------------------------------------------------------------------------------------------


def test_a_child_that_died_is_said_until_it_is_loaded_again(lane: Lane) -> None:
    lane.change(state="unloaded", failed=True)
    assert lane.until(lambda verdict: verdict.state == DEGRADED) <= 10
    lane.change(state="loaded", failed=False)
    assert lane.until(lambda verdict: verdict.state == HEALTHY) <= 20


def test_a_child_that_dies_again_and_again_is_counted(lane: Lane) -> None:
    for _ in range(3):
        lane.change(state="unloaded", failed=True)
        verdict = lane.see()
        lane.change(state="loaded", failed=False)
        lane.see()
    assert "3 times in 10 minutes" in verdict.reasons[0].text
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_a_file_that_is_gone(lane: Lane) -> None:
    lane.change(file_gone="/srv/models/fast.gguf")
    assert lane.until(raised("model.file:fast")) <= 10


def test_a_long_prompt_may_keep_a_model_from_giving_figures(lane: Lane) -> None:
    lane.change(tokens=None, seconds=None, requests=None)
    assert lane.see_for(290).state == HEALTHY
    assert lane.until(raised("model.silent:fast")) <= 20


def test_a_model_that_is_swapped_out(lane: Lane) -> None:
    lane.change(swap_mib=4000)
    assert lane.until(raised("model.swapped:fast")) <= 25


def test_a_slow_model_with_a_stale_baseline_says_so(lane: Lane) -> None:
    for _ in range(20):
        lane.traffic(100, 10.0)
        lane.change(requests=1)
        verdict = lane.see(stale={"fast": "another image"})
    assert verdict.reasons[0].text.endswith("% of its 40.0 (measured with another image)")


# -- memory and the kernel ------------------------------------------------------------------------------


def _three_models(lane: Lane) -> None:
    lane.models = tuple(
        replace(LOADED, name=name, pid=number) for number, name in enumerate(("old", "new", "busy"))
    )
    lane.see_for(20)
    for name in ("busy", "new"):
        lane.traffic(100, 40.0, name)
        lane.see_for(20)


def test_the_reserve_unloads_the_model_that_was_idle_longest_one_at_a_time(lane: Lane) -> None:
    _three_models(lane)
    lane.change("busy", requests=1)
    assert lane.until(acts("unload"), available_mib=5000) <= 10
    assert lane.verdicts[-1].actions == (
        Action("unload", "5000 MiB are available, less than the reserve of 6000", "old"),
    )
    lane.see(available_mib=5000, busy=True)
    lane.models = lane.models[1:]
    assert lane.until(acts("unload"), available_mib=5000) >= 10
    assert lane.verdicts[-1].actions[0].target == "new"
    lane.models = lane.models[1:]
    verdict = lane.see_for(120, available_mib=5000)
    assert "no idle model is left" in verdict.reasons[0].text
    assert len([v for v in lane.verdicts if v.actions]) == 2, "a busy model is never unloaded"


def test_a_model_that_cannot_be_unloaded_keeps_no_other_from_it(lane: Lane) -> None:
    _three_models(lane)
    lane.change("busy", requests=1)
    done: tuple[Done, ...] = ()
    asked = []
    for _ in range(36):
        verdict = lane.see(available_mib=1000, done=done)
        done = tuple(Done("unload", one.target, "still loaded after 30 s") for one in verdict.actions)
        asked += [one.target for one in verdict.actions]
    assert asked[:4] == ["old", "new", "old", "new"]
    lane.models = (lane.models[0], lane.models[2])
    lane.until(acts("unload"), available_mib=1000)
    assert lane.verdicts[-1].actions[0].target == "old", "where there is no other it is tried again"


def test_a_model_is_unloaded_while_a_restart_waits_for_its_time() -> None:
    lane = Lane(backoff_seconds=300)
    lane.see_for(60)
    lane.probe = lane.devices = "no"
    lane.until(acts("restart"))
    lane.restarted()
    lane.see(done=(Done("restart", ""),))
    assert lane.until(acts("unload"), available_mib=500) <= 30
    assert lane.until(acts("restart"), available_mib=500) <= 300, "and the restart comes in its turn"


def test_a_model_is_unloaded_while_somebodys_own_start_settles(lane: Lane) -> None:
    lane.restarted()
    lane.see()
    lane.change(holder="")
    assert lane.until(lambda verdict: bool(verdict.actions), available_mib=500) <= 30
    assert kinds(lane.verdicts[-1]) == ["unload"]


def test_nothing_is_asked_of_a_router_that_does_not_answer(lane: Lane) -> None:
    lane.settings = replace(lane.settings, actions=frozenset({"unload"}))
    lane.see_for(120, available_mib=500, router_fault="nothing in 9 s")
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_memory_that_is_short_for_one_look_unloads_nothing(lane: Lane) -> None:
    lane.see(available_mib=100)
    lane.see_for(60)
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_an_oom_kill_is_a_reason_for_ten_minutes(lane: Lane) -> None:
    verdict = lane.see(events=(Event("oom", "the kernel has killed model fast (process 77)", 77),))
    assert verdict.state == DEGRADED
    assert "model fast" in verdict.reasons[0].text
    assert lane.see_for(590).state == DEGRADED
    assert lane.see_for(20).state == HEALTHY


def _kernel(*texts: str) -> tuple[Event, ...]:
    return kernel_events([f"3,1,1,-;{text}" for text in texts], {"model-one": 11, "model-two": 12})


def test_no_event_hides_another(lane: Lane) -> None:
    events = _kernel(
        "NVRM: Xid (PCI:000f:01:00): 79, pid=1, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed",
        "NVRM: GPU 000f:01:00.0: RmInitAdapter failed! (0x26:0x65:1474)",
        "Out of memory: Killed process 11 (llama-server) total-vm:1",
        "Out of memory: Killed process 12 (llama-server) total-vm:1",
        "Out of memory: Killed process 13 (Xid 1) total-vm:1",
        "Out of memory: Killed process 14 (Xid 1) total-vm:1",
    )
    verdict = lane.see(events=events)
    assert {reason.text for reason in verdict.reasons} == {event.text for event in events}
    known = keys(verdict)
    (again,) = _kernel("Out of memory: Killed process 99 (llama-server) total-vm:1")
    assert set(keys(lane.see(events=(again,)))) - set(known) == {"oom:99"}, "a new one is told as such"


def test_the_same_driver_error_again_is_the_same_reason(lane: Lane) -> None:
    for figure in range(30):
        texts = (
            f"NVRM: Xid (PCI:000f:01:00): 13, pid={figure}",
            f"NVRM: RmInitAdapter failed! (0x26:{figure})",
        )
        verdict = lane.see(events=_kernel(*texts))
    assert len(keys(verdict)) == 2


def test_a_storm_of_kills_has_a_bound(lane: Lane) -> None:
    for pid in range(100, 300):
        verdict = lane.see(events=_kernel(f"Out of memory: Killed process {pid} (bash) total-vm:1"))
    assert len(keys(verdict)) == 20
    assert "oom:299" in keys(verdict)


def test_pressure_must_last(lane: Lane) -> None:
    lane.see(pressure_percent=90.0)
    assert lane.see().state == HEALTHY
    assert lane.until(raised("memory.pressure"), pressure_percent=50.0) <= 25


def test_a_rival_is_said_and_not_touched(lane: Lane) -> None:
    assert lane.until(raised("rival:unit vllm-lane-a.service"), rivals=("unit vllm-lane-a.service",)) <= 15
    lane.see_for(100, rivals=("unit vllm-lane-a.service",))
    assert not any(verdict.actions for verdict in lane.verdicts)


# -- hysteresis -----------------------------------------------------------------------------------------


def test_a_fault_that_comes_and_goes_does_not_flap(lane: Lane) -> None:
    changes = 0
    before = lane.verdicts[-1].state
    for number in range(60):
        verdict = lane.see(rivals=("process vllm",) if number % 3 else ())
        changes += verdict.state != before
        before = verdict.state
    assert changes == 1


def test_the_worst_reason_gives_the_state_and_stands_first(lane: Lane) -> None:
    lane.change(failed=True, state="unloaded")
    lane.unit = replace(lane.unit, active="failed", result="exit-code")
    verdict: Verdict = lane.see(events=(Event("driver", "NVRM: Xid 79"),))
    assert verdict.state == FAILED
    assert verdict.reasons[0].key == "lane.failed"


def test_a_model_of_which_nothing_is_known_is_no_reason() -> None:
    lane = Lane()
    lane.models = (Model("never", "unloaded"), Model("odd", "downloading"))
    assert lane.see_for(60).state == HEALTHY


# -- beside other people's work -------------------------------------------------------------------------


def _recovering(lane: Lane) -> None:
    _lost_and_restarted(lane)
    lane.change(pid=99, holder="it")
    lane.see()
    assert "lane.recovering" in keys(lane.verdicts[-1])


def test_a_lane_that_somebody_stops_during_a_recovery_stays_stopped(lane: Lane) -> None:
    _recovering(lane)
    first = len(lane.verdicts)
    lane.unit = replace(lane.unit, active="deactivating")
    lane.see(models=(), probe=None)
    lane.unit = replace(lane.unit, active="inactive")
    verdict = lane.see(models=(), probe=None)
    assert verdict.recovered == "somebody has stopped the lane", "the record says what became of it"
    after = lane.see_for(600, models=(), probe=None)
    assert not any(kinds(verdict) for verdict in lane.verdicts[first:])
    assert keys(after) == ["lane.down"]


@pytest.mark.parametrize(
    ("values", "acted"),
    [
        ({"result": "signal"}, False),  # in the gate
        ({"result": "timeout"}, False),
        ({"result": "exit-code", "status": 137}, False),  # a router that had to be killed
        ({"result": "exit-code", "status": 143}, False),  # one that went by SIGTERM
        ({"result": "exit-code", "status": 1}, True),  # the gate has refused
        ({"result": "start-limit-hit", "status": 137}, True),
    ],
)
def test_a_stop_that_leaves_the_unit_failed_is_a_stop(
    lane: Lane, values: dict[str, object], acted: bool
) -> None:
    _recovering(lane)
    first = len(lane.verdicts)
    lane.unit = replace(lane.unit, active="failed", **values)
    lane.see_for(120, models=(), probe=None, container="", done=())
    assert any(kinds(verdict) == ["restart"] for verdict in lane.verdicts[first:]) == acted


@pytest.mark.parametrize("status", [137, 143])
def test_who_stops_a_lane_whose_router_has_not_answered_yet_finds_it_stopped(lane: Lane, status: int) -> None:
    lane.until(acts("restart"), models=(), router_fault="nothing in 9 s")
    lane.see(busy=True, models=(), probe=None)
    lane.restarted()
    lane.see(done=(Done("restart", ""),), models=(), router_fault="refused", probe=None)
    first = len(lane.verdicts)
    lane.unit = replace(lane.unit, active="deactivating")
    lane.see_for(30, models=(), probe=None)
    lane.unit = replace(lane.unit, active="failed", result="exit-code", status=status)
    verdict = lane.see(models=(), probe=None, container="")
    assert verdict.recovered == "somebody has stopped the lane"
    lane.see_for(600, models=(), probe=None, container="")
    assert not any(verdict.actions for verdict in lane.verdicts[first:])


def test_a_refusal_of_the_gate_after_a_router_that_was_killed_is_no_stop(lane: Lane) -> None:
    lane.until(acts("restart"), models=(), router_fault="nothing in 9 s")
    # The main process of before has ended with 137; in this start none has run.
    lane.unit = Unit("failed", "exit-code", invocation="second", status=137)
    lane.see(done=(Done("restart", "REFUSING"),), models=(), probe=None, container="")
    lane.until(acts("restart"), models=(), probe=None, container="")


def test_somebodys_own_start_just_before_a_restart_is_theirs(lane: Lane) -> None:
    lane.change(holder="")
    lane.until(acts("restart"))
    lane.see(busy=True)
    lane.unit = replace(lane.unit, invocation="theirs", since=lane.at)
    lane.see(done=(Done("restart", "", "the unit has changed meanwhile", left=True),))
    first, began = len(lane.verdicts), lane.at
    lane.until(acts("restart"))
    assert lane.at - began >= 55, "their work is left alone while it settles"
    assert all(not verdict.recovered for verdict in lane.verdicts[first:])


def test_a_start_of_somebody_that_fails_is_not_tried_again(lane: Lane) -> None:
    lane.change(holder="")
    lane.until(acts("restart"))
    lane.see(busy=True)
    lane.unit = Unit("failed", "exit-code", invocation="theirs", status=1)
    first = len(lane.verdicts)
    lane.see(
        done=(Done("restart", "", "the unit has changed meanwhile", left=True),), models=(), container=""
    )
    lane.see_for(600, models=(), probe=None, container="")
    assert not any(verdict.actions for verdict in lane.verdicts[first:])


def test_a_crash_loop_that_systemd_gave_up_is_nobodys_stop(lane: Lane) -> None:
    lane.change(holder="")
    lane.until(acts("restart"))
    lane.see(busy=True)
    lane.restarted()
    lane.see(done=(Done("restart", ""),), models=(), router_fault="refused", probe=None)
    for _ in range(4):
        lane.unit = replace(lane.unit, restarts=lane.unit.restarts + 1)
        lane.see(models=(), router_fault="refused", probe=None)
    lane.unit = replace(lane.unit, active="failed", result="exit-code", status=134)
    verdict = lane.see(models=(), probe=None, container="")
    assert verdict.recovered != "somebody has stopped the lane"


def test_a_death_that_the_next_request_has_healed_is_no_state_and_a_second_one_is(lane: Lane) -> None:
    """As llama.cpp kills a model, once in thousands of evictions, that does not end in time."""
    for deaths in (1, 2):
        lane.change(state="unloaded", failed=True, holder=None)
        verdict = lane.see()
        lane.change(state="loaded", failed=False, holder="it")
        after = lane.see_for(30)
        assert (verdict.state, after.state) == ((HEALTHY, HEALTHY) if deaths == 1 else (DEGRADED, HEALTHY))


def test_the_start_limit_is_the_unit_files() -> None:
    text = (TOP / "templates/lane.service.j2").read_text()
    assert f"StartLimitIntervalSec={LIMIT_SECONDS}\n" in text
    assert f"StartLimitBurst={LIMIT_CRASHES + 1}\n" in text


def test_the_unit_files_own_restarts_are_known() -> None:
    text = (TOP / "templates/lane.service.j2").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("RestartForceExitStatus=")]
    assert {int(word) for word in line.partition("=")[2].split()} == AGAIN


def test_who_starts_the_lane_after_the_watchs_stop_begins_anew(lane: Lane) -> None:
    lane.change(holder="")
    for number in range(3):
        lane.until(acts("restart"))
        lane.restarted(invocation=f"try {number}", container=f"{number}" * 64)
    lane.until(acts("stop"))
    lane.unit = replace(lane.unit, active="inactive")
    lane.see_for(300, models=(), probe=None)
    first = len(lane.verdicts)
    lane.restarted(invocation="person", container="e" * 64)
    assert 55 <= lane.until(lambda verdict: bool(verdict.actions)) <= 65
    assert kinds(lane.verdicts[-1]) == ["restart"], "and not the stop again"
    assert all(verdict.state != FAILED for verdict in lane.verdicts[first + 4 :])


def test_a_start_by_a_deploy_during_a_recovery_is_left_alone(lane: Lane) -> None:
    _recovering(lane)
    lane.change(holder="")
    lane.restarted(invocation="deploy", container="e" * 64)
    assert lane.see().recovered == "somebody else has started the lane"
    assert not any(verdict.actions for verdict in [lane.see() for _ in range(9)])


def test_a_start_by_systemd_itself_is_nobodys_work(lane: Lane) -> None:
    _recovering(lane)
    lane.restarted(invocation="crash", container="e" * 64, restarts=1)
    lane.see()
    assert lane.history.attempts
    assert lane.history.recovery is not None


def test_restarts_that_helped_do_not_count(lane: Lane) -> None:
    for number in range(6):
        lane.change(holder="")
        lane.until(acts("restart"))
        lane.restarted(invocation=str(number), container=str(number) * 64)
        lane.change(holder="it", pid=100 + number)
        lane.until(lambda verdict: bool(verdict.recovered), limit=200)
        lane.see_for(400)
    assert [kind for verdict in lane.verdicts for kind in kinds(verdict)] == ["restart"] * 6


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("yes", "the lane is back on its accelerator"),
        ("unknown", "the probe did not succeed before either"),
        ("no", "the probe did not succeed before either"),
    ],
)
def test_a_probe_that_never_worked_stops_nothing_after_a_restart_for_another_reason(
    devices: str, words: str
) -> None:
    lane = Lane()
    lane.probe, lane.devices = "no", devices
    lane.see_for(300)
    lane.until(acts("restart"), models=(), router_fault="nothing in 9 s")
    lane.see(busy=True, models=(), probe=None)
    lane.restarted()
    lane.see(done=(Done("restart", ""),), probe=None)
    lane.until(lambda verdict: bool(verdict.recovered), limit=200)
    assert words in lane.verdicts[-1].recovered
    lane.see_for(1200)
    assert [kind for verdict in lane.verdicts for kind in kinds(verdict)] == ["restart"]


# -- llama.cpp's own list of devices --------------------------------------------------------------------


def test_it_is_asked_while_nothing_is_loaded_and_at_a_slow_rhythm(lane: Lane) -> None:
    assert not any(verdict.ask_fully for verdict in lane.verdicts), "a loaded model shows it by itself"
    lane.models = (Model("fast", "unloaded"),)
    first = len(lane.verdicts)
    lane.see_for(3600)
    assert 5 <= sum(verdict.ask_fully for verdict in lane.verdicts[first:]) <= 7
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_it_sees_a_loss_that_the_drivers_tool_does_not(lane: Lane) -> None:
    lane.models, lane.devices = (Model("fast", "unloaded"),), "no"
    lane.until(acts("restart"), limit=620)
    assert keys(lane.verdicts[-1]) == ["accelerator.new"]


def test_its_no_stands_until_it_says_yes(lane: Lane) -> None:
    lane.settings = replace(lane.settings, actions=frozenset())
    lane.models, lane.devices = (Model("fast", "unloaded"),), "no"
    lane.until(raised("accelerator.new"), limit=620)
    lane.models = (LOADED,)
    assert {lane.see().state for _ in range(60)} == {DEGRADED}, "and no tool's yes hides it"
    lane.devices = "yes"
    assert lane.until(lambda verdict: verdict.state == HEALTHY) <= 20
    assert not lane.verdicts[-1].ask_fully


def test_a_restart_has_helped_only_once_it_says_so(lane: Lane) -> None:
    lane.devices = "no"
    _lost_and_restarted(lane)
    lane.change(pid=99, holder="it")
    lane.until(acts("restart"), limit=200)
    assert not any(verdict.recovered for verdict in lane.verdicts)


def test_a_probe_that_worked_before_counts_through_all_restarts(lane: Lane) -> None:
    lane.probe = "no"
    for number in range(3):
        lane.until(acts("restart"))
        lane.restarted(invocation=str(number), container=str(number) * 64)
    lane.until(acts("stop"))


# -- nothing that does not serve, or is not seen, is healthy ----------------------------------------------


@pytest.mark.parametrize("state", ["activating", "deactivating", "reloading", "maintenance", "refreshing"])
def test_a_unit_that_does_not_get_on_is_said(lane: Lane, state: str) -> None:
    lane.unit = replace(lane.unit, active=state)
    key = "lane.stopping" if state == "deactivating" else "lane.starting"
    assert 55 <= lane.until(raised(key), models=(), probe=None) <= 70
    assert lane.verdicts[-1].state == FAILED
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_a_start_may_take_as_long_as_the_gate_waits() -> None:
    lane = Lane(start_seconds=90)
    lane.see_for(30)
    lane.unit = replace(lane.unit, active="activating")
    assert lane.see_for(90, models=(), probe=None).state == HEALTHY
    assert lane.until(raised("lane.starting"), models=(), probe=None) <= 15


def test_a_slow_stop_and_a_slow_start_are_two_waits(lane: Lane) -> None:
    for state in ("deactivating", "activating"):
        lane.unit = replace(lane.unit, active=state)
        lane.see_for(50, models=(), probe=None)
    lane.restarted()
    lane.see_for(30)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_a_router_that_never_listened_is_said_before_it_is_restarted(lane: Lane) -> None:
    lane.restarted()
    assert 55 <= lane.until(raised("router.starting"), models=(), router_fault="refused") <= 70
    assert lane.verdicts[-1].state == FAILED
    assert not any(verdict.actions for verdict in lane.verdicts)


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("the unit", {"unit": Unit(active="unknown"), "models": (), "probe": None}),
        ("the container", {"container": "", "models": (), "probe": None}),
        ("the accelerator", {"models": (), "probe": None}),
        ("memory", {"available_mib": None}),
        ("memory pressure", {"pressure_percent": None}),
        ("the kernel's log", {"blind": {"the kernel's log": "/dev/kmsg: Operation not permitted"}}),
    ],
)
def test_what_cannot_be_seen_is_said_after_a_minute(lane: Lane, what: str, seen: dict[str, object]) -> None:
    assert lane.see_for(55, **seen).state == HEALTHY
    assert lane.until(raised(f"watch.blind:{what}"), **seen) <= 15
    assert lane.verdicts[-1].state == DEGRADED
    assert not any(verdict.actions for verdict in lane.verdicts)
    assert lane.until(lambda verdict: verdict.state == HEALTHY) <= 20


def test_a_probe_that_answers_no_more_is_said(lane: Lane) -> None:
    old = Probe(lane.at, "yes", "GPU 0")
    assert lane.see_for(120, probe=old).state == HEALTHY
    assert lane.until(raised("watch.blind:the accelerator"), probe=old) <= 75


def test_a_systemd_that_does_not_answer_for_once_is_no_crash(lane: Lane) -> None:
    lane.unit = replace(lane.unit, restarts=7)
    lane.see_for(700)
    before = len(lane.history.crashes)
    lane.see(unit=Unit(active="unknown"), models=(), probe=None)
    lane.see()
    assert len(lane.history.crashes) == before


# -- a crash --------------------------------------------------------------------------------------------


def test_a_crash_now_and_then_is_said_each_time(lane: Lane) -> None:
    for count in range(1, 9):
        lane.restarted(invocation=f"crash {count}", container=f"{count}" * 64, restarts=count)
        verdict = lane.see(models=(), router_fault="refused", probe=None)
        assert keys(verdict) == ["lane.crashed"]
        assert verdict.state == DEGRADED
        assert f"crashed {min(count, 5)} time" in verdict.reasons[0].text
        assert lane.see_for(590).state == DEGRADED
        assert lane.see_for(190).state == HEALTHY
    assert not any(verdict.actions for verdict in lane.verdicts)


def test_a_crash_right_after_a_start_by_hand_is_counted(lane: Lane) -> None:
    lane.unit = replace(lane.unit, restarts=3)
    lane.see_for(1500)
    lane.restarted(restarts=1)
    lane.see()
    assert len(lane.history.crashes) == 4


def test_another_container_in_the_same_start_is_a_crash(lane: Lane) -> None:
    lane.container = "d" * 64
    assert keys(lane.see()) == ["lane.crashed"]
    assert len(lane.history.crashes) == 1
    lane.see_for(30)
    assert len(lane.history.crashes) == 1


def test_the_container_of_another_start_is_no_crash(lane: Lane) -> None:
    lane.unit = replace(lane.unit, active="inactive")
    lane.see_for(30, models=(), probe=None, container="")
    # The gate takes its time: the start is seen before its container.
    lane.unit = replace(lane.unit, active="activating", invocation="second")
    lane.see_for(20, models=(), probe=None, container="")
    lane.restarted()
    lane.see_for(30)
    assert lane.history.crashes == ()


def test_a_crash_loop_with_a_long_gate_is_never_green(lane: Lane) -> None:
    for count in range(1, 6):
        lane.unit = replace(lane.unit, active="activating", restarts=count)
        lane.see_for(90, models=(), probe=None)
    assert HEALTHY not in {verdict.state for verdict in lane.verdicts[-90:]}
