"""An image as a file: read to its end before anything is sent."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gb10.faults import BadInput
from gb10.image_file import read_image_file, sum_path, write_sum


def image_file(folder: Path, names: list[str] | None = None, manifest: str = "manifest.json") -> Path:
    path = folder / "image.tar"
    with tarfile.open(path, "w") as archive:
        for name, content in (
            ("layer", b"x" * 100_000),
            (manifest, json.dumps([{"RepoTags": names}]).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        read_image_file(path)
    (fault,) = caught.value.faults
    return str(fault)


def test_a_whole_file(tmp_path: Path) -> None:
    path = image_file(tmp_path, ["gb10/llama-server:b1"])
    steps: list[int] = []
    found = read_image_file(path, steps.append)
    assert found.names == ("gb10/llama-server:b1",)
    assert found.size == sum(steps) == path.stat().st_size
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    write_sum(path, found.sha256)
    assert not found.compared
    assert read_image_file(path) == replace(found, compared=True)


def test_a_compressed_one(tmp_path: Path) -> None:
    path = tmp_path / "image.tar.gz"
    path.write_bytes(gzip.compress(image_file(tmp_path, ["x:1"]).read_bytes()))
    assert read_image_file(path).names == ("x:1",)
    path.write_bytes(path.read_bytes()[:-50])
    assert "not a whole image file" in refused(path)


@pytest.mark.parametrize("keep", [0, 1000, 60_000, 101_000])
def test_one_that_is_cut_off(tmp_path: Path, keep: int) -> None:
    path = image_file(tmp_path, ["x:1"])
    path.write_bytes(path.read_bytes()[:keep])
    assert "not a whole image file" in refused(path)


def test_other_files(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.tar")
    assert "it has no manifest.json" in refused(image_file(tmp_path, ["x:1"], manifest="other.json"))
    assert "no image in it has a name" in refused(image_file(tmp_path))
    (tmp_path / "page.tar").write_text("<html>")
    assert "not a whole image file" in refused(tmp_path / "page.tar")


def test_a_file_that_was_changed(tmp_path: Path) -> None:
    path = image_file(tmp_path, ["x:1"])
    sum_path(path).write_text(f"{'0' * 64}  image.tar\n")
    assert "its sha256 is" in refused(path)
