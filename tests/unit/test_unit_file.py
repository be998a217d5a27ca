"""The lane's unit by its meaning: what it gives the container, what it withholds, and how it ends."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.boxes import box


def directives(text: str) -> dict[str, list[str]]:
    """``Section.Key`` to its values in order; continued lines are joined, comments left out."""
    found: dict[str, list[str]] = {}
    section = ""
    lines = [line for line in text.splitlines() if not line.startswith(("#", ";"))]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.strip():
            key, equals, value = line.partition("=")
            assert equals, f"neither a section nor a directive: {line!r}"
            found.setdefault(f"{section}.{key}", []).append(value.strip())
    return found


def unescaped(word: str) -> str:
    """A word of ExecStart as the process gets it, after systemd's specifiers and variables."""
    assert not re.search(r"(?<!%)(%%)*%(?!%)", word), f"systemd would expand a specifier in {word!r}"
    return word.replace("%%", "%").replace("$$", "$")


def docker_run(text: str) -> list[str]:
    (start,) = directives(text)["Service.ExecStart"]
    return [unescaped(word) for word in shlex.split(start)]


def values(command: list[str], option: str) -> list[str]:
    return [command[index + 1] for index, word in enumerate(command) if word == option]


@pytest.fixture(scope="module")
def text() -> str:
    return box().unit_file.content


@pytest.fixture(scope="module")
def unit(text: str) -> dict[str, list[str]]:
    return directives(text)


@pytest.fixture(scope="module")
def command(text: str) -> list[str]:
    return docker_run(text)


def test_its_place() -> None:
    placed = box().unit_file
    assert (placed.path, placed.mode, placed.owner) == (
        "/etc/systemd/system/llamacpp-playground.service", "0644", "0:0")  # fmt: skip


def test_docker_knows_the_device(command: list[str]) -> None:
    # By CDI: a device that an old hook injects is lost at the next daemon-reload.
    assert values(command, "--device") == ["nvidia.com/gpu=all"]
    assert "--gpus" not in command
    assert "--runtime" not in command


def test_published_on_this_machine_only(command: list[str]) -> None:
    assert values(command, "--publish") == ["127.0.0.1:10103:10103"]
    assert not {"-p", "--network", "--net", "-P"} & set(command)


def test_published_where_the_data_says() -> None:
    assert values(
        docker_run(box(lane_address="192.168.7.2", lane_port=8080).unit_file.content), "--publish"
    ) == ["192.168.7.2:8080:8080"]


def test_least_rights(command: list[str]) -> None:
    assert "--read-only" in command
    assert values(command, "--cap-drop") == ["ALL"]
    assert values(command, "--security-opt") == ["no-new-privileges"]
    assert values(command, "--user") == ["10103:10103"]
    assert values(command, "--pids-limit") == ["4096"]
    assert not {"--privileged", "--cap-add", "--pid", "--ipc"} & set(command)
    (temporary,) = values(command, "--tmpfs")
    assert {"nosuid", "nodev"} <= set(temporary.partition(":")[2].split(","))


def test_nothing_can_be_written_through_a_mount(command: list[str]) -> None:
    mounts = [*values(command, "--volume"), *values(command, "-v")]
    assert {"/srv/models:/srv/models:ro", "/etc/llamacpp-playground:/etc/llamacpp-playground:ro"} <= set(
        mounts
    )
    assert all(mount.endswith(":ro") for mount in mounts)
    assert all(re.search(r"\b(ro|readonly)\b", mount) for mount in values(command, "--mount"))
    assert not any("docker.sock" in word for word in command)


def test_ends_with_its_container(command: list[str]) -> None:
    assert command[:2] == ["/usr/bin/docker", "run"]
    assert {"--rm", "--init"} <= set(command)
    assert values(command, "--name") == ["llamacpp-playground"]
    assert not {"-d", "--detach", "--restart"} & set(command)


def test_only_the_image_that_was_built_here(command: list[str]) -> None:
    assert values(command, "--pull") == ["never"]
    assert box().image in command


def test_without_the_accelerator_nothing_loads(command: list[str]) -> None:
    # In the environment, so that the router itself refuses too: `device` in the presets is for children only.
    assert "LLAMA_ARG_DEVICE=CUDA0" in values(command, "--env")


def test_router_arguments(command: list[str]) -> None:
    router = command[command.index(box().image) + 1 :]
    assert values(router, "--port") == ["10103"]
    assert values(router, "--models-preset") == ["/etc/llamacpp-playground/models.ini"]
    assert values(router, "--models-max") == ["4"]
    assert values(router, "--api-key-file") == ["/etc/llamacpp-playground/api-key"]
    # A device or a model on the router's command line would win over every preset.
    assert not {"--device", "--model", "-m", "--no-mmap", "--api-key"} & set(router)


def test_no_key_in_the_unit(text: str) -> None:
    assert "--api-key " not in text
    assert "LLAMA_API_KEY" not in text


def test_a_container_that_was_left_goes_first(unit: dict[str, list[str]]) -> None:
    first, *others = unit["Service.ExecStartPre"]
    assert "docker rm --force llamacpp-playground" in first
    assert first.startswith("-")  # none there is no failure
    gate = next(line for line in others if "gb10_gate.py" in line)
    assert gate == "/usr/bin/python3 /usr/local/lib/gb10/gb10_gate.py /etc/llamacpp-playground/lane.json"
    assert "docker rm --force llamacpp-playground" in " ".join(unit["Service.ExecStopPost"])


def test_comes_after_docker_and_the_device(unit: dict[str, list[str]]) -> None:
    after = " ".join(unit["Unit.After"]).split()
    assert {"docker.service", "nvidia-cdi-refresh.service"} <= set(after)
    assert "docker.service" in " ".join(unit["Unit.Requires"])
    # A box whose refresh has another name must still boot its lane.
    assert "nvidia-cdi-refresh.service" in " ".join(unit["Unit.Wants"])
    assert "nvidia-cdi-refresh.service" not in " ".join(unit["Unit.Requires"])
    assert unit["Install.WantedBy"] == ["multi-user.target"]


def test_a_crash_loop_ends(unit: dict[str, list[str]]) -> None:
    assert unit["Service.Restart"] == ["on-abnormal"]
    (interval,), (burst,) = unit["Unit.StartLimitIntervalSec"], unit["Unit.StartLimitBurst"]
    (pause,) = unit["Service.RestartSec"]
    # All tries of a loop lie within the interval, else the limit is never reached.
    assert int(burst) * int(pause) < int(interval)
    # Exit status 1 is a refusal: no accelerator, or a preset that cannot be read.
    assert "1" not in unit["Service.RestartForceExitStatus"][0].split()
    # A child killed for memory or by Docker itself is a crash.
    assert {"125", "137"} <= set(unit["Service.RestartForceExitStatus"][0].split())


def stop_seconds(unit: dict[str, list[str]]) -> int:
    (stop,) = unit["Service.ExecStop"]
    found = re.search(r"docker stop --time (\d+) llamacpp-playground", stop)
    assert found
    return int(found[1])


@pytest.mark.parametrize("seconds", [1, 30, 600])
def test_stopping_is_bounded(seconds: int) -> None:
    unit = directives(box(lane_stop_seconds=seconds).unit_file.content)
    assert stop_seconds(unit) == seconds
    assert int(unit["Service.TimeoutStopSec"][0]) > seconds


@pytest.mark.parametrize("seconds", [0, 90, 600])
def test_systemd_waits_longer_than_the_gate(seconds: int) -> None:
    unit = directives(box(accelerator_wait_seconds=seconds).unit_file.content)
    # The last look begins before the time is over; it and the removal before it may take 60 s each.
    assert int(unit["Service.TimeoutStartSec"][0]) >= seconds + 120


@pytest.mark.parametrize(
    "value", ["100%", "%h/x", "$HOME", "a b", "it's", 'say "hi"', "a\\nb", "x;y", "#1", "\\"]
)
def test_data_reaches_the_container_to_the_letter(value: str) -> None:
    text = box(lane_environment={"LLAMA_ARG_SOMETHING": value}).unit_file.content
    line = next(line for line in text.splitlines() if "LLAMA_ARG_SOMETHING" in line)
    escaped = line.strip().removesuffix("\\").strip()
    # systemd takes a backslash as an escape between any quotes, so each must be doubled.
    assert "\\" not in escaped.replace("\\\\", "")
    (_, word) = shlex.split(escaped.replace("\\\\", "\0"))
    assert unescaped(word.replace("\0", "\\")) == f"LLAMA_ARG_SOMETHING={value}"
    assert text.count("\nExecStart=") == 1


def test_a_changed_option_changes_the_label_and_nothing_else_does() -> None:
    label = box().lane_hash
    assert f"gb10.lane={label}" in values(docker_run(box().unit_file.content), "--label")
    for changes in ({"lane_port": 10104}, {"lane_models_max": 3}, {"lane_address": "10.0.0.1"},
                    {"lane_environment": {"A": "b"}}, {"llama_ref": "b1"}, {"accelerator_cdi": "x.y/gpu=0"},
                    {"lane_pids_limit": 100}, {"models_dir": "/srv/other"}):  # fmt: skip
        assert box(**changes).lane_hash != label, changes
    for changes in ({"lane_stop_seconds": 31}, {"accelerator_wait_seconds": 1}, {"models_parallel": 1}):
        assert box(**changes).lane_hash == label, changes


@pytest.mark.parametrize("value", ["plain", "it's 100% of $HOME", 'a\\nb "c"'])
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_takes_it(value: str, tmp_path: Path) -> None:
    described = box(lane_environment={"A": value})
    text = described.unit_file.content
    # Docker's binary and units are not needed to read the lane's own unit.
    text = text.replace("/usr/bin/docker", "/bin/true").replace("Requires=docker.service\n", "")
    path = tmp_path / described.unit
    path.write_text(text)
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    about = [line for line in result.stderr.splitlines() if described.unit in line]
    assert about == []
    assert result.returncode == 0, result.stderr
