"""A bench against a stub router: what is asked, what is kept, what a fault ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gb10.bench import prompts
from gb10.bench.coding import CodingTask
from gb10.bench.prompts import ClientLoad, PromptSource, client_loads, refuse
from gb10.bench.residents import put_back
from gb10.bench.result import Device, Figure
from gb10.bench.run import Ended, Options, bench_model
from gb10.bench.tools import Scenario, Step
from gb10.bench.variants import Held as NotHeld
from gb10.slots import Slots
from tests.unit.bench_runs import OPTIONS, Held, Models, Quiet, bench, connected, result
from tests.unit.router_server import Router, Turns, running

TASK = CodingTask(name="add", prompt="Write add.", tests="", solution="", wrong="")


def said(content: str, **more: Any) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": content, **more}, "finish_reason": "stop"}]
    }


@pytest.fixture
def server() -> Iterator[Router]:
    with running() as router:
        router.models = Models(router, "a", "b")  # type: ignore[attr-defined]
        router.answers["POST /v1/chat/completions"] = said("```python\nright\n```")
        yield router


def options(*parts: str) -> Options:
    return Options(**{**OPTIONS.__dict__, "parts": parts})


def test_every_part(server: Router) -> None:
    server.models.speeds = [1.0, 40.0, 50.0, 70.0, 50.0]  # type: ignore[attr-defined]  # the first warms up
    scenario = Scenario.model_validate(
        {"name": "no-call", "tools": [], "steps": [{"user": "x", "text": ["right"]}]}
    )
    made = bench(server, coding=[TASK], scenarios=[scenario])
    into = result()
    bench_model(made, "a", into)
    found = into.models["a"]
    assert found.faults == []
    assert found.load is not None
    assert found.load.memory_mib == 1000
    assert found.speed is not None
    assert found.speed.generation == Figure(median=50.0, spread=20.0, runs=[40.0, 50.0, 70.0])
    assert (found.speed.prompt_tokens, found.speed.tokens) == (32, 8)
    assert [(row.kind, row.clients, row.failures) for row in found.clients] == [
        ("short", 1, 0), ("short", 4, 0), ("long", 1, 0), ("long", 4, 0),
    ]  # fmt: skip
    assert all(row.first_token and len(row.first_token.runs) == row.clients for row in found.clients)
    assert found.coding is not None
    assert found.tools is not None
    assert (found.coding.passed, found.tools.passed) == (1, 1)
    assert [part for _, part in made.show.parts] == ["load", "speed", "clients", "coding", "tools"]  # type: ignore[attr-defined]


def test_a_load_that_would_push_another_out_is_measured_alone(server: Router) -> None:
    models = server.models  # type: ignore[attr-defined]
    models.states["b"] = "loaded"
    models.most = 1
    sizes = {"a": 1000, "b": 700}
    made = bench(server, free_mib=lambda: 9000 - sum(sizes[name] for name in models.loaded))
    into = result()
    bench_model(made, "a", into)
    load = into.models["a"].load
    assert load is not None
    assert load.memory_mib == 1000


def test_memory_that_grew_in_a_load_is_not_known(server: Router) -> None:
    into = result()
    memory = iter([8000, 8101]).__next__
    bench_model(bench(server, options=options("load"), free_mib=memory), "a", into)
    load = into.models["a"].load
    assert load is not None
    assert load.memory_mib is None


def test_memory_is_not_known_where_another_model_comes(server: Router) -> None:
    models = server.models  # type: ignore[attr-defined]

    def somebody_asks_b() -> int:
        models.states["b"] = "loaded"
        return 9000

    into = result()
    bench_model(bench(server, options=options("load"), free_mib=somebody_asks_b), "a", into)
    load = into.models["a"].load
    assert load is not None
    assert load.memory_mib is None


def test_no_two_clients_have_the_same_prompt(server: Router) -> None:
    bench_model(bench(server, options=options("clients")), "a", result())
    starts = [tuple(body["prompt"][:8]) for line, body in server.asked if line == "POST /completion"]
    assert len(starts) == len(set(starts)) == 10


def test_a_request_that_fails_is_counted_with_its_reason(server: Router) -> None:
    server.answers["POST /completion"] = (500, {"error": {"message": "Context size has been exceeded."}})
    into = result()
    bench_model(bench(server, options=options("clients")), "a", into)
    assert len(into.models["a"].faults) == 4
    row = into.models["a"].clients[1]
    assert (row.failures, row.aggregate) == (4, None)
    assert row.reasons == ["POST /completion answered 500: Context size has been exceeded."]


def test_a_model_that_does_not_load_ends_itself_only(server: Router) -> None:
    server.models.broken.add("a")  # type: ignore[attr-defined]
    made, into = bench(server), result()
    for name in ("a", "b"):
        bench_model(made, name, into)
    assert into.models["a"].speed is None
    assert into.models["a"].faults[0].startswith("load: a does not load")
    assert into.models["b"].speed is not None


def test_a_router_that_is_gone_ends_the_bench_and_what_was_measured_is_kept(server: Router) -> None:
    made, into = bench(server), result()

    def gone(model: str) -> Device:
        server.answers["GET /models"] = (502, b"bad gateway")
        server.answers["POST /completion"] = (502, b"bad gateway")
        return Device(state="answered")

    made.device = gone
    with pytest.raises(Ended, match="no longer answers: GET /models answered 502"):
        bench_model(made, "a", into)
    assert into.models["a"].speed is not None
    assert len(into.models["a"].faults) == 1


@pytest.mark.parametrize("part", ["coding", "tools"])
def test_a_task_without_a_router_is_no_failed_task(server: Router, part: str) -> None:
    scenario = Scenario.model_validate({"name": "x", "tools": [], "steps": [{"user": "x", "text": ["y"]}]})
    made, into = bench(server, options=options("load", part), coding=[TASK], scenarios=[scenario]), result()

    def gone(handler: BaseHTTPRequestHandler) -> None:
        server.answers["GET /models"] = (502, b"")
        handler.close_connection = True

    server.answers["POST /v1/chat/completions"] = gone
    with pytest.raises(Ended, match="no longer answers"):
        bench_model(made, "a", into)
    assert into.models["a"].load is not None
    assert (into.models["a"].coding, into.models["a"].tools) == (None, None)


def test_a_model_on_the_cpu_is_a_fault(server: Router) -> None:
    made, into = bench(server, device=lambda model: Device(state="wrong", name="CPU")), result()
    bench_model(made, "a", into)
    why = "a does not run on the accelerator (wrong): its figures are no baseline"
    assert into.models["a"].faults == [f"speed: {why}", f"clients: {why}"]


@pytest.mark.parametrize("part", ["clients", "slots"])
def test_a_model_that_falls_to_the_cpu_later_has_no_figures(server: Router, part: str) -> None:
    states = iter(["answered", "wrong", "answered", "answered"])
    made, into = bench(server, options=options("speed", part)), result()
    made.device = lambda model: Device(state=next(states))
    bench_model(made, "a", into)
    assert not into.models["a"].on_accelerator
    (fault,) = into.models["a"].faults
    assert fault.startswith(part)


def test_unified_against_split(server: Router) -> None:
    made, into = bench(server, options=options("slots")), result()
    bench_model(made, "a", into)
    held = made.presets
    assert isinstance(held, Held)
    assert [keys["kv-unified"] for keys in held.asked] == ["false", "true"]
    assert held.now == {}
    assert set(into.models["a"].slots) == {"unified", "split"}
    # A split slot has 1024 tokens: 208 fit in both.
    assert all(row.skipped is None for rows in into.models["a"].slots.values() for row in rows)


def test_one_slot_is_said_and_is_no_fault(server: Router) -> None:
    made, into = (
        bench(server, options=options("slots"), slots=lambda model: (Slots(4096, 1, True), 0)),
        result(),
    )
    bench_model(made, "a", into)
    assert into.models["a"].faults == []
    assert isinstance(made.show, Quiet)
    assert "one slot" in made.show.lines[0]


def somebody_is_at(server: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is answered by b for longer than a bench waits."""
    monkeypatch.setattr("gb10.bench.residents.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("gb10.bench.residents.WAIT_SECONDS", 0.05)
    server.models.states["b"] = "loaded"  # type: ignore[attr-defined]
    server.answers["GET /slots?model=b&autoload=false"] = [{"is_processing": True}]


@pytest.mark.parametrize("part", ["speed", "clients"])
def test_a_figure_beside_somebody_else_is_none(
    server: Router, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody_is_at(server, monkeypatch)
    into = result()
    bench_model(bench(server, options=options(part)), "a", into)
    found = into.models["a"]
    assert (found.speed, found.clients) == (None, [])
    assert found.faults == [f"{part}: b answers somebody else: a figure would be of both"]
    # What is soon over is waited for.
    server.answers["GET /slots?model=b&autoload=false"] = Turns([{"is_processing": True}], [])
    bench_model(bench(server, options=options(part)), "b", into)
    assert into.models["b"].faults == []


def beside(server: Router, times: int, name: str = "a") -> None:
    """Somebody else is answered, too short for any look, beside each of the next ``times`` completions."""
    models, left = server.models, [times]  # type: ignore[attr-defined]
    complete = server.answers["POST /completion"]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if server.asked[-1][1]["n_predict"] > 1 and left[0]:
            left[0] -= 1
            models.worked[name] += 20
        complete(handler)

    server.answers["POST /completion"] = answer


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_run_beside_a_short_answer_is_done_again(server: Router, name: str) -> None:
    server.models.states["b"] = "loaded"  # type: ignore[attr-defined]
    beside(server, 1, name)
    into = result()
    bench_model(bench(server, options=options("speed")), "a", into)
    assert into.models["a"].faults == []
    assert into.models["a"].speed is not None
    runs = [body for line, body in server.asked if line == "POST /completion" and body["n_predict"] > 1]
    assert len(runs) == OPTIONS.runs + 1


@pytest.mark.parametrize("part", ["speed", "clients"])
def test_short_answers_again_and_again_are_a_fault(server: Router, part: str) -> None:
    beside(server, 99)
    into = result()
    bench_model(bench(server, options=options(part)), "a", into)
    assert (into.models["a"].speed, into.models["a"].clients) == (None, [])
    (fault,) = into.models["a"].faults
    assert "somebody else was answered meanwhile, 4 times" in fault


def test_counters_of_six_digits_accuse_nobody(server: Router) -> None:
    server.models.worked["a"] = 7_654_321  # type: ignore[attr-defined]
    into = result()
    bench_model(bench(server, options=options("speed", "clients")), "a", into)
    assert into.models["a"].faults == []


def test_a_model_that_answers_somebody_is_not_unloaded(
    server: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody_is_at(server, monkeypatch)
    into = result()
    bench_model(bench(server, options=options("load")), "a", into)
    assert server.models.loaded == ["b"]  # type: ignore[attr-defined]
    assert into.models["a"].faults == ["load: b answers somebody else: a figure would be of both"]
    # Nor at the end, when it is one that was not there before.
    (fault,) = put_back(connected(server), [])
    assert fault == "b was not loaded before and still is: it answers somebody"
    # Whoever said so at the beginning gets it.
    bench_model(bench(server, options=options("load"), cut=["b"]), "a", into)
    assert server.models.loaded == ["a"]  # type: ignore[attr-defined]


def test_a_row_is_kept_as_soon_as_it_is_there(server: Router) -> None:
    made, into = bench(server, options=options("clients")), result()
    take = made.prompts("a").take

    def interrupted(tokens: int) -> list[int]:
        if tokens == OPTIONS.long:
            raise KeyboardInterrupt
        return take(tokens)

    made.prompts("a").take = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench_model(made, "a", into)
    assert [(row.kind, row.clients) for row in into.models["a"].clients] == [("short", 1), ("short", 4)]


def test_clients_of_a_router_that_is_gone_end_the_bench(server: Router) -> None:
    made, into = bench(server, options=options("clients")), result()

    def gone(handler: BaseHTTPRequestHandler) -> None:
        server.answers["GET /models"] = (502, b"")
        handler.close_connection = True

    server.answers["POST /completion"] = gone
    with pytest.raises(Ended, match="no longer answers"):
        bench_model(made, "a", into)
    assert len(into.models["a"].clients) == 1


def test_rows_of_presets_that_nobody_knows_are_none(server: Router) -> None:
    made, into = bench(server, options=options("slots")), result()

    @contextmanager
    def held(*_: Any) -> Iterator[Slots]:
        yield Slots(4096, 4, unified=True)
        raise NotHeld("models.ini has been changed by somebody else")

    made.presets.held = held  # type: ignore[method-assign]
    bench_model(made, "a", into)
    found = into.models["a"]
    assert found.slots == {}
    assert found.faults == ["slots: models.ini has been changed by somebody else"]


def test_presets_go_back_when_no_model_is_on_its_way(server: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    made, into = bench(server, options=options("slots")), result()
    models = server.models  # type: ignore[attr-defined]
    models.states["a"] = "loaded"
    then: list[str] = []

    @contextmanager
    def held(*_: Any) -> Iterator[Slots]:
        try:
            yield Slots(4096, 4, unified=True)
        finally:
            then.append(models.states["a"])

    def stopped(_model: str) -> float:
        models.states["a"], models.left["a"] = "loading", 3
        raise KeyboardInterrupt

    made.presets.held = held  # type: ignore[method-assign]
    monkeypatch.setattr(made.router, "load", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench_model(made, "a", into)
    assert then == ["loaded"]


@pytest.mark.parametrize("part", ["coding", "tools"])
def test_a_task_whose_model_died_is_no_wrong_answer(server: Router, part: str) -> None:
    scenario = Scenario.model_validate(
        {"name": "x", "tools": [], "steps": [{"user": "x", "text": ["right"]}]}
    )
    tasks = [TASK, TASK.model_copy(update={"name": "b"})]
    scenarios = [scenario, scenario.model_copy(update={"name": "y"})]
    made = bench(server, options=options(part), coding=tasks, scenarios=scenarios)
    into = result()

    def dies(handler: BaseHTTPRequestHandler) -> None:
        models = server.models  # type: ignore[attr-defined]
        models.states["a"] = "unloaded"
        models.broken.add("a")
        server.answers["500"] = (500, {"error": {"message": "proxy error"}})
        server.answer(handler, "500")

    first = said("```python\nright\n```")
    server.answers["POST /v1/chat/completions"] = Turns(first, dies)
    bench_model(made, "a", into)
    rate = getattr(into.models["a"], part)
    assert (rate.passed, rate.of, rate.broken_off) == (1, 1, True)
    (fault,) = into.models["a"].faults
    assert fault.startswith(f"{part}: a is no longer loaded (its process ended with 1): ")


def test_an_interrupted_client_load_cuts_the_others(server: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    made, into = bench(server, options=options("clients")), result()
    cut: list[bool] = []
    monkeypatch.setattr(made.router, "abort", lambda: cut.append(True))
    monkeypatch.setattr("threading.Thread.join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        bench_model(made, "a", into)
    assert cut


def test_an_answer_without_a_program(server: Router) -> None:
    server.answers["POST /v1/chat/completions"] = Turns(said("no code"), said("```python\nwrong\n```"))
    into = result()
    bench_model(
        bench(server, options=options("coding"), coding=[TASK, TASK.model_copy(update={"name": "b"})]),
        "a",
        into,
    )
    rate = into.models["a"].coding
    assert rate is not None
    assert [task.why for task in rate.tasks.values()] == ["no program in the answer", "wrong"]


@pytest.mark.parametrize("part", ["coding", "tools"])
def test_a_request_that_fails_is_no_wrong_answer(server: Router, part: str) -> None:
    server.models.states["a"] = "loaded"  # type: ignore[attr-defined]
    server.answers["POST /v1/chat/completions"] = Turns(
        (503, {"error": {"message": "busy"}}), said("```python\nright\n```")
    )
    into = result()
    tasks = [TASK, TASK.model_copy(update={"name": "b"})]
    scenarios = [Scenario(name=name, tools=[], steps=[Step(user="?")]) for name in (TASK.name, "b")]
    bench_model(bench(server, options=options(part), coding=tasks, scenarios=scenarios), "a", into)
    found = into.models["a"]
    assert found.faults == [f"{part}, {TASK.name}: POST /v1/chat/completions answered 503: busy"]
    rate = getattr(found, part)
    assert (rate.words, rate.broken_off) == ("1/1, broken off", True)


# -- prompts ---------------------------------------------------------------------------------------


def test_a_prompt_is_as_long_as_it_should_be() -> None:
    source = PromptSource(lambda text: list(range(len(text.split()))))
    for length in (1, 64, 20000):
        assert len(source.take(length)) == length
    first, second = source.take(64), source.take(64)
    assert first != second


def test_a_text_is_the_same_every_time() -> None:
    assert prompts.text(50) == prompts.text(50)
    assert len(prompts.text(50).split()) == 50
    assert prompts.text(50, 2) != prompts.text(50)


def test_a_text_without_tokens_does_not_turn_for_ever() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        PromptSource(lambda text: []).take(10)


def test_the_loads_of_a_full_bench() -> None:
    loads = client_loads(128, 20000)
    assert [(load.kind, load.clients) for load in loads] == [
        ("short", 1), ("short", 4), ("short", 8), ("long", 1), ("long", 4), ("long", 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "clients", "trained", "why"),
    [
        (Slots(212992, 8, True), 8, 0, None),
        (Slots(32768, 8, True), 1, 0, None),
        (Slots(32768, 8, True), 8, 0, "8 at once of 20128 tokens need 161024 cells, the pool has 32768"),
        (Slots(32768, 1, True), 8, 0, None),  # they wait
        (Slots(65536, 8, False), 1, 0, "20128 tokens each, a request can have 8192"),
        (Slots(262144, 8, False), 8, 0, None),
        (Slots(262144, 8, True, 16384), 1, 0, "20128 tokens each, a request can have 16384"),
        (Slots(262144, 8, True), 1, 8192, "20128 tokens each, a request can have 8192"),
    ],
)
def test_what_slots_cannot_hold(slots: Slots, clients: int, trained: int, why: str | None) -> None:
    found = refuse(ClientLoad(clients, "long", 20000, 128), slots, trained)
    assert found is None if why is None else (found or "").startswith(why)
