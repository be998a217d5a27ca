"""gb10 render: everything that a deploy would put on a box, and nothing else touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10.commands.render import MARKER
from tests.unit.boxes import box
from tests.unit.commands import gb10

Captured = pytest.CaptureFixture[str]


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file below a folder: path to content and mode."""
    return {
        str(path.relative_to(folder)): (path.read_text(), path.stat().st_mode & 0o7777)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_file_with_its_content_and_mode(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "rendered"
    status, output, _ = gb10(capsys, "render", "--out", out)
    assert status == 0
    expected = {f"gb10.local{placed.path}": (placed.content, int(placed.mode, 8)) for placed in box().files()}
    found = tree(out)
    del found[MARKER]
    assert found == expected
    assert output.splitlines() == [str(out / path) for path in expected]


def test_no_key_is_in_it(tmp_path: Path, capsys: Captured) -> None:
    gb10(capsys, "render", "--out", tmp_path / "rendered")
    assert not [path for path in tree(tmp_path) if path.endswith("api-key")]


def test_twice_is_the_same(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "rendered"
    gb10(capsys, "render", "--out", out)
    first = tree(out)
    # What an older description had put there goes.
    (out / "gb10.local" / "etc" / "old.conf").write_text("")
    assert gb10(capsys, "render", "--out", out)[0] == 0
    assert tree(out) == first


def test_an_empty_folder_is_taken(tmp_path: Path, capsys: Captured) -> None:
    assert gb10(capsys, "render", "--out", tmp_path)[0] == 0


def test_somebody_elses_folder_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "thesis.txt").write_text("")
    status, _, errors = gb10(capsys, "render", "--out", tmp_path)
    assert status == 1
    assert f"{tmp_path}: it is no empty folder and no earlier rendering: name another --out" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_link_to_somebody_elses_folder_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert gb10(capsys, "render", "--out", tmp_path / "link")[0] == 1


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/gb10-none"])
def test_what_cannot_be_written_is_one_line(out: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    status, _, errors = gb10(capsys, "render", "--out", tmp_path / out)
    assert status == 1
    assert errors.splitlines()[-1].endswith(": name another --out")
    assert (tmp_path / "file").is_file()


def test_faulty_data_leaves_the_last_rendering_alone(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "rendered"
    gb10(capsys, "render", "--out", out)
    before = tree(out)
    inventory = tmp_path / "inventory.py"
    inventory.write_text('gb10 = [("box", {"lane_port": 0})]\n')
    assert gb10(capsys, "render", "--out", out, "--inventory", inventory)[0] == 1
    assert tree(out) == before


def test_several_boxes(tmp_path: Path, capsys: Captured) -> None:
    inventory = tmp_path / "inventory.py"
    inventory.write_text('gb10 = ["one", ("two", {"lane_port": 8080})]\n')
    out = tmp_path / "rendered"
    assert gb10(capsys, "render", "--out", out, "--inventory", inventory)[0] == 0
    unit = "etc/systemd/system/llamacpp-playground.service"
    assert "127.0.0.1:10103:10103" in (out / "one" / unit).read_text()
    assert "127.0.0.1:8080:8080" in (out / "two" / unit).read_text()


def test_what_a_deploy_would_refuse_is_a_note(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gb10.faults import Fault

    fault = Fault("models.yaml:9 models.x", "x.gguf is not in the lock", "`gb10 pin x`")
    monkeypatch.setattr("gb10.commands.render.description_faults", lambda box: [fault])
    status, _, errors = gb10(capsys, "render", "--out", tmp_path / "rendered")
    assert (status, errors) == (0, f"note: a deploy would refuse {fault}\n")
