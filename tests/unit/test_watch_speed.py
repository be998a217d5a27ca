"""Speed: what counts as slow, what does not, and when a canary is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gb10_watch_state import DEGRADED, HEALTHY

from tests.unit.watching import LOADED, Lane, keys


@pytest.fixture
def lane() -> Lane:
    lane = Lane()
    lane.see_for(120)
    return lane


def serve(lane: Lane, seconds: float, speed: float, requests: int = 1) -> None:
    """Traffic all the time: a figure at each look."""
    for _ in range(int(seconds / 5)):
        lane.traffic(100, speed)
        lane.change(requests=requests)
        lane.see()
    lane.change(requests=0)


def test_traffic_at_the_baseline_is_healthy(lane: Lane) -> None:
    serve(lane, 600, 38.0)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}
    assert lane.history.speeds["fast"].figure == pytest.approx(38.0)


def test_one_client_at_a_third_of_the_speed_is_seen_within_a_minute(lane: Lane) -> None:
    began = lane.at
    while lane.see().state == HEALTHY:
        lane.traffic(100, 13.2)
        lane.change(requests=1)
        assert lane.at - began <= 60
    assert keys(lane.verdicts[-1]) == ["speed:fast"]
    assert lane.verdicts[-1].reasons[0].text == "fast makes 13.2 tok/s, 33 % of its 40.0"
    assert not lane.verdicts[-1].actions, "it holds the accelerator: a restart is no answer"


def test_slow_for_a_moment_is_no_fault(lane: Lane) -> None:
    for _ in range(10):
        serve(lane, 25, 13.0)
        serve(lane, 5, 39.0)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_a_model_that_is_fast_again_is_healthy_again(lane: Lane) -> None:
    serve(lane, 60, 13.0)
    assert lane.verdicts[-1].state == DEGRADED
    serve(lane, 30, 39.0)
    assert lane.verdicts[-1].state == HEALTHY


def test_eight_clients_are_slow_each_and_that_is_no_fault(lane: Lane) -> None:
    serve(lane, 600, 9.0, requests=8)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_slow_beside_a_busy_model_is_no_fault(lane: Lane) -> None:
    lane.models = (*lane.models, replace(LOADED, name="other", pid=78, requests=1))
    serve(lane, 600, 9.0)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_a_suspicion_is_cleared_by_a_canary_once_the_lane_is_idle(lane: Lane) -> None:
    serve(lane, 30, 9.0, requests=8)
    assert not any(verdict.canaries for verdict in lane.verdicts), "not beside other work"
    lane.until(lambda verdict: verdict.canaries == ("fast",), limit=30)
    lane.see(asking=frozenset({"fast"}))
    lane.see(canaries={"fast": 39.0})
    lane.see_for(120)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}
    assert len([verdict for verdict in lane.verdicts if verdict.canaries]) == 1


def test_a_suspicion_is_confirmed_by_two_canaries_on_an_idle_lane(lane: Lane) -> None:
    serve(lane, 30, 9.0, requests=8)
    for _ in range(2):
        assert lane.verdicts[-1].state == HEALTHY
        lane.until(lambda verdict: bool(verdict.canaries), limit=30)
        lane.see(asking=frozenset({"fast"}))
        lane.see(canaries={"fast": 12.0})
    assert keys(lane.verdicts[-1]) == ["speed:fast"]


def test_a_canary_beside_which_somebody_came_says_nothing(lane: Lane) -> None:
    serve(lane, 30, 9.0, requests=8)
    for _ in range(5):
        lane.until(lambda verdict: bool(verdict.canaries), limit=60)
        lane.change(requests=2)
        lane.see(asking=frozenset({"fast"}))
        lane.change(requests=0)
        lane.see(canaries={"fast": 12.0})
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_an_idle_model_is_asked_at_a_slow_rhythm_only() -> None:
    lane = Lane()
    lane.see_for(2 * 3600)
    # Nothing answers: it is asked again after the same time, not at once.
    assert len([verdict for verdict in lane.verdicts if verdict.canaries]) == 3


def test_canaries_that_are_off() -> None:
    lane = Lane(canary_seconds=0)
    lane.see_for(60)
    serve(lane, 60, 9.0, requests=8)
    lane.see_for(7200)
    assert not any(verdict.canaries for verdict in lane.verdicts)


def test_canaries_go_in_the_order_of_use_so_that_the_order_stays() -> None:
    lane = Lane()
    lane.models = tuple(replace(LOADED, name=name, pid=ord(name)) for name in "abc")
    lane.see_for(20)
    for name in "bca":
        lane.traffic(100, 40.0, name)
        lane.see_for(20)
    lane.until(lambda verdict: bool(verdict.canaries), limit=2000)
    assert lane.verdicts[-1].canaries == ("b", "c", "a")
    used = {name: speed.used for name, speed in lane.history.speeds.items()}
    for name in "bca":  # what a canary does is nobody's use
        lane.traffic(32, 40.0, name)
        lane.see(asking=frozenset("abc"))
    lane.see(canaries=dict.fromkeys("abc", 40.0))
    assert {name: speed.used for name, speed in lane.history.speeds.items()} == used


def test_without_a_baseline_a_speed_is_shown_and_never_judged() -> None:
    lane = Lane(baselines={})
    lane.see_for(60)
    serve(lane, 300, 0.5)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}
    assert lane.history.speeds["fast"].figure == pytest.approx(0.5)


def test_counters_that_begin_anew_with_a_new_process_are_no_speed(lane: Lane) -> None:
    serve(lane, 60, 38.0)
    lane.change(pid=99, tokens=10.0, seconds=100.0)
    lane.see()
    assert lane.history.speeds["fast"].figure is None


def test_few_tokens_are_gathered_until_they_say_something(lane: Lane) -> None:
    for _ in range(3):
        lane.traffic(20, 40.0)
        lane.see()
    assert lane.history.speeds["fast"].figure == pytest.approx(40.0)


def test_a_look_without_an_answer_forgets_no_speed(lane: Lane) -> None:
    serve(lane, 60, 38.0)
    lane.see(models=(), router_fault="nothing in 4 s")
    assert lane.history.speeds["fast"].figure == pytest.approx(38.0)


def write(
    lane: Lane, seconds: float, speed: float, task: int = 7, so_far: int = 1, requests: int = 1
) -> None:
    """One answer that is being written all the time: no counter moves."""
    for step in range(1, int(seconds / 5) + 1):
        lane.change(requests=requests, answer=(task, so_far + int(5 * speed * step)))
        lane.see()


def test_a_long_answer_shows_its_speed_while_it_is_written(lane: Lane) -> None:
    write(lane, 30, 39.0)
    assert lane.history.speeds["fast"].figure == pytest.approx(39.0)
    assert lane.verdicts[-1].state == HEALTHY


def test_a_long_answer_at_a_third_is_seen_before_it_ends(lane: Lane) -> None:
    write(lane, 30, 13.0)
    assert lane.verdicts[-1].state == HEALTHY, "not so soon"
    write(lane, 15, 13.0, task=70)
    assert keys(lane.verdicts[-1]) == ["speed:fast"]
    lane.change(requests=0, answer=None)
    lane.see()
    write(lane, 30, 39.0, task=8)
    assert lane.verdicts[-1].state == HEALTHY


def test_a_prompt_that_is_being_read_is_no_slow_answer(lane: Lane) -> None:
    for _ in range(60):
        lane.change(requests=1, answer=None)
        lane.see()
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_one_answer_after_the_other_is_no_slow_answer(lane: Lane) -> None:
    for task in range(60):
        lane.change(requests=1, answer=(task, 3))
        lane.see()
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}


def test_an_answer_beside_others_says_nothing(lane: Lane) -> None:
    write(lane, 60, 5.0, requests=3)
    assert {verdict.state for verdict in lane.verdicts} == {HEALTHY}
