"""The program that talks to the lane's router: what it asks, and what it makes of any answer."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.router_server import CHAT, GOLDEN, KEY, Router, Turns, models, raw, running, states, stream

PROGRAM = Path(__file__).parents[2] / "files" / "gb10_router.py"
ON_GPU = "process 77 has /dev/nvidia-uvm mapped"


DEVICES = "Available devices:\n  CUDA0: NVIDIA GB10 (122570 MiB, 1 MiB free)\n"


class Expired(Exception):
    """A command did not end in time."""


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("gb10_router", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program = _load()


@pytest.fixture
def router() -> Iterator[Router]:
    with running() as server:
        server.answers["GET /models"] = models("after-lru")  # tiny-b is loaded, tiny-a is not
        server.answers["POST /v1/chat/completions"] = CHAT
        yield server


@pytest.fixture
def lane(router: Router, tmp_path: Path) -> dict[str, Any]:
    key = tmp_path / "api-key"
    key.write_text(f"{KEY}\n")
    presets = tmp_path / "models.ini"
    presets.write_text("[tiny-a]\n")
    return {"lane": "gb10-test-lane", "host": "127.0.0.1", "port": router.port, "device": "CUDA0",
            "signal": {"kind": "file", "path": "/dev/nvidia-uvm"}, "default_model": "tiny-a",
            "key_file": str(key), "presets": str(presets)}  # fmt: skip


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the host says apart from the router: unit state, journal, processes; and no waiting."""
    says = {
        "unit": "active",
        "journal": "its last line",
        "holder": ON_GPU,
        "lines": [],
        "exec": (0, DEVICES, ""),
    }

    def docker_exec(command: list[str], **_: Any) -> Any:
        assert command[:2] == ["docker", "exec"], command
        if says["exec"] is None:
            raise Expired
        status, output, errors = says["exec"]
        return SimpleNamespace(returncode=status, stdout=output, stderr=errors)

    monkeypatch.setattr(program, "unit_state", lambda lane: says["unit"])
    monkeypatch.setattr(program, "last_words", lambda lane: says["journal"])
    monkeypatch.setattr(program, "journal", lambda lane: says["lines"])
    monkeypatch.setattr(program, "subprocess", SimpleNamespace(run=docker_exec, TimeoutExpired=Expired))
    monkeypatch.setattr(program, "child_process", lambda lane, model: 77)
    monkeypatch.setattr(program, "accelerator_holder", lambda pid, signal: says["holder"])
    no_waiting = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    monkeypatch.setattr(program, "time", no_waiting)
    return says


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(lane: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program with the lane's file; exit status, standard output and error."""

    def call(*arguments: str, **changes: Any) -> tuple[int, str, str]:
        path = tmp_path / "lane.json"
        path.write_text(json.dumps(lane | changes))
        status = program.main([str(path), *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return call


def result(output: str) -> dict[str, Any]:
    """The one line of JSON of verify and probe."""
    (line,) = output.splitlines()
    answer = json.loads(line)
    assert answer["state"] in ("answered", "idle", "wrong", "down")
    assert "\n" not in answer.get("reason", "")
    return dict(answer)


LOADS = "POST /v1/chat/completions"


# -- probe ------------------------------------------------------------------------------------------


def test_probe_chats_with_what_is_loaded(run: Run, router: Router) -> None:
    status, output, _ = run("probe")
    assert status == 0
    assert result(output) == {
        "state": "answered",
        "reason": "",
        "model": "tiny-b",
        "tokens_per_second": 5560.0,
        "device": "CUDA0",
        "holder": ON_GPU,
    }
    assert router.lines == ["GET /models", LOADS]
    assert router.asked[1][1]["model"] == "tiny-b"
    # It was asked whether it would serve anybody; an empty request loads nothing.
    assert router.keyless == [(LOADS, {})]


@pytest.mark.parametrize("action", ["probe", "verify"])
def test_a_router_that_asks_for_no_key_is_down(action: str, run: Run, router: Router) -> None:
    router.wants_key = False
    answer = result(run(action)[1])
    assert answer["state"] == "down"
    assert answer["reason"] == "the router asks for no API key (it answered 200 without one)"


@pytest.mark.parametrize("key", ["", "\n", "#old", "two words"])
def test_a_file_without_a_key(key: str, run: Run, lane: dict[str, Any], router: Router) -> None:
    Path(lane["key_file"]).write_text(key)
    answer = result(run("probe")[1])
    assert "does not hold an API key" in answer["reason"]
    assert router.lines == []


@pytest.mark.parametrize(("recorded", "state"), [("cuda0-failed", "wrong"), ("sleeping", "idle")])
def test_probe_never_loads_a_model(recorded: str, state: str, run: Run, router: Router) -> None:
    router.answers["GET /models"] = models(recorded)
    status, output, _ = run("probe")
    assert status == 0
    assert result(output)["state"] == state
    # No other request: /metrics, /slots and /props of an unloaded model load it.
    assert router.lines == ["GET /models"]


@pytest.mark.parametrize(
    "state", ["unloaded", "loading", "sleeping", "downloading", "downloaded", "new-state"]
)
def test_probe_leaves_every_state_but_loaded_alone(state: str, run: Run, router: Router) -> None:
    router.answers["GET /models"] = states(**{"tiny-a": state})
    assert result(run("probe")[1])["state"] == "idle"
    assert router.lines == ["GET /models"]


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        ((0, "Available devices:\n  (none)\n", ""), "wrong", "a new process does not get CUDA0"),
        ((1, "", "error: invalid device: CUDA0\n"), "wrong", "a new process does not get CUDA0"),
        ((126, "", "OCI runtime exec failed: no space left\n"), "down", "docker exec: OCI runtime exec"),
        (None, "down", "did not end in 30 s"),
    ],
)
def test_with_nothing_loaded_a_new_process_must_get_the_accelerator(
    answer: Any, state: str, reason: str, run: Run, router: Router, host: dict[str, Any]
) -> None:
    router.answers["GET /models"] = states(**{"tiny-a": "unloaded"})
    host["exec"] = answer
    said = result(run("probe")[1])
    assert said["state"] == state
    assert reason in said["reason"]


def test_probe_takes_the_default_model_if_it_is_loaded(run: Run, router: Router) -> None:
    router.answers["GET /models"] = states(other="loaded", **{"tiny-a": "loaded"})
    run("probe")
    assert router.asked[1][1]["model"] == "tiny-a"


def test_an_answer_from_the_cpu_is_wrong(run: Run, host: dict[str, Any]) -> None:
    host["holder"] = ""
    status, output, _ = run("probe")
    assert status == 0
    answer = result(output)
    assert (answer["state"], answer["device"]) == ("wrong", "CPU")
    assert answer["reason"] == "tiny-b answers, but its process does not hold CUDA0"


def test_a_small_question() -> None:
    # A canary that fills a slot for long would be in the way of the users.
    assert program.VERIFY_TOKENS <= 64


# -- verify -----------------------------------------------------------------------------------------


def test_verify_with_something_loaded_loads_nothing_else(run: Run, router: Router) -> None:
    status, output, _ = run("verify")
    assert (status, result(output)["model"]) == (0, "tiny-b")
    assert router.asked[-1][1]["model"] == "tiny-b"


def test_verify_loads_the_default_model_when_none_is(run: Run, router: Router) -> None:
    router.answers["GET /models"] = models("cuda0-failed")
    status, output, _ = run("verify")
    assert (status, result(output)["model"]) == (0, "tiny-a")


def test_verify_waits_for_models_that_load_at_the_start(run: Run, router: Router) -> None:
    loading = states(**{"tiny-a": "unloaded", "tiny-b": "loading"})
    loaded = states(**{"tiny-a": "unloaded", "tiny-b": "loaded"})
    router.answers["GET /models"] = Turns(loading, loading, loaded)
    assert result(run("verify")[1])["model"] == "tiny-b"
    assert router.lines == ["GET /models"] * 3 + [LOADS]


def test_verify_of_a_model_on_the_cpu_fails(run: Run, host: dict[str, Any]) -> None:
    host["holder"] = ""
    status, output, _ = run("verify")
    assert (status, result(output)["state"]) == (1, "wrong")


def test_verify_of_a_model_that_cannot_load(run: Run, router: Router) -> None:
    text = (GOLDEN / "device-cuda0-completion.txt").read_text().splitlines()[0]
    router.answers["GET /models"] = models("cuda0-failed")
    router.answers[LOADS] = (500, text.encode())
    status, output, _ = run("verify")
    assert status == 1
    assert result(output) == {
        "state": "down",
        "reason": "POST /v1/chat/completions answered 500: model name=tiny-cuda failed to load",
    }


def test_verify_says_why_a_model_did_not_load(run: Run, router: Router, host: dict[str, Any]) -> None:
    host["lines"] = [
        "[40001] 0.00.018.457 E gguf_init_from_file: failed to open 'b' (of before)",
        "[36073] 0.00.018.457 I srv    load_model: loading model '/srv/models/a.gguf'",
        "[36073] 0.00.018.515 E gguf_init_from_file: failed to open '/srv/a.gguf' (Permission denied)",
        "[36073] 0.00.018.674 E cmn  common_init_: failed to load model '/srv/models/a.gguf'",
        "[36073] 0.00.020.179 E srv  llama_server: exiting due to model loading error",
        "0.06.121.291 I srv           run: instance name=tiny-a exited with status 1",
    ]
    router.answers["GET /models"] = models("cuda0-failed")
    router.answers[LOADS] = (500, b'{"error": {"message": "model name=tiny-a failed to load"}}')
    assert result(run("verify")[1])["reason"].endswith(
        "failed to load: gguf_init_from_file: failed to open '/srv/a.gguf' (Permission denied)"
    )


def test_why_a_model_did_not_load() -> None:
    line = 'error while handling argument "--device": invalid device: CUDA0'
    assert program.load_error([f"[40001] {line}", "0.1 I srv run: instance exited"]) == line
    assert program.load_error(["[40001] 0.00.018.457 I srv load_model: loading", "error of ours"]) == ""
    assert program.load_error([]) == ""


def test_verify_waits_until_the_router_listens(run: Run, router: Router) -> None:
    # Docker's proxy accepts and closes while nothing listens in the container.
    router.answers["GET /models"] = Turns(raw(), raw(), models("after-lru"))
    assert result(run("verify")[1])["state"] == "answered"


def test_verify_of_a_unit_that_failed_says_its_last_words(
    run: Run, host: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host["unit"], host["journal"] = "failed", "REFUSING to start x: no accelerator CUDA0"
    status, output, _ = run("verify", port=1)
    assert status == 1
    assert result(output)["reason"] == (
        "unit gb10-test-lane.service failed: REFUSING to start x: no accelerator CUDA0"
    )


def test_verify_gives_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "START_SECONDS", 0)
    answer = result(run("verify", port=1)[1])
    assert answer["reason"].startswith("no answer on port 1 in 0 s: ")
    assert answer["reason"].endswith(": its last line")


# -- answers of all sorts ---------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HTML = b"<html><body>\n<h1>502 Bad Gateway</h1>\x1b[31m\r\n</body></html>"
DEEP = b"[" * 100_000 + b"]" * 100_000

SHAPES: list[Any] = [
    None, [], {}, 3, "text", True, {"models": []},
    {"data": None}, {"data": {}}, {"data": {"a": 1}}, {"data": "abc"}, {"data": [None]}, {"data": [[]]},
    {"data": ["abc"]}, {"data": [{}]}, {"data": [{"id": "a"}]}, {"data": [{"id": "a", "status": None}]},
    {"data": [{"id": "a", "status": "loaded"}]}, {"data": [{"id": "a", "status": []}]},
]  # fmt: skip
BODIES: list[Any] = [b"", b"{", HTML, b"\xff\xfe", b"NaN", DEEP, b'{"data": [', b"\0" * 100]
STATUSES: list[Any] = [
    (401, {"error": {"message": "Invalid API Key"}}),
    (500, {"error": {"message": ["a", {"b": "c\nd"}]}}),
    (503, {"error": {"message": "a\nb\x1b[2J"}}),
    (500, {"error": "text"}), (500, []), (500, HTML), (500, b""), (500, DEEP), (404, b"x" * 9999), (301, b""),
]  # fmt: skip
OK = b"HTTP/1.1 200 OK\r\n"
MIB = b" " * (1 << 20)
WIRES: list[Any] = [
    raw(), raw(b"garbage\r\n\r\n"), raw(b"HTTP/1.1 abc OK\r\n\r\n"), raw(b"\0" * 70_000),
    raw(HEAD), raw(HEAD, b'{"data": ['),
    raw(CHUNKED), raw(CHUNKED, b'5\r\n{"da'), raw(CHUNKED, b"zz\r\n{}\r\n"), raw(CHUNKED, b"-5\r\n{}\r\n"),
    raw(OK, b"X: " + b"y" * 70_000 + b"\r\n\r\n"), raw(OK, b"X: y\r\n" * 200 + b"\r\n"),
    raw(OK, b"Content-Length: -5\r\n\r\n{"), raw(OK, b"Content-Length: x\r\n\r\n{"),
    raw(OK, b"\r\n", *[MIB] * 12), raw(OK, b"Content-Length: 99999999999\r\n\r\n", *[MIB] * 12),
]  # fmt: skip


@pytest.mark.parametrize("answer", [*SHAPES, *BODIES, *STATUSES, *WIRES], ids=lambda _: "")
def test_a_hostile_list_of_models_is_down_in_one_line(answer: Any, run: Run, router: Router) -> None:
    router.answers["GET /models"] = answer
    status, output, _ = run("probe")
    assert status == 0
    said = result(output)
    assert said["state"] in ("down", "idle", "wrong")
    assert said["reason"].isprintable()
    assert len(said["reason"]) < 700
    assert router.lines == ["GET /models"]


TIMINGS: list[Any] = [
    {"timings": None}, {"timings": []}, {"timings": {}}, {"timings": {"predicted_per_second": None}},
    {"timings": {"predicted_per_second": "fast"}}, {"timings": {"predicted_per_second": []}},
    b'{"timings": {"predicted_per_second": NaN}}', b'{"timings": {"predicted_per_second": 1e999}}',
    b'{"timings": {"predicted_per_second": 1' + b"0" * 400 + b"}}",
]  # fmt: skip


@pytest.mark.parametrize("answer", [*SHAPES, *BODIES, *STATUSES, *WIRES, *TIMINGS], ids=lambda _: "")
def test_a_hostile_completion_is_down_in_one_line(answer: Any, run: Run, router: Router) -> None:
    router.answers[LOADS] = answer
    status, output, _ = run("probe")
    assert (status, result(output)["state"]) == (0, "down")
    status, output, _ = run("verify")
    assert (status, result(output)["state"]) == (1, "down")


def test_a_model_with_a_hostile_name(run: Run, router: Router) -> None:
    router.answers["GET /models"] = states(**{"a\nb\x1b[2J": "loaded"})
    assert result(run("probe")[1])["model"] == "a\nb\x1b[2J"


def test_no_answer_in_time(lane: dict[str, Any], router: Router) -> None:
    router.answers["GET /models"] = raw(b"", b"", pause=0.4)
    with pytest.raises(TimeoutError, match=r"GET /models got no answer in 0 s"):
        program.request(lane, "GET", "/models", timeout=0.1)


def test_an_answer_that_drips(lane: dict[str, Any], router: Router) -> None:
    # Each byte comes in time, the answer never ends.
    router.answers["GET /models"] = raw(HEAD, *[b"x"] * 200, pause=0.02)
    with pytest.raises(TimeoutError, match="got no answer"):
        program.request(lane, "GET", "/models", timeout=0.3)


def test_a_header_that_drips(lane: dict[str, Any], router: Router) -> None:
    router.answers["POST /models/unload"] = raw(b"HTTP/1.1 200 OK\r\nX: ", *[b"x"] * 200, pause=0.02)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="got no answer"):
        program.request(lane, "POST", "/models/unload", {"model": "a"}, timeout=0.3)
    assert time.monotonic() - began < 2


def test_an_answer_that_would_take_all_memory(lane: dict[str, Any], router: Router) -> None:
    # Small on the wire, and thirty times that as Python's objects.
    router.answers["GET /models"] = b'{"data":[' + b"[]," * 500_000 + b"[]]}"
    with pytest.raises(program.RouterError, match="longer than 1 MiB"):
        program.request(lane, "GET", "/models")


def test_slow_is_not_wrong(lane: dict[str, Any], router: Router) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"
    router.answers["GET /models"] = raw(head, b'{"a"', b": 1}", pause=0.02)
    assert program.request(lane, "GET", "/models") == {"a": 1}


def test_nothing_listens(run: Run) -> None:
    answer = result(run("probe", port=1)[1])
    assert answer["state"] == "down"
    assert "refused" in answer["reason"]
    assert run("chat", "Hello", port=1)[::2] == (
        1,
        "gb10_router.py chat: nothing listens on port 1: the lane does not run (gb10 status says why)\n",
    )


# -- the key ----------------------------------------------------------------------------------------


def test_another_key(run: Run, lane: dict[str, Any]) -> None:
    Path(lane["key_file"]).write_text("other\n")
    assert result(run("probe")[1])["reason"] == "GET /models answered 401: Invalid API Key"


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nsecret", b"secret\r\nX-A: 1", b"\xffsecret", b"a\0b"])
def test_a_file_that_holds_no_key(content: bytes, run: Run, lane: dict[str, Any], router: Router) -> None:
    Path(lane["key_file"]).write_bytes(content)
    answer = result(run("probe")[1])
    assert "does not hold an API key" in answer["reason"]
    assert "secret" not in answer["reason"]
    assert router.asked == []


def test_no_key_file(run: Run, lane: dict[str, Any]) -> None:
    Path(lane["key_file"]).unlink()
    assert "No such file" in result(run("probe")[1])["reason"]


def test_the_key_is_never_printed(run: Run) -> None:
    for action in ("probe", "verify"):
        assert KEY not in "".join(map(str, run(action)))
    assert KEY not in "".join(map(str, run("chat", "hello")))


# -- reload -----------------------------------------------------------------------------------------


def test_reload_records_what_was_read(lane: dict[str, Any], router: Router, tmp_path: Path) -> None:
    router.answers["GET /models?reload=1"] = models("after-lru")
    (tmp_path / "gb10-test-lane").mkdir()
    program.reload(lane, run=str(tmp_path))
    record = (tmp_path / "gb10-test-lane" / "presets.sha256").read_text()
    assert record.split()[0] == hashlib.sha256(b"[tiny-a]\n").hexdigest()
    assert router.lines == ["GET /models", "GET /models?reload=1"]


def test_a_reload_that_fails_records_nothing(run: Run, router: Router) -> None:
    router.answers["GET /models?reload=1"] = (500, {"error": {"message": "preset file cannot be read"}})
    status, _, errors = run("reload")
    assert status == 1
    assert errors == "gb10_router.py reload: GET /models answered 500: preset file cannot be read\n"


# -- chat -------------------------------------------------------------------------------------------


def delta(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


END = {"choices": [{"delta": {}}], "timings": {"predicted_per_second": 55.44}}


def test_chat(run: Run, router: Router) -> None:
    router.answers[LOADS] = stream(
        {"choices": [{"delta": {"content": None}}]}, delta("Hel"), delta("lo"), END
    )
    assert run("chat", "say", "hello")[:2] == (0, "Hello\n[tiny-a: 55.4 tok/s]\n")
    body = router.asked[0][1]
    assert (body["model"], body["stream"]) == ("tiny-a", True)
    assert body["messages"] == [{"role": "user", "content": "say hello"}]


def test_chat_with_a_model(run: Run, router: Router) -> None:
    router.answers[LOADS] = stream(delta("x"))
    assert run("chat", "--model", "tiny-b", "hello")[:2] == (0, "x\n[tiny-b]\n")


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (stream(delta("x"), done=False), "the answer was cut off"),
        (stream({"error": {"code": 500, "message": "Context size has been exceeded."}}), "Context size has"),
        (stream({"error": "text"}), "text"),
        (raw(CHUNKED, b"9\r\ndata: {x\n\r\n0\r\n\r\n"), "the answer was cut off"),
        (stream({"choices": None}), "TypeError"),
        (stream({"choices": [{"delta": None}]}), "AttributeError"),
        ((500, {"error": {"message": "model name=x failed to load"}}), "500: model name=x failed to load"),
        ((404, HTML), "answered 404: <html>"),
        (raw(), "no HTTP answer"),
    ],
)  # fmt: skip
def test_a_chat_that_fails_is_one_line(answer: Any, word: str, run: Run, router: Router) -> None:
    router.answers[LOADS] = answer
    status, _, errors = run("chat", "hello")
    assert status == 1
    assert word in errors
    assert len(errors.splitlines()) == 1


# -- the command line -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [[], ["sing"], ["chat"], ["chat", "--model"], ["chat", "--model", "tiny-b"]]
)
def test_usage(arguments: list[str], run: Run, router: Router) -> None:
    status, _, errors = run(*arguments)
    assert status == 2
    assert "Usage:" in errors
    assert router.asked == []


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", '{"lane": "x"}'])
def test_a_description_it_cannot_read(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lane.json"
    path.write_text(text)
    assert program.main([str(path), "probe"]) == 0
    assert result(capsys.readouterr().out)["state"] == "down"
    assert program.main([str(path), "verify"]) == 1
    assert program.main([str(path), "chat", "x"]) == 1
    assert program.main([str(tmp_path / "none"), "probe"]) == 0
