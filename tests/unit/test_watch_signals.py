"""What the watch reads: recorded answers of routers and of processes on a real GPU, and hostile ones."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gb10_router
import gb10_watch_eyes as eyes
import gb10_watch_kernel as kernel
import gb10_watch_signals as signals
import pytest
from gb10_watch_hand import judge_probe
from gb10_watch_state import Model

from tests.unit.router_server import GOLDEN, KEY, Router, models, raw, running, states

CUDA = GOLDEN.parent / "cuda"
UVM = {"kind": "file", "path": "/dev/nvidia-uvm"}
CONTAINER = "4f1d" + "0" * 60
CGROUP = f"/system.slice/docker-{CONTAINER}.scope"
METRICS = (GOLDEN / "child-metrics.txt").read_text()
PRESETS = "/etc/llamacpp-playground/models.ini"


@pytest.fixture
def router() -> Iterator[Router]:
    with running() as server:
        yield server


@pytest.fixture
def lane(router: Router, tmp_path: Path) -> dict[str, Any]:
    key = tmp_path / "api-key"
    key.write_text(KEY)
    return {"host": "127.0.0.1", "port": router.port, "key_file": str(key), "lane": "llamacpp-playground"}


def metrics_line(model: str) -> str:
    return f"GET /metrics?model={model}&autoload=false"


# -- the router ---------------------------------------------------------------------------------------


def test_recorded_answers(router: Router, lane: dict[str, Any]) -> None:
    router.answers["GET /models"] = models("after-lru")
    router.answers[metrics_line("tiny-b")] = METRICS.replace(
        "tokens_predicted_total 0", "tokens_predicted_total 640"
    ).encode()
    found = {model.name: model for model in signals.router_models(lane)}
    assert found["tiny-b"].tokens == 640.0
    assert found["tiny-b"].decodes == 0.0
    assert found["tiny-b"].requests == 0
    assert found["tiny-a"].tokens is None


@pytest.mark.parametrize("name", ["initial", "after-lru", "cuda0-failed", "sleeping", "after-kill9"])
def test_only_what_is_loaded_is_asked_and_never_so_that_it_would_load(
    router: Router, lane: dict[str, Any], name: str
) -> None:
    answer = models(name)
    router.answers["GET /models"] = answer
    signals.router_models(lane)
    loaded = [model["id"] for model in answer["data"] if model["status"]["value"] == "loaded"]
    assert router.lines == ["GET /models", *(metrics_line(model) for model in loaded)]


def test_deaths_are_told(router: Router, lane: dict[str, Any]) -> None:
    router.answers["GET /models"] = models("after-kill9")
    assert {model.name for model in signals.router_models(lane) if model.failed} == {
        "tiny-b", "tiny-cuda", "tiny-missing",
    }  # fmt: skip


def test_a_model_that_was_evicted_meanwhile_gives_no_figures(router: Router, lane: dict[str, Any]) -> None:
    refused = json.loads(
        (GOLDEN / "metrics-autoload-false.txt").read_text().splitlines()[0].split(" HTTP")[0]
    )
    router.answers["GET /models"] = states(gone="loaded")
    router.answers[metrics_line("gone")] = (400, refused)
    (model,) = signals.router_models(lane)
    assert model.tokens is None


def test_a_model_that_does_not_answer_is_left_alone(router: Router, lane: dict[str, Any]) -> None:
    router.answers["GET /models"] = states(slow="loaded")
    signals.router_models(lane, frozenset({"slow"}))
    assert router.lines == ["GET /models"]


def test_all_figures_are_there_before_a_look_goes_on() -> None:
    assert signals.ALL_SECONDS + 2 * signals.LEAST_SECONDS < eyes.WAIT_SECONDS


def test_clients_at_a_step_are_summed_over_the_steps() -> None:
    text = "llamacpp:n_busy_slots_per_decode 1.25\nllamacpp:n_decode_total 400\n"
    model = signals.with_figures(Model("a", "loaded"), signals.read_metrics(text))
    assert (model.busy, model.decodes, model.tokens, model.prompts) == (500, 400, None, None)


HTML = b"<!doctype html><html><body>502 Bad Gateway</body></html>"
HOSTILE: dict[str, Any] = {
    "html": HTML,
    "html as an error": (502, HTML),
    "empty": b"",
    "truncated": raw(b'HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{"data":[{"id":'),
    "truncated json": b'{"data":[{"id":"a","status":{"value":"lo',
    "no http": raw(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "without end": raw(b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * (1 << 20)] * 12),
    "header without end": raw(b"HTTP/1.1 200 OK\r\nX: ", *[b"x" * 65536] * 4),
    "huge": json.dumps({"data": [{"id": "x" * 100, "status": {"value": "a"}}] * 80_000}).encode(),
    "many models": {"data": [{"id": f"m{n}", "status": {"value": "loaded"}} for n in range(5000)]},
    "deep": b"[" * 100_000,
    "a list": [1, 2],
    "null": None,
    "numbers": {"data": [1, 2, 3]},
    "no status": {"data": [{"id": "a"}]},
    "status null": {"data": [{"id": "a", "status": None}]},
    "data null": {"data": None},
    "not text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_is_refused_and_nothing_worse(
    router: Router, lane: dict[str, Any], answer: Any
) -> None:
    router.answers["GET /models"] = answer
    with pytest.raises((gb10_router.RouterError, OSError)) as caught:
        signals.router_models(lane)
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_hostile_metrics_are_no_figures(router: Router, lane: dict[str, Any], answer: Any) -> None:
    router.answers["GET /models"] = states(a="loaded")
    router.answers[metrics_line("a")] = answer
    (model,) = signals.router_models(lane)
    assert model.tokens is None
    assert model.requests is None


def test_a_slow_answer_has_a_bound(
    router: Router, lane: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "MODELS_SECONDS", 0.3)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    router.answers["GET /models"] = raw(head, *[b" "] * 100, pause=0.1)
    began = time.monotonic()
    with pytest.raises(OSError, match="got no answer"):
        signals.router_models(lane)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "text",
    ["", "\0\0", "llamacpp:tokens_predicted_total", "llamacpp:tokens_predicted_total x",
     "llamacpp:tokens_predicted_total nan", "llamacpp:tokens_predicted_total -5",
     "llamacpp:tokens_predicted_total 1e400", "llamacpp:tokens_predicted_total{a=\"b\"} 5",
     "xllamacpp:tokens_predicted_total 5", "llamacpp:tokens_predicted_total 5 6 7"],
)  # fmt: skip
def test_figures_that_are_none(text: str) -> None:
    assert signals.read_metrics(text) == {}


def test_names_of_models_are_quoted(router: Router, lane: dict[str, Any]) -> None:
    name = "a/b c&autoload=true#ü"
    router.answers["GET /models"] = states(**{name: "loaded"})
    signals.router_models(lane)
    assert router.lines[1] == "GET /metrics?model=a%2Fb+c%26autoload%3Dtrue%23%C3%BC&autoload=false"


@pytest.mark.parametrize("name", ["my  model", "mo\u00a0del", "tab\tname", "x" * 201])
def test_a_name_that_is_shown_otherwise_is_asked_by_its_own(
    router: Router, lane: dict[str, Any], name: str
) -> None:
    router.answers["GET /models"] = states(**{name: "loaded"})
    query = urllib.parse.urlencode({"model": name, "autoload": "false"})
    router.answers[f"GET /metrics?{query}"] = BUSY
    router.answers[f"GET /slots?{query}"] = [SLOT]
    router.answers["POST /completion?autoload=false"] = {"timings": {"predicted_per_second": 39.5}}
    (model,) = signals.router_models(lane)
    assert model.name == signals.clean(name) != name
    assert (model.tokens, model.answer) == (0.0, (129, 17))
    assert signals.canary(lane, model.name, 32) == 39.5
    assert router.asked[-1][1]["model"] == name


def test_a_canary_asks_without_loading(router: Router, lane: dict[str, Any]) -> None:
    recorded = (GOLDEN / "native-completion.json").read_bytes().partition(b"\nHTTP ")[0]
    router.answers["POST /completion?autoload=false"] = recorded
    assert signals.canary(lane, "tiny-b", 32) > 0
    assert router.asked[0][1]["model"] == "tiny-b"
    assert router.asked[0][1]["n_predict"] == 32


@pytest.mark.parametrize(
    "timings",
    [None, {}, *({"predicted_per_second": value} for value in (None, "x", 1e999, -1, 0))],
)
def test_a_canary_without_a_speed_is_an_error(router: Router, lane: dict[str, Any], timings: Any) -> None:
    router.answers["POST /completion?autoload=false"] = json.dumps({"timings": timings}).encode()
    with pytest.raises(gb10_router.RouterError):
        signals.canary(lane, "a", 8)


# -- processes on a real GPU --------------------------------------------------------------------------


def process(proc: Path, pid: int, found: dict[str, Any], *arguments: str) -> None:
    """A process of /proc with the maps and open files of a recorded one."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    maps = [path for path, count in found.get("maps", {}).items() for _ in range(count)]
    lines = [f"7f00000{n:02x}000-7f00000{n:02x}fff rw-s 00000000 00:05 77    {p}" for n, p in enumerate(maps)]
    (folder / "maps").write_text("\n".join([*lines, ""]))
    opened = [path for path, count in found.get("fds", {}).items() for _ in range(count)]
    for number, path in enumerate(opened):
        (folder / "fd" / str(number)).symlink_to(path)
    (folder / "cmdline").write_text("".join(f"{argument}\0" for argument in arguments))
    (folder / "cgroup").write_text(f"9:name=systemd:/\n0::{CGROUP}\n")


@pytest.mark.parametrize(
    ("snapshot", "on_gpu"),
    [
        ("fb1-1-gpu", {"big": True}),
        ("fb1-3-cut", {"big": False}),  # the silent fallback: 200 OK from the CPU
        ("fb1-6-restored", {"tiny-b": False, "big": True}),  # devices back: who was not reloaded stays there
        ("fb2-device-3-cut", {}),  # with `device` set no child was left
    ],
)
def test_children_on_a_real_gpu(tmp_path: Path, snapshot: str, on_gpu: dict[str, bool]) -> None:
    recorded = json.loads((CUDA / f"{snapshot}.snap.json").read_text())
    for name, pid in recorded["children"].items():
        process(tmp_path, pid, recorded[f"child {name}"])
    found = {name: signals.holder_of(pid, UVM, str(tmp_path)) for name, pid in recorded["children"].items()}
    assert {name: bool(holder) for name, holder in found.items()} == on_gpu
    assert None not in found.values()


@pytest.mark.parametrize("snapshot", ["fb1-1-gpu", "fb1-3-cut", "fb1-6-restored"])
def test_the_router_of_a_real_gpu_says_nothing_of_it(
    router: Router, lane: dict[str, Any], snapshot: str
) -> None:
    # Why the processes are looked at: the answers are the same before and after the loss.
    recorded = json.loads((CUDA / f"{snapshot}.snap.json").read_text())
    router.answers["GET /models"] = recorded["GET /models"]["body"].encode()
    for line, answer in recorded.items():
        if line.startswith("GET /metrics"):
            router.answers[line] = answer["body"].encode()
    (big,) = [model for model in signals.router_models(lane) if model.name == "big"]
    assert big.state == "loaded"
    assert big.tokens
    assert big.seconds
    assert not big.failed


def test_a_failed_child_of_a_real_gpu(router: Router, lane: dict[str, Any]) -> None:
    recorded = json.loads((CUDA / "fb2-device-3-cut.snap.json").read_text())
    router.answers["GET /models"] = recorded["GET /models"]["body"].encode()
    assert [model.name for model in signals.router_models(lane) if model.failed] == ["big"]


@pytest.mark.parametrize(
    ("file", "expect", "answer"),
    [
        ("list-devices-gpu", "CUDA0: ", "yes"),
        ("list-devices-cgroup-denied", "CUDA0: ", "no"),  # exit status 0 all the same
        ("list-devices-nodev-uvm", "CUDA0: ", "no"),
        ("list-devices-libcuda-gone", "CUDA0: ", "no"),
        ("nvidia-smi-cgroup-denied", "GPU 0: ", "no"),
    ],
)
def test_probes_on_a_real_gpu(file: str, expect: str, answer: str) -> None:
    output, _, status = (CUDA / f"{file}.txt").read_text().partition("rc=")
    assert judge_probe(int(status.split()[0]), output, expect)["answer"] == answer


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (None, "Docker: No such container: llamacpp-playground"),
        (None, "Docker: Connection refused"),
        (1, "container 4f1d is not running"),
        (1, "failed to create task: mkdir /run/x: no space left on device"),
        (1, "OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown"),
        (
            126,
            "OCI runtime exec failed: fork/exec /proc/self/fd/6: resource temporarily unavailable",
        ),
        (127, 'OCI runtime exec failed: exec: "nvidia-smi": executable file not found in $PATH: unknown'),
        (127, "sh: 1: nvidia-smi: not found"),
        (126, "sh: 1: nvidia-smi: Permission denied"),
        (125, "docker: something"),
        (0, "ggml_cuda_init: failed to initialize CUDA: out of memory\nAvailable devices:\n  (none)"),
        # What is used up says nothing of the accelerator either, nor does a runc that has crashed.
        (2, "sh: 1: cannot create /dev/nvidia-uvm: Cannot allocate memory"),
        (2, "sh: 1: cannot create /dev/nvidia-uvm: Too many open files in system"),
        (2, "sh: 1: Cannot fork"),
        (1, "write /tmp/x: no space left on device"),
        (1, "unable to find user 1000: no matching entries in passwd file"),
        (
            127,
            "llama-server: error while loading shared libraries: libggml-cuda.so.0: failed to map segment "
            "from shared object: Cannot allocate memory",
        ),
        (
            2,
            "runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\nPC=0x7f",
        ),
        (2, "fatal error: runtime: cannot allocate memory\n\ngoroutine 1 [running]:"),
        (2, "panic: runtime error: invalid memory address\n\ngoroutine 1 [running]:"),
        (134, ""),
        (137, ""),
        (137, "GPU"),
        (139, "GPU"),
        (1, ""),
        (0, ""),
        (None, "docker has not ended after 15 s"),
    ],
)
def test_a_probe_that_did_not_run_knows_nothing(status: int | None, output: str) -> None:
    found = judge_probe(status, output, "GPU 0: ")
    assert found["answer"] == "unknown"
    assert found["text"]


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (255, "Unable to determine the device handle for GPU0: 0000:01:00.0: GPU is lost"),
        (255, "Failed to initialize NVML: Unknown Error"),
        (4, "Failed to initialize NVML: Insufficient Permissions"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        # Seen on an H200 where nothing stood behind the node: nvidia-smi said "GPU 0", cuInit 999.
        (2, "sh: 1: cannot create /dev/nvidia-uvm: No such device or address"),
        (2, "sh: 1: cannot create /dev/nvidia-uvm: Permission denied"),
        (0, "No devices found"),
        (134, "ggml-rpc.cpp:507: Remote RPC server crashed\nllama-server(+0x4cc21) [0x563805565c21]"),
        (
            127,
            "nvidia-smi: error while loading shared libraries: libcuda.so.1: cannot open shared object file",
        ),
    ],
)
def test_a_probe_that_ran_and_found_nothing_says_no(status: int, output: str) -> None:
    assert judge_probe(status, output, "GPU 0: ")["answer"] == "no"


def test_who_holds_memory_of_a_real_gpu(tmp_path: Path) -> None:
    users = signals.accelerator_users((CUDA / "kinds-after.smi.txt").read_text(), [])
    assert users == dict.fromkeys((506, 534, 576, 663, 690), "llama-server")
    for pid in (506, 534, 690):  # the others have gone since
        process(tmp_path, pid, {})
    (tmp_path / "690/cgroup").write_text("0::/user.slice\n")
    assert signals.accelerator_rivals(users, CGROUP, str(tmp_path)) == (
        "llama-server (process 690) on the GPU",
    )
    assert signals.accelerator_users("1, /opt/llama/x\n2, python3\n", ["/opt/llama/"]) == {2: "python3"}
    assert signals.accelerator_users("No devices were found\n, ,\n", []) == {}


# -- processes in general -----------------------------------------------------------------------------


def cgroup(sys: Path, *pids: int) -> None:
    folder = sys / "fs/cgroup" / CGROUP.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_the_container_and_its_children_are_found_without_docker(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    process(proc, 10, {}, "/usr/bin/docker", "run", "llama-server", "--models-preset", PRESETS)
    (proc / "10/cgroup").write_text("0::/system.slice/llamacpp-playground.service\n")
    process(proc, 20, {}, "/sbin/docker-init", "--", "llama-server", "--models-preset", PRESETS)
    process(proc, 21, {}, "llama-server", "--models-preset", PRESETS)
    process(proc, 22, {}, "llama-server", "--alias", "tiny-a,alpha", "--port", "1")
    process(proc, 23, {}, "llama-server", "--alias")
    cgroup(sys, 20, 21, 22, 23, 99)
    assert signals.find_container(PRESETS, str(proc)) == (CONTAINER, CGROUP)
    assert signals.children_of(CGROUP, str(proc), str(sys)) == {"tiny-a": 22}
    assert signals.container_alive(CGROUP, str(sys))
    assert signals.find_container("/etc/other/models.ini", str(proc)) == ("", "")
    assert signals.children_of("/system.slice/gone", str(proc), str(sys)) == {}
    assert not signals.container_alive("", str(sys))


def test_a_process_that_has_gone_cannot_be_seen(tmp_path: Path) -> None:
    assert signals.holder_of(4242, UVM, str(tmp_path)) is None
    assert signals.swapped_mib(4242, str(tmp_path)) == 0


def test_a_mapped_file_whose_name_is_no_text_hides_nothing(tmp_path: Path) -> None:
    process(tmp_path, 7, {})
    lines = b"7f00-7f01 r--p 0 0:0 1 /models/caf\xe9.gguf\n7f00-7f01 rw-s 0 0:0 1 /dev/nvidia-uvm\n"
    (tmp_path / "7/maps").write_bytes(lines)
    assert signals.holder_of(7, UVM, str(tmp_path)) == "process 7 has /dev/nvidia-uvm mapped"


def test_what_is_swapped_out(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tllama-server\nVmSwap:\t 4194304 kB\nThreads:\t3\n")
    assert signals.swapped_mib(7, str(tmp_path)) == 4096


def test_rivals_by_unit_and_by_name(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    cgroup(sys, 22)
    lane_a = sys / "fs/cgroup/system.slice/vllm-lane-a.service"
    lane_a.mkdir(parents=True)
    (lane_a / "cgroup.procs").write_text("7\n")
    (sys / "fs/cgroup/system.slice/vllm-lane-b.service").mkdir()
    for pid, arguments in {
        30: ["/usr/bin/python3", "/opt/venv/bin/vllm", "serve", "Qwen"],
        31: ["VLLM::EngineCore"],
        32: ["/usr/bin/less", "notes-on-vllm.txt"],
        33: ["vim", "--", "x", "y", "vllm"],
        22: ["vllm-in-our-container"],
    }.items():
        process(proc, pid, {}, *arguments)
        (proc / f"{pid}/cgroup").write_text(f"0::{CGROUP if pid == 22 else '/user.slice'}\n")
    units = ("vllm-lane-a.service", "vllm-lane-b.service")
    assert sorted(signals.rivals(units, ("vllm", "VLLM"), CGROUP, str(proc), str(sys))) == [
        "process VLLM::EngineCore", "process python3 vllm serve Qwen", "unit vllm-lane-a.service",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "program"),
    [
        # Which serve: by name, by script, as a module, by a title that a process gives itself.
        ("vllm serve Qwen", "vllm"),
        ("/opt/venv/bin/python /opt/venv/bin/vllm serve Qwen", "vllm"),
        ("/usr/bin/python3.12 -m vllm.entrypoints.openai.api_server --model Qwen", "vllm.entrypoints.openai"),
        ("python3 -u -X faulthandler -m vllm.entrypoints.openai.api_server", "vllm.entrypoints"),
        ("python3 -um vllm.entrypoints.openai.api_server", "vllm.entrypoints"),
        ("python3 -mvllm.entrypoints.openai.api_server", "vllm.entrypoints"),
        ("VLLM::EngineCore", "VLLM"),
        ("uv run vllm serve Qwen", "vllm"),
        ("uv run --no-sync python -m vllm.entrypoints.cli.main serve Qwen", "vllm"),
        ("env CUDA_VISIBLE_DEVICES=0 vllm serve Qwen", "vllm"),
        ("nice -n 5 /opt/venv/bin/vllm serve", "vllm"),
        ("/bin/bash /srv/vllm-start.sh", "vllm-start"),
        ("sh -e /srv/vllm-start.sh", "vllm-start"),
        # Which only speak of it.
        ("tail -f /var/log/vllm.log", ""),
        ("journalctl -fu vllm-lane-b", ""),
        ("vim vllm-notes.md", ""),
        ("/usr/bin/less /home/u/vllm.md", ""),
        ("docker pull vllm/vllm-openai", ""),
        ("ssh box vllm", ""),
        ("git clone https://github.com/vllm-project/vllm", ""),
        ("sudo tail -f vllm.log", ""),
        ("sudo PYTHONPATH=/opt/vllm top", ""),
        ("python3 /srv/report.py vllm.log", ""),
        ("python3 -c print(1) vllm", ""),
        ("python3 -m http.server vllm", ""),
        ("bash -lc vllm", ""),  # what it runs is a process of its own
        ("bash", ""),
        ("python3", ""),
        ("python3 -m", ""),
        ("env", ""),
    ],
)
def test_a_rival_is_a_program_and_no_word_in_a_command(tmp_path: Path, line: str, program: str) -> None:
    process(tmp_path, 30, {}, *line.split())
    found = signals.rivals((), ("vllm", "VLLM"), "/ours", str(tmp_path), str(tmp_path))
    assert bool(found) == bool(program), found
    assert signals.program_of(line.split()).startswith(program)


# -- memory, unit, kernel -----------------------------------------------------------------------------


def test_memory(tmp_path: Path) -> None:
    assert kernel.memory(str(tmp_path)) == {"total": None, "available": None, "swap_used": None}
    (tmp_path / "meminfo").write_text(
        "MemTotal:  125000000 kB\nMemAvailable:  8388608 kB\nSwapTotal: 4194304 kB\nSwapFree: 1048576 kB\n"
    )
    assert kernel.memory(str(tmp_path)) == {"total": 122070, "available": 8192, "swap_used": 3072}
    assert kernel.pressure_percent(str(tmp_path)) is None
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/memory").write_text(
        "some avg10=9.00 avg60=8.00 avg300=1.00 total=5\nfull avg10=7.00 avg60=6.50 avg300=0.10 total=4\n"
    )
    assert kernel.pressure_percent(str(tmp_path)) == 6.5


def test_the_unit() -> None:
    shown = (
        "Result=success\nActiveState=active\nNRestarts=3\nInvocationID=abc\n"
        "ActiveEnterTimestampMonotonic=5000000\n"
    )
    unit = signals.read_unit(shown)
    assert (unit.active, unit.result, unit.restarts, unit.since, unit.invocation) == (
        "active", "success", 3, 5.0, "abc",
    )  # fmt: skip
    assert signals.read_unit("").active == "unknown"
    assert signals.read_unit("NRestarts=[not set]\nActiveState=failed\n").active == "failed"


OOM = "3,1234,5678901,-;Out of memory: Killed process 77 (llama-server) total-vm:1kB, anon-rss:2kB"
XID = "3,1,2,-;NVRM: Xid (PCI:000F:01:00): 79, pid=77, GPU has fallen off the bus."


def test_kernel_events() -> None:
    lines = [
        "6,1,1,-;usb 1-1: new device", OOM, " SUBSYSTEM=pci", XID,
        "3,2,3,-;Memory cgroup out of memory: Killed process 5 (python3) total-vm:1kB",
        "6,2,3,-;NVRM: loading NVIDIA UNIX Open Kernel Module",
    ]  # fmt: skip
    events = kernel.kernel_events(lines, {"big": 77})
    assert [(event.kind, event.pid) for event in events] == [("oom", 77), ("driver", 0), ("oom", 5)]
    assert events[0].text == "the kernel has killed model big (process 77) for want of memory"
    assert "Xid" in events[1].text
    assert "killed python3" in events[2].text


def test_a_flood_in_the_kernels_log_has_a_bound() -> None:
    assert len(kernel.kernel_events([XID] * 10_000, {})) == 20


def test_the_kernels_log_is_read_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("old\n")
    log = kernel.KernelLog(str(path))
    assert list(log.lines()) == []
    with path.open("a") as file:
        file.write(f"{OOM}\n{XID}\n")
    assert list(log.lines()) == [OOM, XID]
    assert list(log.lines()) == []


def test_a_kernel_log_that_is_not_there_is_found_when_it_comes(tmp_path: Path) -> None:
    log = kernel.KernelLog(str(tmp_path / "kmsg"))
    assert list(log.lines()) == []
    os.mkfifo(tmp_path / "kmsg")
    assert list(log.lines()) == []


def test_a_kernel_log_that_cannot_be_read_says_why_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "kmsg")
    closed: list[int] = []
    monkeypatch.setattr(kernel.os, "open", lambda *_: 1000 + len(closed))
    monkeypatch.setattr(kernel.os, "close", closed.append)
    log = kernel.KernelLog(str(tmp_path / "kmsg"))
    assert list(log.lines()) == []
    assert log.fault == f"{tmp_path}/kmsg: Bad file descriptor"
    assert closed == [1000, 1001]
    monkeypatch.undo()
    (tmp_path / "kmsg").unlink()
    (tmp_path / "kmsg").write_text("")
    list(log.lines())
    assert log.fault == ""


# -- an answer that is being written --------------------------------------------------------------------

BUSY = METRICS.replace("requests_processing 0", "requests_processing 1").encode()
SLOT = {"id": 0, "is_processing": True, "id_task": 129, "next_token": [{"n_decoded": 17}]}


def test_one_answer_alone_is_followed(router: Router, lane: dict[str, Any]) -> None:
    recorded = json.loads((CUDA / "fb1-1-gpu.snap.json").read_text())
    (slot,) = json.loads(recorded["GET /slots?model=big&autoload=false"]["body"])
    assert signals.read_answer([slot]) is None, "it was idle"
    slot = slot | {"is_processing": True, "next_token": [slot["next_token"][0] | {"n_decoded": 17}]}
    router.answers["GET /models"] = states(big="loaded", other="unloaded")
    router.answers[metrics_line("big")] = BUSY
    router.answers["GET /slots?model=big&autoload=false"] = [slot]
    assert [model.answer for model in signals.router_models(lane)] == [(129, 17), None]
    assert [model.depth for model in signals.router_models(lane)] == [slot["n_prompt_tokens"], None]


def test_an_idle_or_a_crowded_lane_is_not_asked_for_its_slots(router: Router, lane: dict[str, Any]) -> None:
    router.answers["GET /models"] = states(a="loaded", b="loaded")
    router.answers[metrics_line("a")] = router.answers[metrics_line("b")] = BUSY
    signals.router_models(lane)
    router.answers[metrics_line("a")] = router.answers[metrics_line("b")] = METRICS.encode()
    signals.router_models(lane)
    assert not [line for line in router.lines if "/slots" in line]


@pytest.mark.parametrize(
    "slots",
    [None, {}, [], "x", [1], [SLOT, SLOT], [SLOT | {"is_processing": False}], [SLOT | {"next_token": []}],
     [SLOT | {"next_token": [{"n_decoded": 0}]}], [SLOT | {"id_task": None}], [{}],
     [SLOT | {"id_task": float("inf")}], [SLOT | {"next_token": [{"n_decoded": float("inf")}]}],
     [SLOT | {"next_token": [{"n_decoded": 10**400}]}]],
)  # fmt: skip
def test_slots_that_tell_nothing(slots: Any) -> None:
    assert signals.read_answer(slots) is None
    assert signals.read_depth(slots) is None


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_hostile_slots_are_no_answer(router: Router, lane: dict[str, Any], answer: Any) -> None:
    router.answers["GET /models"] = states(a="loaded")
    router.answers[metrics_line("a")] = BUSY
    router.answers["GET /slots?model=a&autoload=false"] = answer
    (model,) = signals.router_models(lane)
    assert model.answer is None
    assert model.requests == 1
