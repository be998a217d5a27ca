"""A model more is one entry: it is fetched, served and answers, and those who are served notice nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import catalogue, deploying, lane, models
from tests.lab.host import LabHost

NEW = next(spec for spec in models.SPECS if spec.name == "shards-d")
FOLDER = f"/srv/models/{NEW.repo}"


@pytest.fixture(scope="module")
def host(settled: LabHost) -> LabHost:
    """Two models are loaded, as many as may be."""
    lane.wait_answering(settled)
    assert lane.chat(settled, "tiny-b")[0] == 200
    return settled


def _children(host: LabHost) -> dict[str, str]:
    """Model name to its process and when that began."""
    line = (
        "for pid in $(pgrep -f -- --alias); do stat -c '%n %Z' /proc/$pid;"
        " tr '\\0' ' ' < /proc/$pid/cmdline; echo; done"
    )
    words = host.ssh(line, sudo=True).stdout.splitlines()
    return {
        arguments.split("--alias ")[1].split()[0].split(",")[0]: began
        for began, arguments in zip(words[::2], words[1::2], strict=True)
        if "llama-server" in arguments.split()[0]
    }


def test_an_entry_is_fetched_and_served_without_a_loss(host: LabHost, tmp_path: Path) -> None:
    container, children = lane.container_id(host), _children(host)
    assert set(children) == {"tiny-a", "tiny-b"}
    assert NEW.name not in lane.models(host)
    data = catalogue.extended(tmp_path, NEW)
    done = deploying.deploy(host, data=data)
    assert done.returncode == 0, done.stdout
    assert {"models: files", "router: presets"} <= set(deploying.changed(done.stdout))
    # The same container, and the same processes in it: nothing was loaded again.
    assert lane.container_id(host) == container
    assert _children(host) == children
    states = lane.models(host)
    assert (states["tiny-a"], states["tiny-b"], states[NEW.name]) == ("loaded", "loaded", "unloaded")
    status, answer = lane.chat(host, NEW.name)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] > 0
    assert lane.models(host)[NEW.name] == "loaded"
    assert deploying.changed(deploying.deploy(host, data=data).stdout) == []
    for path in models.ensure(NEW):
        there = host.ssh(f"sha256sum {FOLDER}/{path.name}").stdout.split()[0]
        assert there == models.HubFile(path.name, path).sha256


def test_an_entry_that_goes_is_no_longer_served_and_keeps_its_files(host: LabHost) -> None:
    container = lane.container_id(host)
    before = host.ssh(f"ls -l --time-style=full-iso {FOLDER}").stdout
    assert before.count(".gguf") == NEW.shards
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    assert lane.container_id(host) == container
    assert NEW.name not in lane.models(host)
    assert lane.chat(host, NEW.name)[0] in (400, 404)
    assert lane.chat(host)[0] == 200
    assert host.ssh(f"ls -l --time-style=full-iso {FOLDER}").stdout == before
