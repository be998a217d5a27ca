"""The hand of the watch: it does the few things that it knows, for whom it knows, and nothing else."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gb10_router
import gb10_watch_hand as program
import pytest
from gb10_watch_container import Container
from gb10_watch_eyes import ask_hand

from gb10.rendering import TOP

CONFIG: dict[str, Any] = {
    "probe": {"command": ["nvidia-smi", "-L"], "expect": "GPU 0: "},
    "devices": {"command": ["llama-server", "--list-devices"], "expect": "CUDA0: "},
    "restarts_file": "/nonexistent/restarts.json",
    "processes": {"command": ["nvidia-smi", "--query-compute-apps=pid"]},
}
LANE = {"lane": "llamacpp-playground"}
UNIT = "llamacpp-playground.service"


@pytest.fixture(autouse=True)
def restarts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kept.json"
    monkeypatch.setitem(CONFIG, "restarts_file", str(path))
    return path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; each succeeds and prints a GPU."""
    commands: list[list[str]] = []

    def run(command: Any, timeout: float) -> tuple[int, str]:
        commands.append(list(command))
        return 0, "CUDA0: NVIDIA GB10\n" if "llama-server" in commands[-1] else "GPU 0: NVIDIA GB10\n"

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(Container, "run", lambda self, command, most: run(["in", self.name, *command], most))
    return commands


def test_the_verbs(ran: list[list[str]]) -> None:
    hand = program.Hand(CONFIG, LANE)
    assert hand.answer("probe") == {"answer": "yes", "text": "GPU 0: NVIDIA GB10"}
    assert hand.answer("devices") == {"answer": "yes", "text": "CUDA0: NVIDIA GB10"}
    assert hand.answer("processes")["answer"] == "yes"
    assert hand.answer("restart") == {"answer": "yes", "text": ""}
    assert hand.answer("stop") == {"answer": "yes", "text": ""}
    assert ran == [
        ["in", "llamacpp-playground", "nvidia-smi", "-L"],
        ["in", "llamacpp-playground", "llama-server", "--list-devices"],
        ["nvidia-smi", "--query-compute-apps=pid"],
        ["systemctl", "is-active", UNIT],
        ["systemctl", "reset-failed", UNIT],
        ["systemctl", "try-restart", UNIT],
        ["systemctl", "stop", UNIT],
    ]


@pytest.mark.parametrize(
    "verb", ["", "start", "RESTART", "stop ssh.service", "restart;id", "probe --privileged", "\0", "é"]
)
def test_what_it_does_not_know_it_does_not_do(ran: list[list[str]], verb: str) -> None:
    assert program.Hand(CONFIG, LANE).answer(verb) == {"answer": "no", "text": "there is no such verb"}
    assert ran == []


def test_a_loss_needs_a_second_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "AGAIN_SECONDS", 0.0)
    outputs = [(255, "Failed to initialize NVML: Unknown Error"), (0, "GPU 0: NVIDIA GB10")]
    monkeypatch.setattr(Container, "run", lambda *_: outputs.pop(0))
    assert program.Hand(CONFIG, LANE).answer("probe")["answer"] == "yes"
    outputs += [(255, "Failed to initialize NVML: Unknown Error")] * 2
    assert program.Hand(CONFIG, LANE).answer("probe")["answer"] == "no"


def test_a_restart_that_cannot_be_counted_is_refused(ran: list[list[str]], tmp_path: Path) -> None:
    config = CONFIG | {"restarts_file": str(tmp_path / "no-folder/restarts.json")}
    for _ in range(3):  # lives of the program: it ends when nobody asks
        answer = program.Hand(config, LANE).answer("restart")
        assert answer["answer"] == "no"
        assert "cannot be counted" in answer["text"]
    assert ran == []


def test_a_full_disk_keeps_no_restart_away(
    ran: list[list[str]], restarts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.Hand(CONFIG, LANE)
    size = restarts_file.stat().st_size
    opened = os.open

    def no_room(path: str, flags: int, mode: int = 0o777) -> int:
        if not Path(path).exists() or flags & os.O_TRUNC:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags, mode)

    monkeypatch.setattr(program.os, "open", no_room)
    answers = [program.Hand(CONFIG, LANE).answer("restart")["answer"] for _ in range(12)]
    assert answers == ["yes"] * program.MOST_RESTARTS + ["no"] * 2
    assert restarts_file.stat().st_size == size, "it is written over itself"


@pytest.mark.parametrize(
    ("state", "verb"),
    [("active", "try-restart"), ("inactive", "try-restart"), ("deactivating", "try-restart"),
     ("failed", "restart"), ("", "try-restart")],
)  # fmt: skip
def test_what_somebody_has_stopped_is_not_started(
    monkeypatch: pytest.MonkeyPatch, state: str, verb: str
) -> None:
    commands: list[list[str]] = []

    def run(command: Any, timeout: float) -> tuple[int, str]:
        commands.append(list(command))
        return (0 if state == "active" else 3, f"{state}\n") if "is-active" in command else (0, "")

    monkeypatch.setattr(program, "run", run)
    assert program.Hand(CONFIG, LANE).answer("restart")["answer"] == "yes"
    # systemd itself leaves a unit alone that rests or is being stopped.
    assert commands == [
        ["systemctl", "is-active", UNIT], ["systemctl", "reset-failed", UNIT], ["systemctl", verb, UNIT],
    ]  # fmt: skip


def test_how_often_it_has_restarted_outlives_the_program(tmp_path: Path, ran: list[list[str]]) -> None:
    config = CONFIG | {"restarts_file": str(tmp_path / "restarts.json")}
    answers = [program.Hand(config, LANE).answer("restart")["answer"] for _ in range(12)]
    assert answers == ["yes"] * program.MOST_RESTARTS + ["no"] * 2
    kept = json.loads((tmp_path / "restarts.json").read_text())
    (tmp_path / "restarts.json").write_text(json.dumps([at - 3600 for at in kept]))
    assert program.Hand(config, LANE).answer("restart")["answer"] == "yes", "an hour later"
    for text in ("", "{", "null", '["x"]', "[[]]"):
        (tmp_path / "restarts.json").write_text(text)
        assert program.Hand(config, LANE).answer("restart")["answer"] == "yes"


def test_a_restart_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "run", lambda *_: (1, "Job failed. See journalctl"))
    monkeypatch.setattr(gb10_router, "last_words", lambda _: "REFUSING to start: no accelerator\n")
    assert program.Hand(CONFIG, LANE).answer("restart") == {
        "answer": "no", "text": "REFUSING to start: no accelerator",
    }  # fmt: skip


def test_a_command_that_is_not_there_or_does_not_end() -> None:
    assert program.run(["/nonexistent/smi"], 5) == (None, "/nonexistent/smi: No such file or directory")
    status, text = program.run(["sleep", "5"], 0.1)
    assert status is None
    assert "has not ended" in text
    assert program.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 5) == (3, "out\nerr\n")


HANGING = """
import json, os, socket, sys, tempfile, threading, time
import gb10_watch_hand as hand
from gb10_watch_eyes import ask_hand

from gb10.rendering import TOP
hand.PROBE_SECONDS = 0.5
# A process that waits for a driver: no signal reaches it.
hand.os.killpg = lambda *_: None
path = tempfile.mkdtemp() + "/hand"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
config = {"processes": {"command": ["sleep", "30"]}, "probe": {"command": ["true"], "expect": ""}}
config["restarts_file"] = path + ".json"
hand.Hand.systemctl = lambda self, verb: {"answer": "yes", "text": "did " + verb}
served = (hand.Hand(config, {"lane": "x"}), listener, [os.getuid()], 0.2)
serving = threading.Thread(target=hand.serve, args=served, daemon=True)
serving.start()
asked = threading.Thread(target=lambda: print(ask_hand(path, "processes", 10)["text"]))
asked.start()
began = time.monotonic()
time.sleep(0.1)
print(ask_hand(path, "stop", 5)["text"], "at once" if time.monotonic() - began < 0.5 else "late")
asked.join()
print(ask_hand(path, "processes", 5)["text"])
print(ask_hand(path, "stop", 5)["text"])
time.sleep(0.5)
print("still there" if serving.is_alive() else "gone")
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
for task in os.listdir("/proc/self/task"):
    children += open(f"/proc/self/task/{task}/children").read().split()
print(len(set(children)), "process left")
[os.kill(int(child), 9) for child in set(children)]
"""


def test_a_driver_that_hangs_keeps_no_restart_away() -> None:
    # In a process of its own: gevent's subprocess, which pyinfra brings in here, is another one.
    done = subprocess.run(
        [sys.executable, "-c", HANGING],
        cwd=TOP / "files",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "did stop at once",
        "sleep has not ended after 0 s",
        "sleep of an earlier look still hangs",
        "did stop",
        "still there",
        "1 process left",
    ], done.stderr


def test_a_word_is_done_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    free, hand = threading.Event(), program.Hand(CONFIG, LANE)
    monkeypatch.setattr(Container, "run", lambda *_: free.wait(10) and (0, "GPU 0: x"))
    first = threading.Thread(target=hand.once, args=("probe",))
    first.start()
    while not hand.at_work():
        pass
    assert hand.once("probe") == {"answer": "unknown", "text": "the one before has not ended yet"}
    free.set()
    first.join()
    assert hand.once("probe")["answer"] == "yes"
    assert not hand.at_work()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.bind(str(tmp_path / "hand"))
        found.listen()
        yield found


def serving(listener: socket.socket, hand: Any, allowed: tuple[int, ...]) -> threading.Thread:
    thread = threading.Thread(target=program.serve, args=(hand, listener, allowed, 0.3), daemon=True)
    thread.start()
    return thread


def test_over_the_socket_and_until_nobody_asks(
    listener: socket.socket, tmp_path: Path, ran: list[list[str]]
) -> None:
    thread = serving(listener, program.Hand(CONFIG, LANE), (os.getuid(),))
    path = str(tmp_path / "hand")
    assert ask_hand(path, "probe", 5)["answer"] == "yes"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
        rude.connect(path)  # and goes again
    assert ask_hand(path, "x" * 1000, 5)["answer"] == "no"
    thread.join(5)
    assert not thread.is_alive()


def test_a_stranger_gets_no_answer(listener: socket.socket, tmp_path: Path, ran: list[list[str]]) -> None:
    thread = serving(listener, program.Hand(CONFIG, LANE), (os.getuid() + 1,))
    with pytest.raises((ValueError, OSError)):
        ask_hand(str(tmp_path / "hand"), "restart", 5)
    thread.join(5)
    assert ran == []


def test_a_hand_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ask_hand(str(tmp_path / "hand"), "probe", 1)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", json.dumps({"a": "x" * (2 << 20)}).encode()])
def test_an_answer_that_is_none(listener: socket.socket, tmp_path: Path, answer: bytes) -> None:
    def once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            try:
                connection.sendall(answer)
            except OSError:
                return

    threading.Thread(target=once, daemon=True).start()
    with pytest.raises((ValueError, OSError)):
        ask_hand(str(tmp_path / "hand"), "probe", 5)


def test_what_an_abort_says_stands_above_its_calls() -> None:
    output = (
        "ggml-rpc.cpp:547: Failed to connect to 172.17.0.1:50052\n\n"
        "llama-server(+0x7ab991) [0x560f82aab991]\nllama-server(+0x4cc21) [0x560f8234cc21]\nAborted\n"
    )
    said = program.judge_probe(134, output, "RPC0: ")
    assert said == {"answer": "no", "text": "ggml-rpc.cpp:547: Failed to connect to 172.17.0.1:50052"}
