"""Models that lie in the host's Hugging Face cache and not in the catalogue: served, listed and counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gb10.commands.models import models as models_command
from gb10.commands.plan import plan as plan_command
from gb10.desired import Desired
from tests.lab import deploying, lane, models, network, paths
from tests.lab.host import LabHost

SPEC = models.ModelSpec("stray-f", embedding=64, layers=4, heads=4, heads_kv=4, feed_forward=192, seed=9)
NAME = f"{SPEC.repo}:F16"
COMMIT = "5" * 40
BIG = "standin/big-GGUF:F16"
BIG_MIB = 6000


def hub_of(host: LabHost, box: Desired) -> Path:
    """The host's cache as this machine sees it."""
    return host.root / box.data.models_found_cache.lstrip("/")


def put(hub: Path, repo: str, source: Path, size: int | None = None) -> None:
    """A file as the Hugging Face tools keep it; ``size`` in bytes makes it longer, without using disk."""
    home = hub / f"models--{repo.replace('/', '--')}"
    for folder in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    blob = home / "blobs" / ("f" * 64)
    shutil.copyfile(source, blob)
    if size is not None:
        with blob.open("r+b") as file:
            file.truncate(size)
    (home / "refs" / "main").write_text(COMMIT)
    (home / f"snapshots/{COMMIT}" / source.name).symlink_to(f"../../blobs/{blob.name}")


@pytest.fixture(scope="module")
def source() -> Path:
    (path,) = models.ensure(SPEC)
    return path


@pytest.fixture(scope="module")
def host(settled: LabHost, box: Desired, source: Path) -> LabHost:
    """A settled host into whose cache came a model that the catalogue does not have, and one that it has."""
    lane.wait_answering(settled)
    hub = hub_of(settled, box)
    put(hub, SPEC.repo, source)
    (own, *_) = models.ensure(next(spec for spec in models.SPECS if spec.name == "tiny-b"))
    put(hub, "standin/tiny-b-GGUF", own)
    return settled


def command(host: LabHost, verb: Any, *arguments: str) -> Result:
    inventory = str(paths.REPOSITORY / deploying.INVENTORY)
    return CliRunner().invoke(verb, [*arguments, "--inventory", inventory, "--host", host.name])


def planned(host: LabHost, *arguments: str) -> dict[str, Any]:
    result = command(host, plan_command, "--json", *arguments)
    assert result.exit_code == 0, result.output
    plan: dict[str, Any] = json.loads(result.output)
    return plan


def child_peers(host: LabHost, name: str) -> str:
    """The TCP peers of the process that serves a model."""
    line = f"pgrep -f -- '--alias {name}' | head -n 1"
    pid = host.ssh(line, sudo=True).stdout.strip()
    assert pid, f"no process serves {name}"
    return host.ssh(f"nsenter -t {pid} -n ss -Htnp | grep 'pid={pid},'", sudo=True, check=False).stdout


def test_the_cache_is_there_from_the_first_deploy_on_as_its_neighbours_are(
    host: LabHost, box: Desired
) -> None:
    path = box.data.models_found_cache
    assert host.ssh(f"stat -c '%u:%g %F' {path}", sudo=True).stdout.strip() == "0:0 directory"
    write = f"docker exec --user 0 {lane.CONTAINER} touch /found/cache/x"
    assert "Read-only file system" in host.ssh(write, sudo=True, check=False).stderr


def test_the_next_deploy_serves_it_without_a_restart(host: LabHost) -> None:
    container = lane.container_id(host)
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    assert deploying.changed(done.stdout) == [
        "router: presets",
        "router: runs what is described",
        "history: this lane answered",
        "record: this deploy",
    ]
    assert lane.container_id(host) == container
    served = lane.models(host)
    assert served[NAME] == "unloaded"
    assert served["tiny-a"] == "loaded"
    assert [name for name in served if "tiny-b" in name] == ["tiny-b"]


def test_it_has_the_safe_defaults_and_answers_from_the_accelerator(host: LabHost) -> None:
    _, content = lane.curl(host, "/models")
    (entry,) = [one for one in json.loads(content)["data"] if one["id"] == NAME]
    arguments = " ".join(entry["status"]["args"])
    for words in ("--device RPC0", "--fit off", "--n-gpu-layers all", "--ctx-size 2048", "--load-mode none"):
        assert words in arguments
    status, answer = lane.chat(host, NAME)
    assert status == 200, answer
    assert f"{network.ACCELERATOR_ADDRESS}:{network.ACCELERATOR_PORT}" in child_peers(host, NAME)


def test_a_second_deploy_changes_nothing(host: LabHost) -> None:
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    assert deploying.changed(done.stdout) == []


def test_it_is_listed_and_counted(host: LabHost, source: Path) -> None:
    result = command(host, models_command, "--json")
    assert result.exit_code == 0, result.output
    listed = {entry["name"]: entry for entry in json.loads(result.output)["models"]}
    assert listed[NAME]["state"] == "found"
    assert listed[NAME]["bytes"] == source.stat().st_size
    assert listed["tiny-b"]["state"] == "ok"
    plan = planned(host, "--on-box")
    assert plan["found_counted"]
    (preset,) = [one for one in plan["presets"] if not one["in_catalogue"]]
    assert preset["name"] == NAME
    assert preset["weights_mib"] == round(source.stat().st_size / 1024**2, 2)
    assert preset["ctx_size"] == 2048
    blind = planned(host)
    assert not blind["found_counted"]
    assert all(one["in_catalogue"] for one in blind["presets"])
    assert "gb10 plan --on-box" in command(host, plan_command).output


def test_one_that_could_not_fit_is_refused_before_any_change(
    host: LabHost, box: Desired, source: Path
) -> None:
    hub = hub_of(host, box)
    put(hub, "standin/big-GGUF", source, BIG_MIB * 1024**2)
    presets = host.ssh(f"cat {lane.PRESETS}").stdout
    try:
        done = deploying.deploy(host)
        assert done.returncode != 0
        assert "Traceback" not in done.stdout
        said = " ".join(done.stdout.split())
        assert f"{BIG} alone needs" in said
        assert f"{box.data.models_found_cache}/models--standin--big-GGUF/snapshots/{COMMIT}" in said
        assert "`enabled: false`" in said
        assert command(host, plan_command, "--on-box").exit_code == 1
        assert host.ssh(f"cat {lane.PRESETS}").stdout == presets
        off = deploying.deploy(host, "--dry", data={"models_found_cache": ""})
        assert off.returncode == 0, off.stdout
    finally:
        shutil.rmtree(hub / "models--standin--big-GGUF")


def test_what_the_server_could_not_load_is_said_and_not_served(host: LabHost, box: Desired) -> None:
    hub = hub_of(host, box)
    broken = hub / "broken.gguf"
    broken.write_bytes(b"no model at all")
    put(hub, "standin/broken-GGUF", broken)
    broken.unlink()
    listed = command(host, models_command)
    assert "not served" in listed.output
    assert "it is no GGUF file" in listed.output
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    assert deploying.changed(done.stdout) == []


def test_a_cache_that_has_gone_keeps_nobody_from_starting(host: LabHost, box: Desired) -> None:
    host.ssh(f"rm -rf {box.data.models_found_cache}", sudo=True)
    host.ssh(f"systemctl restart {lane.UNIT}", sudo=True)
    lane.wait_answering(host)
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    assert "router: presets" in deploying.changed(done.stdout)
    assert NAME not in lane.models(host)
