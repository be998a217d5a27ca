"""The memory plan against llama.cpp itself: the figures of its own log, and what a lane really loads."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gb10.cli import cli
from gb10.desired import Desired
from gb10.plan import mib, total_of
from tests.lab import deploying, lane, models, network
from tests.lab.host import LabHost
from tests.lab.models import ModelSpec

FOLDER = "srv/plan"
CONTEXT = 8192
MIB = 1024**2
SPECS = {spec.name: spec for spec in (*models.SPECS, *models.OTHER_KINDS)}
# A quantized cache wants heads of 32 elements: of the llama models small-c has them.
KINDS = [
    ("tiny-b", ("f16",)),
    ("shards-d", ("f16",)),
    ("small-c", ("f16", "q8_0")),
    ("sliding-f", ("f16", "q8_0")),
    ("hybrid-g", ("f16", "q8_0")),
]
CASES = [
    (name, parallel, unified, cache)
    for name, caches in KINDS
    for parallel, unified, cache in itertools.product((1, 4, 8), (True, False), caches)
]


@pytest.fixture(scope="module")
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


@pytest.fixture(scope="module")
def folder(host: LabHost) -> Iterator[Path]:
    """The models that are measured, on this machine and (the same files) on the host."""
    inside = host.root / FOLDER
    for name, _ in KINDS:
        shutil.copytree(models.ensure(SPECS[name])[0].parent, inside / name)
    yield inside
    shutil.rmtree(inside)


def _first(spec: ModelSpec) -> str:
    """The model's file, the first of its shards, below the folder."""
    path = models.ensure(spec)[0]
    return f"{spec.name}/{path.name}"


def _log(host: LabHost, box: Desired, file: str, parallel: int, unified: bool, cache: str) -> str:
    """What llama-server of the image says while it loads the model onto the accelerator."""
    arguments = [
        *("--model", f"/{FOLDER}/{file}", "--device", "RPC0", "--n-gpu-layers", "all", "--fit", "off"),
        *("--ctx-size", str(CONTEXT), "--parallel", str(parallel), "--cache-type-k", cache),
        *("--cache-type-v", cache, "--kv-unified" if unified else "--no-kv-unified"),
        *("--load-mode", "none", "--threads", "1", "--no-warmup", "--no-ui", "-lv", "4"),
    ]
    peer = f"{network.ACCELERATOR_ADDRESS}:{network.ACCELERATOR_PORT}"
    options = f"--name plan --volume /{FOLDER}:/{FOLDER}:ro --env LLAMA_ARG_RPC={peer}"
    line = (
        f"docker run --detach {options} {box.image} {shlex.join(arguments)} >/dev/null;"
        " for i in $(seq 300); do docker logs plan >/tmp/plan.log 2>&1;"
        " grep -q -e 'model loaded' -e exiting /tmp/plan.log && break; sleep 0.1; done;"
        " docker rm --force plan >/dev/null; cat /tmp/plan.log"
    )
    return host.ssh(line, sudo=True).stdout


def _sum(what: str, log: str) -> float:
    """MiB of all buffers of a kind, on the accelerator and beside it."""
    return sum(float(size) for size in re.findall(rf"{what} buffer size = +([\d.]+) MiB", log))


def _planned(path: Path, parallel: int, unified: bool, cache: str) -> dict[str, float]:
    options = ["--ctx-size", str(CONTEXT), "--parallel", str(parallel), "--cache-type", cache]
    options.append("--kv-unified" if unified else "--no-kv-unified")
    result = CliRunner().invoke(cli, ["plan", "--gguf", str(path), *options, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, float] = json.loads(result.output)
    return found


@pytest.mark.parametrize(("name", "parallel", "unified", "cache"), CASES)
def test_the_plan_is_what_llama_cpp_allocates(
    host: LabHost, box: Desired, folder: Path, name: str, parallel: int, unified: bool, cache: str
) -> None:
    file = _first(SPECS[name])
    log = _log(host, box, file, parallel, unified, cache)
    assert "model loaded" in log, log[-2000:]
    plan = _planned(folder / file, parallel, unified, cache)
    # llama.cpp prints two decimals, of each buffer.
    assert plan["kv_cache_mib"] == pytest.approx(_sum("KV", log), abs=0.02)
    assert plan["recurrent_state_mib"] == pytest.approx(_sum("RS", log), abs=0.02)
    # The plan takes the file with its header: some KiB more than the tensors.
    assert 0 <= plan["weights_mib"] - _sum("model", log) < 0.1
    # An estimate, from above.
    assert _sum("compute", log) <= plan["compute_mib"]


# -- the budget ------------------------------------------------------------------------------------------


def _everything(host: LabHost) -> str:
    """What a deploy could have changed: files of the lane and of the models, the container."""
    files = (
        "find /etc/llamacpp-playground /etc/systemd/system /usr/local/lib/gb10 /var/lib/gb10 /srv/models"
        " -type f -printf '%p %T@ %m %s\\n' | sort"
    )
    return host.ssh(files, sudo=True).stdout + lane.container_id(host) + repr(lane.models(host))


def _models_max(host: LabHost) -> int:
    """--models-max of the router that runs."""
    line = f"docker inspect --format '{{{{json .Args}}}}' {lane.CONTAINER}"
    arguments: list[str] = json.loads(host.ssh(line, sudo=True).stdout)
    return int(arguments[arguments.index("--models-max") + 1])


def _load_all(host: LabHost, names: list[str]) -> int:
    """Chat with one model after the other; the largest number of models that were loaded at one time."""
    most = 0
    for name in names:
        status, answer = lane.chat(host, name)
        assert status == 200, answer
        loaded = [one for one, state in lane.models(host).items() if state == "loaded"]
        assert name in loaded
        most = max(most, len(loaded))
    return most


def _resident(host: LabHost) -> int:
    """Bytes that the models hold: each one's own process, and its share of the accelerator's server."""
    line = (
        "for name in llama-server ggml-rpc-server; do"
        " for parent in $(pgrep $name); do for pid in $(pgrep -P $parent $name); do"
        " cat /proc/$pid/smaps_rollup; done; done; done"
    )
    report = host.ssh(line, sudo=True).stdout
    return sum(int(size) * 1024 for size in re.findall(r"^Pss: +(\d+) kB", report, re.MULTILINE))


def _budget(box: Desired, count: int) -> int:
    """memory_total_mib with which the heaviest ``count`` models just fit."""
    return box.data.memory_reserve_mib + mib(total_of(box.plan.worst(count)))


def test_a_catalogue_that_does_not_fit_is_refused_and_nothing_changes(host: LabHost, box: Desired) -> None:
    before = _everything(host)
    total = _budget(box, 2) - 1
    done = deploying.deploy(host, data={"memory_total_mib": total, "lane_models_max": 2})
    assert done.returncode != 0
    need, room = _budget(box, 2) - box.data.memory_reserve_mib, total - box.data.memory_reserve_mib
    assert f"models-max 2 can need {need} MiB of {room} MiB" in done.stdout
    assert "set models-max to 1, or give" in done.stdout
    assert "ctx-size: " in done.stdout
    assert "Traceback" not in done.stdout
    assert _everything(host) == before


def test_a_model_that_fits_no_box_is_refused(host: LabHost, box: Desired) -> None:
    before = _everything(host)
    done = deploying.deploy(host, data={"memory_total_mib": box.data.memory_reserve_mib + 50})
    assert done.returncode != 0
    assert "alone needs" in done.stdout
    assert _everything(host) == before


@pytest.mark.parametrize("count", [1, 2, 3])
def test_auto_loads_as_many_as_surely_fit(host: LabHost, box: Desired, count: int) -> None:
    total = _budget(box, count)
    done = deploying.deploy(host, data={"memory_total_mib": total, "lane_models_max": "auto"})
    assert done.returncode == 0, done.stdout
    assert _models_max(host) == count
    names = [model.name for model in box.catalogue.enabled]
    assert len(names) == 3
    # Twice around, so that a model that was put out comes back.
    assert _load_all(host, names + names) == count
    resident = _resident(host)
    heaviest = box.plan.known[0].child
    assert heaviest is not None
    # It was loaded last; so this is no empty measurement.
    assert heaviest.bytes_of("weights") < resident <= (total - box.data.memory_reserve_mib) * MIB
