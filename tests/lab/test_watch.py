"""The watch, with real faults on a real host: how soon it sees each, and what it does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import deploying, lane, watching
from tests.lab.host import LabHost

pytestmark = pytest.mark.alone

ACCELERATOR = "standin-accelerator.service"
GPU_LOSS_SECONDS = 15
SLOW_SECONDS = 60
# Short pauses where the box's data has long ones; the looks are as often as there.
QUICK = {"watch_backoff_seconds": 5, "watch_settle_seconds": 5, "watch_clear_seconds": 5}
LOST = "/run/standin-gpu/lost-in-containers"


@pytest.fixture(scope="module")
def watched(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    _deploy(settled)
    return settled


@pytest.fixture
def host(watched: LabHost) -> LabHost:
    watching.fresh(watched)
    return watched


def _deploy(host: LabHost, **data: object) -> None:
    done = deploying.deploy(host, data={**QUICK, **data})
    assert done.returncode == 0, done.stdout


@contextmanager
def _traffic(host: LabHost, model: str) -> Iterator[None]:
    """One client that asks for one long answer after the other."""
    messages = [{"role": "user", "content": "go on"}]
    # Streamed: one that is cut off ends at the server too.
    body = json.dumps({"model": model, "max_tokens": 1500, "stream": True, "messages": messages})
    line = (
        f'KEY=$(cat {lane.KEY}); while :; do curl -s -o /dev/null -m 600 -H "Authorization: Bearer $KEY" '
        f"-H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:{lane.PORT}/v1/chat/completions; "
        "done"
    )
    host.ssh(["systemd-run", "--quiet", "--unit=client", "sh", "-c", line], sudo=True)
    try:
        yield
    finally:
        host.ssh("systemctl stop client", sudo=True)


# -- the accelerator ------------------------------------------------------------------------------------


def test_taken_from_the_container_while_a_model_is_loaded(host: LabHost) -> None:
    # A running child keeps it, as on a real GPU: only a new process meets the loss. As there, a container
    # that is made anew has it again.
    drop_in = f"/run/systemd/system/{lane.UNIT}.d"
    text = f"[Service]\\nExecStartPre=/bin/rm -f {LOST}\\n"
    host.ssh(
        f"mkdir -p {drop_in} && printf '{text}' > {drop_in}/fault.conf && systemctl daemon-reload", sudo=True
    )
    before = lane.container_id(host)
    host.ssh(f"touch {LOST}", sudo=True)
    seconds, _ = watching.until(host, watching.has("accelerator.new"), GPU_LOSS_SECONDS + 5)
    result = watching.outcome(host, "restart", 90)
    watching.note("taken from the container while a model is loaded", seconds, "probe", result)
    assert seconds <= GPU_LOSS_SECONDS
    assert result.startswith("the lane is back on its accelerator")
    assert lane.container_id(host) not in ("", before)
    watching.until(host, watching.state("healthy"), 30)
    assert [one["action"] for one in watching.actions(host)] == ["restart", "restart"]
    assert watching.actions(host)[0]["before"]["models"].keys() == {"tiny-a"}
    host.ssh(f"rm -r {drop_in} && systemctl daemon-reload", sudo=True)


def test_gone_for_good_under_a_loaded_model(host: LabHost) -> None:
    host.ssh(f"systemctl stop {ACCELERATOR}", sudo=True)
    seconds, _ = watching.until(host, watching.has("accelerator."), GPU_LOSS_SECONDS + 5)
    stopped, found = watching.until(host, watching.has("lane.stopped"), 120)
    watching.note(
        "gone for good under a loaded model",
        seconds,
        "the child's own connection",
        f"3 restarts, all refused for want of it; lane stopped after {seconds + stopped:.0f} s, state failed",
    )
    assert seconds <= GPU_LOSS_SECONDS
    assert found["state"] == "failed"
    assert "3 restarts in an hour have not helped" in found["reasons"][0]["text"]
    assert lane.unit(host) in ("inactive", "failed")
    time.sleep(12)
    assert len([one for one in watching.actions(host) if "before" in one]) == 4, "and then it leaves it alone"
    host.ssh(f"systemctl start {ACCELERATOR} && systemctl start {lane.UNIT}", sudo=True)
    watching.until(host, watching.state("healthy"), 40)


def test_gone_before_a_child_spawns(host: LabHost) -> None:
    assert lane.curl(host, "/models/unload", {"model": "tiny-a"})[0] == 200
    host.ssh(f"systemctl stop {ACCELERATOR}", sudo=True)
    began = time.monotonic()
    status, answer = lane.chat(host, "tiny-b")
    assert status >= 500, f"served without an accelerator: {answer}"
    watching.until(host, watching.has("accelerator.new"), GPU_LOSS_SECONDS + 5)
    seconds = time.monotonic() - began
    host.ssh(f"sleep 8; systemctl start {ACCELERATOR}", sudo=True)
    watching.until(host, watching.state("healthy"), 90)
    result = watching.outcome(host, "restart", 30)
    watching.note(
        "gone before a child spawns, `device` set", seconds, "probe", f"the request got {status}; {result}"
    )
    assert seconds <= GPU_LOSS_SECONDS + 2
    assert lane.chat(host, "tiny-b")[0] == 200


def test_a_child_that_serves_from_the_cpu(host: LabHost) -> None:
    # What a child without `device` does once the GPU is gone: it answers 200 from the CPU.
    edit = r"s/^\[tiny-b\]$/&\ndevice = none\nn-gpu-layers = 0/"
    host.ssh(f"cp {lane.PRESETS} /tmp/presets && sed -i '{edit}' {lane.PRESETS}", sudo=True)
    assert lane.curl(host, "/models?reload=1")[0] == 200
    status, answer = lane.chat(host, "tiny-b")
    assert status == 200, answer
    assert lane.models(host)["tiny-b"] == "loaded"
    seconds, found = watching.until(host, watching.has("accelerator.model:tiny-b"), GPU_LOSS_SECONDS + 5)
    result = watching.outcome(host, "restart", 90)
    watching.note("a child serves from the CPU with 200", seconds, "the child holds no accelerator", result)
    assert seconds <= GPU_LOSS_SECONDS
    assert found["state"] == "degraded"
    assert result.startswith("the lane is back on its accelerator")
    host.ssh(f"cp /tmp/presets {lane.PRESETS}", sudo=True)
    assert lane.curl(host, "/models?reload=1")[0] == 200


# -- speed ----------------------------------------------------------------------------------------------


def test_a_child_slowed_to_a_third(host: LabHost, tmp_path: Path) -> None:
    model = "tiny-a"
    with _traffic(host, model):
        watching.until(host, _speed_of(model), 60)
        seen = []
        for _ in range(8):
            seen.append(_speed(watching.status(host), model) or 0.0)
            time.sleep(5)
        speed = max(seen)  # whatever else runs here makes it slower, and nothing faster
    baseline = {"tokens_per_second": speed, "spread": 0.1, "image": "x", "presets": "x", "measured": "now"}
    (tmp_path / f"{host.name}.json").write_text(json.dumps({"version": 1, "models": {model: baseline}}))
    # No answer of before goes on beside those to come.
    host.ssh(f"systemctl restart {lane.UNIT}", sudo=True)
    lane.wait_answering(host)
    _deploy(host, watch_baselines=str(tmp_path))
    # The child computes in the stand-in accelerator's process for its connection: that one gets a third.
    main = host.ssh(f"systemctl show --property=MainPID --value {ACCELERATOR}").stdout.strip()
    pids = " ".join(host.ssh(f"pgrep --parent {main}").stdout.split())
    slowed = f"while :; do kill -STOP {pids}; sleep 0.06; kill -CONT {pids}; sleep 0.03; done"
    try:
        with _traffic(host, model):
            time.sleep(20)
            assert watching.status(host)["state"] == "healthy"
            host.ssh(["systemd-run", "--quiet", "--unit=slow", "sh", "-c", slowed], sudo=True)
            seconds, found = watching.until(host, watching.has(f"speed:{model}"), SLOW_SECONDS + 10)
            text = found["reasons"][0]["text"]
            host.ssh(f"systemctl stop slow; kill -CONT {pids}", sudo=True)
            healed, _ = watching.until(host, watching.state("healthy"), 60)
        assert watching.actions(host) == [], "it holds the accelerator: a restart is no answer"
        watching.note(
            "a child slowed to about a third",
            seconds,
            text,
            f"degraded, no action; healthy {healed:.0f} s after",
        )
        assert seconds <= SLOW_SECONDS
    finally:
        host.ssh(f"systemctl stop slow; kill -CONT {pids}", sudo=True, check=False)
        _deploy(host)


def _speed(found: watching.Status, model: str) -> float | None:
    speed: float | None = next(
        (one["tokens_per_second"] for one in found["models"] if one["name"] == model), None
    )
    return speed


def _speed_of(model: str):  # type: ignore[no-untyped-def]
    return lambda found: _speed(found, model) is not None


# -- children, router, Docker -----------------------------------------------------------------------------


def test_a_child_killed(host: LabHost) -> None:
    host.ssh(f"kill -KILL {watching.child(host)}", sudo=True)
    seconds, _ = watching.until(host, watching.has("model.failed:tiny-a"), 20)
    assert lane.chat(host)[0] == 200
    watching.until(host, watching.state("healthy"), 40)
    watching.note(
        "a child killed by SIGKILL", seconds, "the router's word", "degraded; the next request loads it"
    )
    assert watching.actions(host) == []


def test_a_child_killed_for_want_of_memory(host: LabHost) -> None:
    # The lab host has no kernel of its own: the line that the kernel would write is written by hand.
    pid = watching.child(host)
    line = f"3,1,2,-;Out of memory: Killed process {pid} (llama-server) total-vm:1kB, anon-rss:2kB"
    host.ssh(f"kill -KILL {pid}; echo '{line}' >> /run/standin-kernel.log", sudo=True)
    seconds, found = watching.until(host, watching.has("oom:"), 20)
    watching.note(
        "a child killed by the OOM killer (log line by hand)", seconds, "kernel log", "degraded, named"
    )
    assert any("has killed model tiny-a" in reason["text"] for reason in found["reasons"])


def test_a_router_that_hangs(host: LabHost) -> None:
    line = f"pgrep --uid 10103 --full -- 'llama-server.*--models-preset {lane.PRESETS}' | tail -n 1"
    host.ssh(f"kill -STOP $({line})", sudo=True)
    seconds, found = watching.until(host, watching.has("router.silent"), 60)
    result = watching.outcome(host, "restart", 120)
    watching.note("router hung (SIGSTOP)", seconds, "no answer for 20 s", result)
    assert found["state"] == "failed"
    assert result.startswith("the lane is back on its accelerator")
    watching.until(host, watching.state("healthy"), 30)


def test_a_key_that_is_moved_away(host: LabHost) -> None:
    host.ssh(f"mv {lane.KEY} {lane.KEY}.aside", sudo=True)
    seconds, found = watching.until(host, watching.has("router.refuses"), 40)
    time.sleep(25)  # longer than a silent router is borne
    host.ssh(f"mv {lane.KEY}.aside {lane.KEY}", sudo=True)
    watching.until(host, watching.state("healthy"), 40)
    watching.note("the API key moved away", seconds, "the key", "degraded until it is back")
    assert found["state"] == "degraded"
    assert watching.actions(host) == [], "of the router it says nothing"


def test_a_person_stops_the_lane_while_it_recovers(host: LabHost) -> None:
    _deploy(host, watch_canary_seconds=0)
    watching.fresh(host)
    host.ssh(f"touch {LOST}", sudo=True)
    watching.until(host, watching.has("lane.recovering"), GPU_LOSS_SECONDS + 5)
    host.ssh(f"systemctl stop {lane.UNIT}", sudo=True)
    host.ssh(f"rm {LOST}", sudo=True)
    time.sleep(30)
    assert lane.unit(host) in ("inactive", "failed")
    assert len([one for one in watching.actions(host) if "before" in one]) == 1, watching.actions(host)
    host.ssh(f"systemctl reset-failed {lane.UNIT}; systemctl start {lane.UNIT}", sudo=True)
    watching.until(host, watching.state("healthy"), 40)
    _deploy(host)


def test_dockerd_restarted(host: LabHost) -> None:
    before = lane.container_id(host)
    host.ssh("systemctl restart docker.service", sudo=True)
    began = time.monotonic()
    lane.wait_answering(host)
    back = time.monotonic() - began
    watching.until(host, lambda found: found["state"] == "healthy" and found["unit"]["container"] != "", 60)
    assert lane.container_id(host) != before
    states = [line for line in lane.journal(host, watching.UNIT).splitlines() if " -> " in line]
    said = "no state change" if not states else "; ".join(states)
    watching.note(
        "dockerd restarted", 0.0, "unit and container id", f"the unit came back in {back:.0f} s; no action"
    )
    assert watching.actions(host) == [], said


def test_a_model_file_deleted(host: LabHost) -> None:
    path = "/srv/models/standin/tiny-b-GGUF/tiny-b-F16.gguf"
    host.ssh(f"mv {path} {path}.aside", sudo=True)
    seconds, _ = watching.until(host, watching.has("model.file:tiny-b"), 40)
    host.ssh(f"mv {path}.aside {path}", sudo=True)
    watching.until(host, watching.state("healthy"), 40)
    watching.note("a model's file deleted under the router", seconds, "the file", "degraded until it is back")
    assert watching.actions(host) == []


def test_a_unit_that_crashes_again_and_again(host: LabHost) -> None:
    _deploy(host, watch_crash_restarts=3)
    watching.fresh(host)
    began = time.monotonic()
    for _ in range(3):
        container = lane.container_id(host)
        host.ssh(f"docker kill --signal KILL {container}", sudo=True)
        watching.until(host, watching.has("lane.crash"), 30)
        watching.until(
            host, lambda found, old=container: found["unit"]["container"] not in ("", old[:12]), 40
        )  # type: ignore[misc]
    _, found = watching.until(host, watching.has("lane.stopped"), 40)
    seconds = time.monotonic() - began
    watching.note(
        "the unit crashes three times (limit set to 3)", seconds, "systemd's count", "lane stopped, failed"
    )
    assert found["state"] == "failed"
    _deploy(host)


# -- memory and rivals ------------------------------------------------------------------------------------


def test_memory_at_the_reserve(host: LabHost) -> None:
    for model in ("tiny-a", "tiny-b"):
        assert lane.chat(host, model)[0] == 200
    time.sleep(12)
    total = watching.status(host)["memory"]["total"]
    # A reserve that no free memory reaches, in the data: the plan still fits beside it.
    _deploy(
        host,
        memory_total_mib=total + 4000,
        memory_reserve_mib=total + 2000,
        watch_memory_reserve_mib=total + 1000,
    )
    seconds, _ = watching.until(host, watching.has("memory.reserve"), 40)
    assert watching.outcome(host, "unload", 40) == "done"
    watching.until(host, lambda found: all(one["state"] == "unloaded" for one in found["models"]), 90)
    watching.note(
        "memory under the reserve", seconds, "MemAvailable", "longest idle model unloaded, then the next"
    )
    begun = [one["target"] for one in watching.actions(host) if "before" in one]
    assert sorted(begun) == ["tiny-a", "tiny-b"], "one at a time, each once"
    assert lane.unit(host) == "active"
    _deploy(host)


def test_a_vllm_lane_started_by_hand(host: LabHost) -> None:
    host.ssh(
        "cp -a /var/lib/gb10/retired/etc/systemd/system/vllm-lane-b.service /etc/systemd/system/ && "
        "systemctl daemon-reload && systemctl start vllm-lane-b.service",
        sudo=True,
    )
    seconds, _ = watching.until(host, watching.has("rival:unit vllm-lane-b.service"), 40)
    watching.note("a vLLM lane started by hand", seconds, "its cgroup", "degraded, not touched")
    assert lane.unit(host, "vllm-lane-b.service") == "active"
    assert watching.actions(host) == []
    host.ssh(
        "systemctl stop vllm-lane-b && rm /etc/systemd/system/vllm-lane-b.service && systemctl daemon-reload",
        sudo=True,
    )
    watching.until(host, watching.state("healthy"), 60)


# -- the watch itself -------------------------------------------------------------------------------------


def _looks(host: LabHost) -> int:
    return int(watching.status(host)["watch"].get("looks", 0))


def test_the_watch_killed(host: LabHost) -> None:
    before = host.ssh(f"systemctl show --property=MainPID --value {watching.UNIT}").stdout.strip()
    began = watching.status(host)["watch"]["began"]
    host.ssh(f"kill -KILL {before}", sudo=True)
    seconds, _ = watching.until(host, lambda found: found["watch"]["began"] != began, 30)
    watching.note("the watch killed", seconds, "systemd", "started again, looks again")
    assert host.ssh("systemctl is-system-running", check=False).stdout.strip() == "running"


def test_the_watch_hangs(host: LabHost) -> None:
    pid = host.ssh(f"systemctl show --property=MainPID --value {watching.UNIT}").stdout.strip()
    began = watching.status(host)["watch"]["began"]
    host.ssh(f"kill -STOP {pid}", sudo=True)
    seconds, _ = watching.until(host, lambda found: found["watch"]["began"] != began, 120)
    watching.note(
        "the watch hangs (SIGSTOP)", seconds, "systemd's watchdog, 60 s", "killed and started again"
    )


def test_its_user_can_do_nothing_else(host: LabHost) -> None:
    refused = (
        "setpriv --reuid 10103 --regid 10103 --clear-groups sh -c '"
        "docker ps; systemctl stop ssh; cat /etc/shadow; touch /var/lib/gb10/x /run/gb10-watch-hand.sock2' "
    )
    done = host.ssh(f"{refused} && echo did", sudo=True, check=False)
    assert "did" not in done.stdout
    script = (
        "import socket,sys\n"
        "for verb in ('start', 'stop ssh', 'restart;id', '', 'x' * 1000):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect('/run/gb10-watch-hand.socket')\n"
        "    s.sendall(verb.encode() + b'\\n'); print(s.recv(1000).decode())\n"
    )
    done = host.ssh("setpriv --reuid 10103 --regid 10103 --clear-groups python3 -", sudo=True, stdin=script)
    assert done.stdout.count("there is no such verb") == 5
    denied = host.ssh("python3 -", stdin=script, check=False)
    assert "PermissionError" in denied.stderr


def test_watching_never_changes_which_models_are_loaded(host: LabHost) -> None:
    _deploy(host, watch_interval_seconds=1, watch_probe_seconds=1, watch_canary_seconds=1)
    for model in ("tiny-a", "tiny-b"):
        assert lane.chat(host, model)[0] == 200
        time.sleep(3)
    before = lane.models(host)
    pids = [watching.child(host, model) for model in ("tiny-a", "tiny-b")]
    first = _looks(host)
    seen = []
    while _looks(host) < first + 100:
        seen.append(lane.models(host))
        time.sleep(2)
    assert all(one == before for one in seen)
    assert [watching.child(host, model) for model in ("tiny-a", "tiny-b")] == pids
    # The order of use is as it was too, whatever the canaries asked: the older one is evicted.
    assert lane.chat(host, "small-c")[0] == 200
    after = lane.models(host)
    assert (after["tiny-a"], after["tiny-b"], after["small-c"]) == ("unloaded", "loaded", "loaded")
    watching.note(
        "100 looks, each with probe, canaries every 10 s", 0.0, "-", "the same models, the same processes"
    )
    _deploy(host)


def test_a_second_deploy_changes_nothing(host: LabHost) -> None:
    done = deploying.deploy(host, data=QUICK)
    assert deploying.changed(done.stdout) == []


def test_status_from_the_laptop(host: LabHost) -> None:
    import subprocess
    import sys

    program = str(Path(sys.executable).with_name("gb10"))
    line = [program, "status", "--json", "--host", host.name, "--inventory", str(deploying.INVENTORY)]
    done = subprocess.run(
        line, cwd=deploying.paths.REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["state"] == "healthy"
    assert found["image"]["same"]
    assert {one["name"]: one["state"] for one in found["models"]}["tiny-a"] == "loaded"
    host.ssh(f"systemctl stop {watching.UNIT}", sudo=True)
    done = subprocess.run(
        line, cwd=deploying.paths.REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert found["state"] == "unknown"
    assert "inactive" in found["watch"]["note"]
    assert {one["name"]: one["state"] for one in found["models"]}["tiny-a"] == "loaded", "asked all the same"
