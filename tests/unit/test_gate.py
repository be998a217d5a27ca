"""The gate of the lane: recorded output of llama.cpp and Docker, and runs with a stand-in for Docker."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.boxes import box

PROGRAM = Path(__file__).parents[2] / "files" / "gb10_gate.py"
GOLDEN = Path(__file__).parent / "golden" / "list-devices"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("gb10_gate", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gate = _load()
WITH_KEY = Path(__file__).parent / "golden" / "gate" / "api-key"
LANE = json.loads(box().lane_file.content) | {"folders": [], "key_file": str(WITH_KEY)}


def recorded(name: str) -> tuple[int, str]:
    """Exit status and output of a recorded ``llama-server --list-devices``."""
    text = (GOLDEN / f"{name}.txt").read_text()
    status = [line for line in text.splitlines() if line.startswith("rc=")]
    return int(status[-1].removeprefix("rc=")) if status else 0, text


# -- what is read out of the output ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices"),
    [("gpu", ["CUDA0"]), ("cpu", []), ("cgroup-denied", []), ("nodev-uvm", []), ("libcuda-gone", [])],
)
def test_recorded_listings(name: str, devices: list[str]) -> None:
    assert gate.listed_devices(recorded(name)[1]) == devices


def test_other_listings() -> None:
    rpc = "Available devices:\n  RPC0: 10.77.0.1:50052 (24105 MiB, 24105 MiB free)\n"
    assert gate.listed_devices(rpc) == ["RPC0"]
    two = (
        "Available devices:\n  CUDA0: NVIDIA GB10 (122570 MiB, 1 MiB free)\n  CUDA1: NVIDIA: X (1 MiB free)\n"
    )
    assert gate.listed_devices(two) == ["CUDA0", "CUDA1"]
    # A CPU build still names CUDA in its log: only what follows the heading counts.
    assert gate.listed_devices("CUDA0: ARCHS = 1210\nAvailable devices:\n  (none)\n") == []
    assert gate.listed_devices("") == []


def test_the_accelerator_is_there() -> None:
    status, output = recorded("gpu")
    assert gate.reason_against(LANE, status, output, "") == ("", False)


@pytest.mark.parametrize("name", ["cpu", "cgroup-denied", "nodev-uvm"])
def test_a_listing_without_it_is_refused_though_its_exit_status_is_0(name: str) -> None:
    status, output = recorded(name)
    assert status == 0
    assert gate.reason_against(LANE, status, output, "") == (
        "no accelerator CUDA0: llama.cpp lists none",
        True,
    )


def test_another_accelerator_is_none() -> None:
    status, output = recorded("gpu")
    reason, _ = gate.reason_against(LANE | {"device": "CUDA1"}, status, output, "")
    assert reason == "no accelerator CUDA1: llama.cpp lists CUDA0"


def test_the_drivers_library_is_missing() -> None:
    status, errors = recorded("libcuda-gone")
    assert status == 127
    reason, waits = gate.reason_against(LANE, status, "", errors.replace("rc=127", ""))
    assert reason.startswith("no accelerator CUDA0: llama-server --list-devices ended with 127: ")
    assert reason.endswith("libcuda.so.1: cannot open shared object file: No such file or directory")
    assert waits


def test_the_stand_in_is_down() -> None:
    calls = "llama-server(+0x7ab991) [0x560f82aab991]\n/lib/libc.so.6(+0x29ca8) [0x7f74e70f9ca8]\n"
    errors = f"ggml-rpc.cpp:547: Failed to connect to 172.17.0.1:50052\n\n{calls}Aborted (core dumped)\n"
    reason, waits = gate.reason_against(LANE, 134, "", errors)
    assert reason.endswith("ended with 134: ggml-rpc.cpp:547: Failed to connect to 172.17.0.1:50052")
    assert waits
    assert gate.reason_against(LANE, 134, "", calls)[0].endswith("[0x7f74e70f9ca8]")


DOCKER = "docker: Error response from daemon: "
HELP = "\n\nRun 'docker run --help' for more information\n"
UNRESOLVABLE = f"{DOCKER}CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all{HELP}"
NO_DRIVER = (
    f"{DOCKER}could not select device driver \"cdi\" with capabilities: [].\nSee 'docker run --help'.\n"
)
NO_DAEMON = (
    "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\nSee 'docker run --help'.\n"
)


@pytest.mark.parametrize(
    ("errors", "word", "waits"),
    [
        # After a boot the spec comes later than Docker.
        (UNRESOLVABLE, "Docker knows no CDI device nvidia.com/gpu=all: look at /var/run/cdi", True),
        (NO_DRIVER, "Docker's CDI devices are switched off", False),
        (
            NO_DAEMON,
            "could not start a container: docker: Cannot connect to the Docker daemon at unix:",
            True,
        ),
        (f"{DOCKER}No such image: gb10/x:1{HELP}", "is not on this host: run the deploy again", False),
        (f"Unable to find image 'gb10/x:1' locally\n{DOCKER}x{HELP}", "is not on this host", False),
        ("", "Docker could not start a container: no message", True),
    ],
)
def test_docker_cannot_start_it(errors: str, word: str, waits: bool) -> None:
    reason, waiting_helps = gate.reason_against(LANE, 125, "", errors)
    assert word in reason
    assert "\n" not in reason
    assert "--help" not in reason
    assert waiting_helps is waits


def test_it_looks_as_the_lane_itself_would() -> None:
    command = gate.look_command(LANE)
    lane = box().unit_file.content
    assert command[:3] == ["docker", "run", "--rm"]
    assert f"--device {command[command.index('--device') + 1]}" in lane
    for index, word in enumerate(command):
        if word == "--env":
            assert f"--env {command[index + 1]}" in lane
    assert command[-4:] == ["--entrypoint", "llama-server", box().image, "--list-devices"]
    # Nothing is downloaded at a boot, and the lane's own container is another one.
    assert command[command.index("--pull") + 1] == "never"
    assert command[command.index("--name") + 1] != LANE["lane"]


# -- the program, with a stand-in for Docker --------------------------------------------------------------


class Docker:
    """A ``docker`` on PATH that answers each ``run`` with the next of some answers; the last one stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "python3").symlink_to(sys.executable)

    def answers(self, *answers: tuple[int, str, str]) -> None:
        for number, (status, output, errors) in enumerate(answers):
            (self.folder / f"{number}.out").write_text(output)
            (self.folder / f"{number}.err").write_text(errors)
            (self.folder / f"{number}.rc").write_text(str(status))
        script = f"""#!/bin/sh
PATH=/usr/bin:/bin; cd {self.folder}
echo "$*" >> calls
[ "$1" = run ] || exit 1
n=$(cat n 2>/dev/null || echo 0); [ -e $n.rc ] || n={len(answers) - 1}
echo $((n + 1)) > n
cat $n.out; cat $n.err >&2; exit $(cat $n.rc)
"""
        (self.bin / "docker").write_text(script)
        (self.bin / "docker").chmod(0o755)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def looks(self) -> int:
        return sum(line.startswith("run ") for line in self.calls)


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    return Docker(tmp_path)


def run(docker: Docker, lane: dict[str, Any] | str) -> subprocess.CompletedProcess[str]:
    path = docker.folder / "lane.json"
    path.write_text(lane if isinstance(lane, str) else json.dumps(lane))
    return subprocess.run([sys.executable, str(PROGRAM), str(path)], env={"PATH": str(docker.bin)},
                          capture_output=True, text=True, check=False)  # fmt: skip


GPU = (*recorded("gpu"), "")
CPU = (*recorded("cpu"), "")


def test_it_opens(docker: Docker) -> None:
    docker.answers(GPU)
    result = run(docker, LANE)
    assert (result.returncode, result.stdout, result.stderr) == (0, "accelerator CUDA0 is there\n", "")
    assert docker.looks == 1


@pytest.mark.parametrize("content", [None, "", "\n", "#old\n", " \n# a\n"])
def test_it_refuses_without_a_key(content: str | None, docker: Docker, tmp_path: Path) -> None:
    docker.answers(GPU)
    key = tmp_path / "api-key"
    if content is not None:
        key.write_text(content)
    result = run(docker, LANE | {"key_file": str(key)})
    assert result.returncode == 1
    assert f"{key} holds no API key" in result.stderr
    assert docker.looks == 0


def test_it_refuses_in_one_line(docker: Docker) -> None:
    docker.answers(CPU)
    result = run(docker, LANE | {"wait_seconds": 0})
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line == (
        "REFUSING to start llamacpp-playground: no accelerator CUDA0: llama.cpp lists none. "
        "Nothing is served from the CPU."
    )


def test_a_container_that_was_left_goes_first(docker: Docker) -> None:
    docker.answers(GPU)
    run(docker, LANE)
    assert docker.calls[0] == "rm --force llamacpp-playground-gate"


def test_a_missing_image_is_not_waited_for(docker: Docker) -> None:
    docker.answers((125, "", f"{DOCKER}No such image: x{HELP}"))
    result = run(docker, LANE | {"wait_seconds": 600})
    assert result.returncode == 1
    assert "is not on this host: run the deploy again" in result.stderr
    assert docker.looks == 1


def test_no_docker_at_all(docker: Docker) -> None:
    result = run(docker, LANE | {"wait_seconds": 600})
    assert result.returncode == 1
    assert (
        "REFUSING to start llamacpp-playground: docker cannot be run: No such file or directory"
        in result.stderr
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"lane": "x"}', "null"])
def test_a_description_it_cannot_read_is_one_line(text: str, docker: Docker) -> None:
    docker.answers(GPU)
    result = run(docker, text)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"REFUSING to start: {docker.folder}/lane.json ")
    assert line.endswith(": run the deploy again")


def test_no_description(docker: Docker) -> None:
    command = [sys.executable, str(PROGRAM), str(docker.folder / "none")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1


def test_usage() -> None:
    result = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Usage:" in result.stderr


# -- waiting, with time that passes by sleeping only --------------------------------------------------------


class Clock:
    """Stands in for the time module."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, docker: Docker) -> Clock:
    clock = Clock()
    monkeypatch.setattr(gate, "time", clock)
    monkeypatch.setenv("PATH", str(docker.bin))
    return clock


def test_a_driver_that_comes_later(docker: Docker, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    docker.answers((125, "", UNRESOLVABLE), CPU, CPU, GPU)
    assert gate.guard(LANE | {"wait_seconds": 90}) == 0
    assert docker.looks == 4
    said = capsys.readouterr().out.splitlines()
    # Said once, not at each look.
    assert [line.startswith("waiting up to 90 s: Docker knows no CDI device") for line in said] == [
        True,
        False,
    ]
    assert said[-1] == "accelerator CUDA0 is there"


def test_a_driver_that_never_comes(docker: Docker, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    docker.answers(CPU)
    assert gate.guard(LANE | {"wait_seconds": 10}) == 1
    assert 60 <= clock.now <= 63
    assert capsys.readouterr().err.startswith("REFUSING to start llamacpp-playground: no accelerator CUDA0")


def test_a_look_that_hangs(docker: Docker, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    docker.answers(GPU)
    script = (
        (docker.bin / "docker")
        .read_text()
        .replace("n=$(cat", "[ -e n ] || { echo 1 > n; exec sleep 60; }\nn=$(cat")
    )
    (docker.bin / "docker").write_text(script)
    monkeypatch.setattr(gate, "LOOK_TIMEOUT_SECONDS", 0.5)
    assert gate.guard(LANE | {"wait_seconds": 10}) == 0
    # What hung is removed: at once, and before the next look.
    assert docker.calls.count("rm --force llamacpp-playground-gate") >= 2


# -- folders that the container mounts -----------------------------------------------------------------------


def test_folders_are_made_with_the_owner_of_what_they_lie_in(docker: Docker, clock: Clock) -> None:
    docker.answers(GPU)
    folder = docker.folder / "cache" / "huggingface" / "hub"
    assert gate.guard(LANE | {"folders": [str(folder)]}) == 0
    assert folder.is_dir()
    assert folder.stat().st_uid == docker.folder.stat().st_uid
    assert gate.guard(LANE | {"folders": [str(folder)]}) == 0


def test_a_folder_that_cannot_be_made(
    docker: Docker, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    docker.answers(GPU)
    (docker.folder / "file").write_text("")
    assert gate.guard(LANE | {"folders": [str(docker.folder / "file" / "x")]}) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("REFUSING to start llamacpp-playground: ")
    assert docker.looks == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give folders away")
def test_a_folder_below_somebody_elses(docker: Docker, clock: Clock) -> None:
    docker.answers(GPU)
    home = docker.folder / "home"
    home.mkdir()
    os.chown(home, 1234, 1234)
    gate.guard(LANE | {"folders": [str(home / "a" / "b")]})
    assert {(home / "a").stat().st_uid, (home / "a" / "b").stat().st_uid} == {1234}
