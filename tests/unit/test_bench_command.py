"""`gb10 bench` from the command line, the connection to the box, and what is found out about it."""

from __future__ import annotations

import errno
import io
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event
from paramiko import SSHException
from paramiko.ssh_exception import ChannelException
from pyinfra.api.exceptions import PyinfraError
from rich.console import Console

from gb10.bench import ctrl_c, on_box, tunnel
from gb10.bench.on_box import BoxUnderTest, git_revision
from gb10.bench.result import load
from gb10.bench.router import RouterFault
from gb10.bench.show import Progressing
from gb10.bench.variants import Presets
from gb10.commands import bench as command
from gb10.facts.bench_box import BenchBox
from gb10.facts.found import FoundModels
from gb10.facts.probes import bench_box
from gb10.slots import Slots
from tests.unit import boxes
from tests.unit.bench_runs import Models, connected
from tests.unit.commands import gb10
from tests.unit.router_server import Router, running

Captured = pytest.CaptureFixture[str]
MODEL = "gemma-4-E4B"
ENABLED = boxes.box().catalogue.enabled
SAID = {"image": "gb10/llama-server:b1", "image_id": "sha256:1", "presets": "f" * 64, "driver": "580.95"}
ON_GPU = (
    '{"state": "answered", "model": "gemma-4-E4B", "tokens_per_second": 9, "device": "CUDA0", "holder": "x"}'
)


class Server:
    """A stub router, and the box around it."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.models = Models(router, MODEL, "gemma-4-31B", "gpt-oss-20b")
        self.models.states["gemma-4-31B"] = "loaded"
        self.commands: list[list[str]] = []
        self.held: list[tuple[Any, str]] = []
        presets = boxes.box().presets_file.content
        self.answers: dict[str, tuple[int, str, str]] = {
            "cat /proc/meminfo": (0, "MemTotal: 9 kB\nMemAvailable:  102400 kB\n", ""),
            f"cat {boxes.box().presets_path}": (0, presets, ""),
            "python3 -I": (0, ON_GPU, ""),
            "rm -rf": (0, "", ""),
        }

    def run(self, _host: Any, line: Any, stdin: str = "", seconds: float = 60) -> tuple[int, str, str]:
        self.commands.append(list(line))
        shown = " ".join(line)
        return next(answer for start, answer in self.answers.items() if shown.startswith(start))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running() as router:
        there = Server(router)
        nothing = {"models": [], "passed": []}
        host = boxes.FactHost({BenchBox: SAID, FoundModels: nothing})

        @contextmanager
        def connect(inventory: Path, name: str | None) -> Iterator[Any]:
            yield host

        monkeypatch.setattr(command, "connected", connect)
        monkeypatch.setattr(command.deploy_lock, "take", lambda *held: there.held.append(held))
        monkeypatch.setattr(on_box, "desired", lambda _: boxes.box())
        monkeypatch.setattr(on_box, "run_as_root", there.run)
        monkeypatch.setattr(on_box, "read_key", lambda *_: "unused")
        monkeypatch.setattr(on_box, "Router", lambda *_: connected(router))
        monkeypatch.setattr("gb10.bench.variants.run_as_root", there.run)
        yield there


def test_what_is_no_subcommand_is_a_model(server: Server, tmp_path: Path, capsys: Captured) -> None:
    words = ("--quick", "--part", "load", "--part", "speed", "--out", tmp_path / "results")
    status, output, errors = gb10(
        capsys, "bench", MODEL, *words, "--save-baseline", "--baselines", tmp_path / "baselines"
    )
    assert status == 0, errors
    assert MODEL in output
    assert "loaded now: gemma-4-31B" in errors
    assert [what for _, what in server.held] == ["gb10 bench"]
    (path,) = (tmp_path / "results").iterdir()
    found = load(path)
    assert (found.driver, found.image.tag, found.interrupted) == ("580.95", SAID["image"], False)
    speed = found.models[MODEL].speed
    assert speed is not None
    assert speed.generation.median == 50.0
    assert found.plan.total_mib == 122070
    assert (tmp_path / "baselines" / "gb10.local.json").exists()
    # As it was.
    assert server.models.loaded == ["gemma-4-31B"]


def test_without_a_name_all_that_is_served(server: Server, tmp_path: Path, capsys: Captured) -> None:
    server.models.states.update(dict.fromkeys((one.name for one in ENABLED), "unloaded"))
    assert gb10(capsys, "bench", "--part", "load", "--out", tmp_path)[0] == 0
    (path,) = tmp_path.iterdir()
    found = load(path)
    assert set(found.models) == {one.name for one in ENABLED}
    assert (found.settings.named, found.settings.clients) == ([], [1, 4, 8])
    assert server.models.loaded == []


def test_a_model_of_the_catalogue_that_is_not_served_is_a_fault(
    server: Server, tmp_path: Path, capsys: Captured
) -> None:
    status, _, errors = gb10(capsys, "bench", "--part", "load", "--out", tmp_path)
    assert status == 1
    assert "qwen3-coder-next: the catalogue has it on, the router does not serve it" in errors
    (path,) = tmp_path.iterdir()
    assert set(load(path).models) == {MODEL, "gemma-4-31B", "gpt-oss-20b"}
    assert server.models.loaded == ["gemma-4-31B"]


@pytest.mark.parametrize(
    ("name", "what"),
    [("gemma-4-E4", "did you mean|gemma-4-E4B"), ("gemma-4-12B", "the catalogue has it off")],
)
def test_a_name_that_is_not_served(
    server: Server, tmp_path: Path, capsys: Captured, name: str, what: str
) -> None:
    status, _, errors = gb10(capsys, "bench", name, "--out", tmp_path)
    assert status == 1
    assert any(word in errors for word in what.split("|"))
    assert not [line for line in server.router.lines if line.startswith("POST")]
    # An empty result would be the newest one of the report.
    assert list(tmp_path.iterdir()) == []


def test_a_bench_that_is_stopped_before_its_first_figure_leaves_none(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gb10.bench.measure.load_time", interrupted)
    status, _, errors = gb10(capsys, "bench", MODEL, "--part", "load", "--out", tmp_path)
    assert status == 130
    assert "nothing was measured: no result is written" in errors
    assert list(tmp_path.iterdir()) == []


def test_nothing_measured_is_no_success(server: Server, tmp_path: Path, capsys: Captured) -> None:
    # One slot: unified and split are the same.
    status, _, errors = gb10(capsys, "bench", "gpt-oss-20b", "--part", "slots", "--out", tmp_path)
    assert "it has one slot" in errors
    assert (status, list(tmp_path.iterdir())) == (1, [])


def test_a_folder_that_takes_no_result_is_said_before(
    server: Server, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "file").touch()
    status, _, errors = gb10(capsys, "bench", MODEL, "--part", "load", "--out", tmp_path / "file")
    assert status == 1
    assert "no place for a result" in errors
    assert server.router.lines == []


def test_a_busy_model_is_not_disturbed_without_a_word(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.router.answers["GET /slots?model=gemma-4-31B&autoload=false"] = [{"is_processing": True}] * 2
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = ("bench", MODEL, "--part", "load", "--out", tmp_path)
    status, _, errors = gb10(capsys, *words)
    assert status == 1
    assert "gemma-4-31B answers 2 requests now" in errors
    assert list(tmp_path.iterdir()) == []
    assert gb10(capsys, *words, "--yes")[0] == 0


def test_a_fault_is_exit_1_and_the_rest_is_kept(server: Server, tmp_path: Path, capsys: Captured) -> None:
    server.models.broken.add(MODEL)
    status, _, errors = gb10(capsys, "bench", MODEL, "gpt-oss-20b", "--part", "load", "--out", tmp_path)
    assert status == 1
    assert f"{MODEL} does not load" in errors
    (path,) = tmp_path.iterdir()
    assert load(path).models["gpt-oss-20b"].load is not None


def test_requests_that_fail_are_exit_1(server: Server, tmp_path: Path, capsys: Captured) -> None:
    server.router.answers["POST /completion"] = (500, {"error": {"message": "Context size"}})
    words = ("--part", "clients", "--quick", "--long", "300", "--out", tmp_path)
    status, _, errors = gb10(capsys, "bench", MODEL, *words)
    assert status == 1
    assert "4 x 64 tokens: 4 failed: POST /completion answered 500: Context size" in errors
    (path,) = tmp_path.iterdir()
    assert len(load(path).models[MODEL].clients) == 4


def test_a_router_that_goes_away_is_a_result_without_an_end(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        server.router.answers["GET /models"] = (502, b"")
        raise RouterFault("cut off")

    monkeypatch.setattr("gb10.bench.measure.speed", gone)
    words = ("--part", "load", "--part", "speed", "--save-baseline", "--baselines", tmp_path / "baselines")
    status, _, errors = gb10(capsys, "bench", MODEL, *words, "--out", tmp_path / "results")
    assert status == 1
    assert "the router no longer answers" in errors
    (path,) = (tmp_path / "results").iterdir()
    assert load(path).interrupted
    assert not (tmp_path / "baselines").exists()


def test_a_second_ctrl_c_leaves_the_box_and_keeps_what_was_measured(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("gb10.bench.measure.speed", interrupted)
    monkeypatch.setattr(command, "put_back", twice)
    status, _, errors = gb10(capsys, "bench", MODEL, "--part", "load", "--part", "speed", "--out", tmp_path)
    assert status == 130
    assert "The box is not as it was" in errors
    (path,) = tmp_path.iterdir()
    assert load(path).models[MODEL].load is not None


def test_presets_that_are_not_back_are_said(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def held(presets: Presets, *_: Any) -> Iterator[Any]:
        presets.faults.append("models.ini has been changed by somebody else")
        yield interrupted()

    monkeypatch.setattr("gb10.bench.variants.Presets.held", held)
    monkeypatch.setattr(BoxUnderTest, "slots", lambda *_: (Slots(4096, 4, unified=True), 0))
    words = ("--part", "load", "--part", "slots", "--out", tmp_path)
    status, _, errors = gb10(capsys, "bench", MODEL, *words)
    assert status == 130
    assert "models.ini has been changed by somebody else" in errors
    assert "The box is not as it was" in errors


def interrupted(*_: Any, **__: Any) -> Any:
    signal.raise_signal(signal.SIGINT)
    gevent.sleep(5)


def test_ctrl_c_keeps_what_was_measured_and_puts_the_box_back(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gb10.bench.measure.speed", interrupted)
    status, _, errors = gb10(capsys, "bench", MODEL, "--part", "load", "--part", "speed", "--out", tmp_path)
    assert status == 130
    assert "The box is as it was" in errors
    (path,) = tmp_path.iterdir()
    found = load(path)
    assert found.interrupted
    assert found.models[MODEL].load is not None
    assert server.models.loaded == ["gemma-4-31B"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_disk_at_the_end_costs_the_file_and_not_the_figures(
    server: Server, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(command, "save", full)
    status, output, errors = gb10(capsys, "bench", MODEL, "--part", "load", "--out", tmp_path)
    assert status == 1
    assert MODEL in output
    assert f"the result cannot be written to {tmp_path}: No space left on device" in errors
    assert "no result is written" in errors
    assert "nothing was measured" not in errors


def test_lower_alone_is_no_wish(server: Server, capsys: Captured) -> None:
    status, _, errors = gb10(capsys, "bench", "--lower")
    assert status == 1
    assert "--lower is a way of --save-baseline" in errors


def test_a_box_that_cannot_be_put_back_is_said(server: Server, tmp_path: Path, capsys: Captured) -> None:
    def last(handler: Any) -> None:
        server.models.broken.add("gemma-4-31B")
        server.models.states["gemma-4-31B"] = "unloaded"
        server.models.change("loaded")(handler)

    server.router.answers["POST /models/load"] = last
    status, _, errors = gb10(capsys, "bench", MODEL, "--part", "load", "--out", tmp_path)
    assert status == 1
    assert "gemma-4-31B was loaded before and is not" in errors


def test_a_baseline_wants_a_speed(server: Server, capsys: Captured) -> None:
    status, _, errors = gb10(capsys, "bench", "--part", "load", "--save-baseline")
    assert status == 1
    assert "a baseline is a speed" in errors


def test_a_claim_without_its_model_is_not_measured(server: Server, tmp_path: Path, capsys: Captured) -> None:
    claims = tmp_path / "story.yaml"
    claims.write_text(
        "speed: {says: one beats the other, unit: tok/s, sides: {one: {model: gemma-4-E4B, story: 62.25},"
        " other: {model: gemma-4-12B}}}"
    )
    status, output, _ = gb10(capsys, "bench", "story", "--claims", claims, "--out", tmp_path / "results")
    assert status == 0
    assert "62.25" in output
    assert "50.0" in output
    assert "not measured" in output
    # What was tried and failed is no claim without a run.
    server.answers["python3 -I"] = (0, ON_GPU.replace("answered", "wrong"), "")
    line = ("bench", "story", "--claims", claims, "--out", tmp_path / "more")
    status, output, errors = gb10(capsys, *line)
    assert status == 1
    assert "gemma-4-E4B: the model does not run on the accelerator (wrong)" in errors
    assert list((tmp_path / "more").iterdir()) == []


# -- ctrl-c ------------------------------------------------------------------------------------------


def test_two_at_once_are_one() -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with ctrl_c.reaches_us():
        gevent.spawn(twice)
        with pytest.raises(KeyboardInterrupt):
            gevent.sleep(5)
        gevent.sleep(0.05)  # the second one would come here


def test_ctrl_c_reaches_us_from_another_greenlet() -> None:
    def wait() -> None:
        gevent.spawn(signal.raise_signal, signal.SIGINT)
        gevent.sleep(5)

    with ctrl_c.reaches_us(), pytest.raises(KeyboardInterrupt):
        wait()


def test_ctrl_c_that_comes_late_waits_too() -> None:
    """It was on its way from another greenlet when the putting back began."""
    said: list[str] = []
    answer = Event()

    def last_answer() -> None:
        answer.set()
        signal.raise_signal(signal.SIGINT)

    with ctrl_c.reaches_us():
        gevent.spawn(last_answer)
        answer.wait()
        with ctrl_c.waits(said.append):
            gevent.sleep(0.05)
    assert len(said) == 1


def test_while_the_box_is_put_back_the_first_ctrl_c_waits() -> None:
    said: list[str] = []
    with ctrl_c.waits(said.append):
        signal.raise_signal(signal.SIGINT)
        assert len(said) == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# -- the tunnel --------------------------------------------------------------------------------------


class Channel:
    """A channel with an answer in it."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = io.BytesIO(answer)
        self.sent = b""
        self.closed = False

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, size: int) -> bytes:
        return self.answer.read(size)

    def settimeout(self, seconds: float | None) -> None: ...

    def close(self) -> None:
        self.closed = True


def host_with(open_channel: Callable[..., Any]) -> Any:
    transport = SimpleNamespace(open_channel=open_channel)
    client = SimpleNamespace(get_transport=lambda: transport)
    return SimpleNamespace(name="box", connector=SimpleNamespace(client=client))


def test_http_goes_through_a_channel() -> None:
    import http.client

    channel = Channel(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody")
    asked: list[Any] = []

    def open_channel(*what: Any, **_: Any) -> Channel:
        asked.append(what)
        return channel

    wire = tunnel.wire_to(host_with(open_channel), 10103)
    connection = http.client.HTTPConnection("127.0.0.1")
    connection.sock = wire(5)  # type: ignore[assignment]
    connection.request("GET", "/x")
    response = connection.getresponse()
    assert not channel.closed  # the answer is still to be read
    assert response.read() == b"body"
    response.close()
    assert channel.closed
    assert asked == [("direct-tcpip", ("127.0.0.1", 10103), ("127.0.0.1", 0))]
    assert channel.sent.startswith(b"GET /x HTTP/1.1")


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (ChannelException(1, "prohibited"), PyinfraError, "refuses to forward"),
        (ChannelException(2, "failed"), ConnectionError, "nothing listens on port 10103"),
        (SSHException("closed"), ConnectionError, "the SSH connection is gone"),
        (EOFError(), ConnectionError, "the SSH connection is gone"),
    ],
)
def test_a_channel_that_does_not_open(error: Exception, kind: type[Exception], what: str) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    with pytest.raises(kind, match=what):
        tunnel.wire_to(host_with(refuse), 10103)(5)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((1, "", "cat: no such file\n"), "cannot be read: cat: no such file"),
        ((0, "", ""), "does not hold an API key"),
        ((0, "two words", ""), "does not hold an API key"),
    ],
)
def test_a_key_that_is_none(answer: tuple[int, str, str], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "run_as_root", lambda *_: answer)
    with pytest.raises(PyinfraError, match=what) as caught:
        tunnel.read_key(host_with(lambda: None), "/etc/x/api-key")
    assert "two words" not in str(caught.value)


# -- what it runs on -----------------------------------------------------------------------------------


def test_the_box_is_asked_by_its_own_means(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    presets = tmp_path / "models.ini"
    presets.write_text("[*]\n")
    answers = {"docker": "gb10/llama-server:b1 sha256:22", "nvidia-smi": "580.95.05\n580.95.05"}
    monkeypatch.setattr(bench_box, "run", lambda *words: answers[words[0]])
    found = bench_box.main({"lane": "lane", "presets": str(presets)})
    assert (found["image"], found["image_id"], found["driver"]) == (
        "gb10/llama-server:b1",
        "sha256:22",
        "580.95.05",
    )
    assert len(found["presets"]) == 64
    monkeypatch.setattr(bench_box, "run", lambda *_: "")
    assert bench_box.main({"lane": "lane", "presets": "/nowhere"}) == dict.fromkeys(found, "")


def test_the_revision_is_marked_where_files_differ(tmp_path: Path) -> None:
    assert git_revision(tmp_path) == ""

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    clean = git_revision(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert git_revision(tmp_path) == clean + "+"


@pytest.mark.parametrize("answer", ["", "[]", '{"state": 1}', "Traceback"])
def test_a_device_that_nobody_can_tell_is_not_the_accelerator(server: Server, answer: str) -> None:
    server.answers["python3 -I"] = (1, answer, "")
    box = BoxUnderTest(boxes.FactHost({FoundModels: {"models": [], "passed": []}}))  # type: ignore[arg-type]
    assert box.device(MODEL).state != "answered"


def test_progress_without_a_terminal_is_lines() -> None:
    console = Console(file=io.StringIO(), width=80, record=True)
    with Progressing(console, 2) as show:
        show.part("[a]", "load")
        show.step("one")
        show.line("[b] " + "x" * 100)
    assert console.export_text().splitlines() == ["[a] load", "[a] load: one", "[b] " + "x" * 100]
