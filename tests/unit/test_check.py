"""gb10 check: exit statuses, and each fault once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gb10.faults import Fault
from tests.unit.commands import gb10

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every model were pinned and the plan did fit."""
    monkeypatch.setattr("gb10.commands.check.description_faults", lambda box: [])


def written(folder: Path, text: str) -> Path:
    path = folder / "inventory.py"
    path.write_text(text)
    return path


@pytest.mark.usefixtures("pinned")
def test_no_fault(capsys: Captured) -> None:
    status, output, errors = gb10(capsys, "check")
    assert (status, errors) == (0, "")
    assert output.startswith("inventory.py: 1 host, no fault\n")


@pytest.mark.usefixtures("pinned")
def test_hosts_are_counted(tmp_path: Path, capsys: Captured) -> None:
    path = written(tmp_path, 'gb10 = ["one", "two"]\n')
    assert gb10(capsys, "check", "--inventory", path)[1].startswith(f"{path}: 2 hosts, no fault\n")


@pytest.mark.usefixtures("pinned")
def test_all_faults_of_all_hosts(tmp_path: Path, capsys: Captured) -> None:
    text = 'gb10 = [("one", {"lane_port": 0, "lane_prot": 1}), ("two", {"models_dir": "srv"})]\n'
    status, output, errors = gb10(capsys, "check", "--inventory", written(tmp_path, text))
    assert (status, output) == (1, "")
    lines = errors.splitlines()
    assert len(lines) == 3
    assert lines[0] == "data of host one lane_port: 0 is too small: it must be at least 1"
    assert "did you mean 'lane_port'?" in lines[1]
    assert lines[2].startswith("data of host two models_dir: 'srv' must be an absolute path")


def test_a_fault_of_all_hosts_is_said_once(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("models.yaml:9 models.x", "x.gguf is not in the lock", "`gb10 pin x`")
    monkeypatch.setattr("gb10.commands.check.description_faults", lambda box: [fault])
    status, _, errors = gb10(capsys, "check", "--inventory", written(tmp_path, 'gb10 = ["one", "two"]\n'))
    assert (status, errors) == (1, f"{fault}\n")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("gb10 = [\n", "inventory.py:1: '[' was never closed: correct the file"),
        ("\ngb10 = [nope]\n", "inventory.py:2: NameError: name 'nope' is not defined: correct the file"),
        ("import gb10_no_such\n", "inventory.py:1: ModuleNotFoundError: No module named"),
        ('gb10 = [("one", 3)]\n', "inventory.py: TypeError: "),
        ("gb10 = []\n", "inventory.py: it has no host: add one"),
        ("", "inventory.py: it has no host: add one"),
    ],
)
def test_an_inventory_that_is_none(text: str, word: str, tmp_path: Path, capsys: Captured) -> None:
    status, _, errors = gb10(capsys, "check", "--inventory", written(tmp_path, text))
    assert status == 1
    assert word in errors


def test_no_inventory(tmp_path: Path, capsys: Captured) -> None:
    status, _, errors = gb10(capsys, "check", "--inventory", tmp_path / "none.py")
    assert status == 1
    assert "no such inventory file: name one with --inventory FILE" in errors


@pytest.mark.usefixtures("pinned")
def test_faults_of_catalogue_and_lock_come_together(tmp_path: Path, capsys: Captured) -> None:
    files = '"catalogue": "tests/unit/none.yaml", "models_lock": "tests/unit/none.lock"'
    status, _, errors = gb10(
        capsys, "check", "--inventory", written(tmp_path, f'gb10 = [("one", {{{files}}})]\n')
    )
    assert status == 1
    assert "none.yaml" in errors


@pytest.mark.usefixtures("pinned")
def test_a_baseline_of_another_image_is_named(tmp_path: Path, capsys: Captured) -> None:
    entry = {"tokens_per_second": 44.5, "spread": 1, "image": "gb10-llama:old", "presets": "0" * 64}
    (tmp_path / "one.json").write_text(json.dumps({"version": 1, "models": {"fast": entry}}))
    data = {"watch_baselines": str(tmp_path), "models_found_cache": "", "models_found_folder": ""}
    inventory = written(tmp_path, f"gb10 = [('one', {data})]\n")
    status, output, errors = gb10(capsys, "check", "--inventory", inventory)
    assert (status, errors) == (0, "")
    assert "note: one: the baseline of fast is of another image and other presets: measure it again" in output
    # Presets have the models that are found on the box in them, and nobody has looked at it.
    data["models_found_folder"] = "/srv/found"
    (tmp_path / "other").mkdir()  # pyinfra reads a file once
    inventory = written(tmp_path / "other", f"gb10 = [('one', {data})]\n")
    output = gb10(capsys, "check", "--inventory", inventory)[1]
    assert "the baseline of fast is of another image: measure" in output
