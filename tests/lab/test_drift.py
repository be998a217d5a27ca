"""`gb10 drift` against a settled host: every change is found, rightly classed, put right by the next
deploy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.lab import deploying, drifting, lane, paths
from tests.lab.drift_changes import ALTERED, BATCHES, SETTLED, Change
from tests.lab.host import LabHost


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


def _found(host: LabHost, changes: list[Change], top: Path = paths.REPOSITORY) -> None:
    """Each change is found and rightly classed, and nothing else."""
    status, report = drifting.look(host, top=top)
    found = drifting.items(report)
    assert (status, report["state"]) == (2, "drift"), report
    wanted = {change.item: change.made for change in changes}
    assert {item: found.get(item) for item in wanted} == wanted, report["items"]
    allowed = [pattern for change in changes for pattern in change.also]
    others = [item for item in found.keys() - wanted.keys() if not any(fnmatch(item, one) for one in allowed)]
    assert others == [], report["items"]


def _deployed(host: LabHost, top: Path = paths.REPOSITORY) -> None:
    done = deploying.deploy(host, top=top)
    assert done.returncode == 0, done.stdout


def test_an_untouched_host_is_clean_again_and_again(host: LabHost) -> None:
    for _ in range(5):
        drifting.assert_clean(host)


def test_there_are_enough_changes() -> None:
    assert sum(len(changes) for changes in BATCHES.values()) + len(REPOSITORY) >= 40


@pytest.mark.parametrize("batch", BATCHES)
def test_changes_by_hand(host: LabHost, batch: str) -> None:
    for change in BATCHES[batch]:
        host.ssh(change.do, sudo=True)
    _found(host, BATCHES[batch])
    for change in BATCHES[batch]:
        if change.undo:
            host.ssh(change.undo, sudo=True)
    _deployed(host)
    drifting.assert_clean(host)


# -- the repository moves on -----------------------------------------------------------------------

REPOSITORY = {
    "templates/lane.service.j2": ("RestartSec=5", "RestartSec=6", "router: llamacpp-playground.service"),
    "tests/lab/models.yaml": ("top-k: 40", "top-k: 41", "router: presets"),
    "files/gb10_gate.py": ("PAUSE_SECONDS = 2", "PAUSE_SECONDS = 3", "image: gb10_gate.py"),
    "templates/nvidia-container-toolkit.pref.j2": (
        "Pin-Priority: ",
        "Pin-Priority: 1",
        "toolkit: version pin",
    ),
    "group_data/all.py": ("models_parallel = 2", "models_parallel = 3", "models: list of files"),
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A copy of the repository, to be edited."""
    top = tmp_path / "repository"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=paths.REPOSITORY, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(paths.REPOSITORY / name, top / name)
    yield top
    shutil.rmtree(top)


def test_a_source_file_edited(host: LabHost, elsewhere: Path) -> None:
    for name, (old, new, _) in REPOSITORY.items():
        text = (elsewhere / name).read_text()
        assert old in text
        (elsewhere / name).write_text(text.replace(old, new))
    # One of them was edited on the box as well.
    host.ssh("echo '# mine' >> /usr/local/lib/gb10/gb10_gate.py", sudo=True)
    changes = [
        Change(
            name,
            "",
            item,
            made="both" if name == "files/gb10_gate.py" else "repository",
            also=(SETTLED, ALTERED, "router: model small-c", "history: *"),
        )
        for name, (_, _, item) in REPOSITORY.items()
    ]
    _found(host, changes, top=elsewhere)
    # For who has the other state of the repository, only that one was changed.
    _found(host, [Change("the edit on the box", "", "image: gb10_gate.py")])
    _deployed(host, top=elsewhere)
    drifting.assert_clean(host, top=elsewhere)
    _deployed(host)
    drifting.assert_clean(host)
