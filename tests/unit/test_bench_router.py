"""The bench's client of the router, against recorded, streamed and broken answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyinfra.api.exceptions import PyinfraError

from gb10.bench.residents import put_back, residents
from gb10.bench.router import Router as RouterClient
from gb10.bench.router import RouterFault
from tests.unit.bench_runs import Models, connected
from tests.unit.router_server import CHATS, GOLDEN, KEY, Router, Turns, models, raw, running, states, stream

TIMINGS = {"prompt_n": 3, "predicted_n": 2, "prompt_per_second": 10.0, "predicted_per_second": 5.0}
END = {"content": "", "stop": True, "timings": TIMINGS}
NO_SPEED = {"stop": True, "timings": {**TIMINGS, "predicted_per_second": "nan"}}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "


@pytest.fixture
def server() -> Iterator[Router]:
    with running() as router:
        yield router


@pytest.mark.parametrize("name", ["after-lru", "cuda0-failed", "initial", "sleeping"])
def test_recorded_states(server: Router, name: str) -> None:
    server.answers["GET /models"] = models(name)
    states = connected(server).states()
    assert states
    assert all(state.value for state in states.values())


def test_a_failed_model_has_its_exit_code(server: Router) -> None:
    server.answers["GET /models"] = models("cuda0-failed")
    assert any(state.failed and state.exit_code == 1 for state in connected(server).states().values())


def test_a_completion_has_the_servers_figures_and_our_first_token(server: Router) -> None:
    server.answers["POST /completion"] = stream({"content": "a", "stop": False}, END)
    done = connected(server).complete("tiny-a", [1, 2, 3], 2)
    assert (done.prompt_tokens, done.tokens, done.prompt_speed, done.speed) == (3, 2, 10.0, 5.0)
    assert 0 < done.first_token <= done.seconds
    body = server.asked[-1][1]
    assert (body["cache_prompt"], body["ignore_eos"], body["n_predict"]) == (False, True, 2)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        pytest.param((500, {"error": {"message": "Context size"}}), "500: Context size", id="500"),
        pytest.param(stream({"content": "a", "stop": False}, done=False), "cut off", id="cut"),
        pytest.param(stream({"error": {"message": "out\nof memory"}}), "out of memory", id="error event"),
        pytest.param(raw(HEAD + b"20\r\n\r\nerror: {\"message\": 1}\n"), "POST", id="error"),
        pytest.param(raw(HEAD + b"9\r\n\r\ndata: {[]\n"), "JSON", id="no JSON"),
        pytest.param(raw(b"SSH-2.0-OpenSSH\r\n"), "cut off", id="no HTTP"),
        pytest.param(raw(), "cut off", id="closed"),
        pytest.param(stream({"stop": True, "timings": {"prompt_n": 1}}), "no timings", id="no timings"),
        pytest.param(stream(NO_SPEED), "no timings", id="nan"),
    ],
)  # fmt: skip
def test_a_completion_that_fails_is_one_line(server: Router, answer: Any, what: str) -> None:
    server.answers["POST /completion"] = answer
    with pytest.raises(RouterFault) as caught:
        connected(server).complete("tiny-a", [1], 2)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("timings", "what"),
    [
        ({"predicted_n": 1}, "ended after 1 of 2 tokens"),
        ({"prompt_n": 2}, "2 of 3 prompt tokens were computed"),
    ],
)
def test_less_than_was_asked_is_no_figure(server: Router, timings: dict[str, int], what: str) -> None:
    server.answers["POST /completion"] = stream({**END, "timings": {**TIMINGS, **timings}})
    with pytest.raises(RouterFault, match=what):
        connected(server).complete("tiny-a", [1, 2, 3], 2)


def recorded_chat(name: str) -> tuple[dict[str, Any], ...]:
    lines = (GOLDEN / name).read_text().splitlines()
    return tuple(json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))


def test_a_chat_is_put_together_from_its_pieces(server: Router) -> None:
    server.answers[CHATS] = stream(*recorded_chat("chat-stream-tiny-a.txt"))
    message = connected(server).chat("tiny-a", [], 4)
    assert message == {"role": "assistant", "content": "@@@@", "finish_reason": "length"}
    assert server.asked[-1][1]["stream"] is True


def test_calls_in_pieces(server: Router) -> None:
    calls = [
        {"id": number, "type": "function", "function": {"name": "f", "arguments": f'{{"a": {number}}}'}}
        for number in ("1", "2")
    ]
    server.answers[CHATS] = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    assert connected(server).chat("tiny-a", [], 4)["tool_calls"] == calls


def test_pieces_that_are_null_are_none(server: Router) -> None:
    pieces = [
        {"index": 0, "id": "1", "function": {"name": "f", "arguments": None}},
        {"index": 0, "function": None},
    ]
    events = [{"choices": [{"delta": {"content": None, "tool_calls": [piece]}}]} for piece in pieces]
    server.answers[CHATS] = stream(*events, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    (call,) = connected(server).chat("tiny-a", [], 4)["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": ""}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"choices": []}],
        [{}],
        [{"choices": 5}],
        [{"choices": [{"delta": None}]}],
        [{"choices": [{"delta": {"content": 5}}]}],
        [{"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]}],
        [{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": 5}}]}}]}],
    ],
)
def test_a_chat_that_is_none(server: Router, events: list[dict[str, Any]]) -> None:
    server.answers[CHATS] = stream(*events)
    with pytest.raises(RouterFault, match="has no choice"):
        connected(server).chat("tiny-a", [], 4)


def test_a_chat_that_breaks_off(server: Router) -> None:
    server.answers[CHATS] = stream(*recorded_chat("chat-stream-tiny-a.txt")[:2], done=False)
    with pytest.raises(RouterFault, match="cut off"):
        connected(server).chat("tiny-a", [], 4)
    server.answers[CHATS] = stream({"error": {"message": "no room"}})
    with pytest.raises(RouterFault, match="no room"):
        connected(server).chat("tiny-a", [], 4)


def test_a_way_that_is_refused_is_a_fault_of_the_router(server: Router) -> None:
    def refused(_: float) -> Any:
        raise PyinfraError("its sshd refuses to forward")

    with pytest.raises(RouterFault, match="refuses to forward"):
        RouterClient(refused, KEY).states()


def test_a_text_without_tokens_is_a_fault(server: Router) -> None:
    server.answers["POST /tokenize"] = {"tokens": []}
    with pytest.raises(RouterFault, match="no tokens"):
        connected(server).tokenize("a", "x")


@pytest.mark.parametrize(
    "content", [b"<html>", b"[]", b"{}", b'{"data": [{"id": 1}]}', b'{"data": 7}', b"null"]
)
def test_models_in_another_shape(server: Router, content: bytes) -> None:
    server.answers["GET /models"] = content
    with pytest.raises(RouterFault, match="GET /models"):
        connected(server).states()


def test_a_wrong_key_is_said_and_not_shown(server: Router) -> None:
    router = connected(server, key="sk-secret-of-somebody")
    with pytest.raises(RouterFault, match="401") as caught:
        router.states()
    assert "sk-secret" not in str(caught.value) + repr(router)
    assert (GOLDEN / "api-401.txt").exists()


def test_nobody_there(server: Router) -> None:
    router = connected(server)
    server.port = 1
    with pytest.raises(RouterFault, match="GET /models: nothing listens"):
        router.states()


def test_load_and_unload_wait(server: Router) -> None:
    known = Models(server, "a", "b")
    router = connected(server)
    assert router.load("a") > 0
    assert router.loaded() == ["a"]
    router.unload("a")
    router.unload("a")  # it is not loaded: nothing is asked
    assert known.loaded == []
    assert server.lines.count("POST /models/unload") == 1


def test_a_model_that_does_not_load(server: Router) -> None:
    Models(server, "a").broken.add("a")
    with pytest.raises(RouterFault, match=r"a does not load \(its process ended with 1\)"):
        connected(server).load("a")


def test_busy_never_loads(server: Router) -> None:
    Models(server, "a", "b").states["a"] = "loaded"
    server.answers["GET /slots?model=a&autoload=false"] = [{"is_processing": True}, {"is_processing": False}]
    found = residents(connected(server))
    assert (found.loaded, found.busy) == (("a",), {"a": 1})
    assert not [line for line in server.lines if "model=b" in line or line.startswith("POST")]


def test_a_model_that_does_not_say_is_not_idle(server: Router) -> None:
    Models(server, "a").states["a"] = "loaded"
    server.answers["GET /slots?model=a&autoload=false"] = (501, {"error": {"message": "no slots"}})
    assert residents(connected(server)).busy == {"a": None}


def test_a_model_on_its_way_is_not_cut_off(server: Router) -> None:
    known = Models(server, "a")
    known.states["a"] = "loading"
    known.left = {"a": 3}
    connected(server).unload("a")
    assert known.loaded == []
    assert known.cut_off == []


def test_what_was_on_its_way_before_is_waited_for(server: Router) -> None:
    known = Models(server, "a", "b")
    known.states.update(a="loading", b="loading")
    known.left = {"a": 3, "b": 3}
    assert put_back(connected(server), ["a"]) == []
    assert known.states == {"a": "loaded", "b": "unloaded"}
    assert known.cut_off == []


def test_a_load_that_pushes_another_out_is_said(server: Router) -> None:
    known = Models(server, "a", "b")
    known.most = 1
    (fault,) = put_back(connected(server), ["a", "b"])
    assert fault == "a was loaded before and is not: another one has taken its place"


def test_what_somebody_else_has_loaded_meanwhile_is_back(server: Router) -> None:
    known = Models(server, "a")

    def already(handler: Any) -> None:
        known.states["a"] = "loaded"
        server.answers["400"] = (400, {"error": {"message": "model is already running"}})
        server.answer(handler, "400")

    server.answers["POST /models/load"] = already
    assert put_back(connected(server), ["a"]) == []


def test_what_was_loaded_is_loaded_again(server: Router) -> None:
    known = Models(server, "a", "b", "c")
    known.states.update(b="loaded", c="loaded")
    assert put_back(connected(server), ["a", "c"]) == []
    assert known.loaded == ["a", "c"]
    # What is in the way goes first.
    assert server.lines.index("POST /models/unload") < server.lines.index("POST /models/load")


def test_a_model_that_had_to_be_killed_is_said(server: Router) -> None:
    killed = {"data": [{"id": "b", "status": {"value": "unloaded", "failed": True, "exit_code": 1}}]}
    server.answers["GET /models"] = Turns(*[states(b="loaded")] * 3, killed)
    server.answers["POST /models/unload"] = {"success": True}
    server.answers["GET /slots?model=b&autoload=false"] = []
    (fault,) = put_back(connected(server), [])
    assert fault.startswith("b did not end when it was unloaded, and was killed")


def test_what_cannot_be_put_back_is_said(server: Router) -> None:
    Models(server, "a").broken.add("a")
    (fault,) = put_back(connected(server), ["a"])
    assert fault.startswith("a was loaded before and is not")
    server.answers["GET /models"] = (500, b"gone")
    (fault,) = put_back(connected(server), ["a"])
    assert "a) are not back" in fault
