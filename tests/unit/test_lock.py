"""The lock file: read back what was written, and every fault at once."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import pytest

from gb10.catalogue import load_catalogue
from gb10.faults import BadInput
from gb10.fetch_manifest import fetch_manifest, model_files, unresolved
from gb10.lock import LlamaCpp, Lock, LockedFile, load_lock, render_lock, write_lock
from gb10.preset_options import load_preset_options

TOP = Path(__file__).parents[2]
SHA = "b" * 64
FILES = (
    LockedFile("lab/b", "a" * 40, "b.gguf", 2, SHA, {"architecture": "llama"}),
    LockedFile("lab/a", "a" * 40, "a-00002-of-00002.gguf", 1, SHA),
    LockedFile("lab/a", "a" * 40, "a-00001-of-00002.gguf", 1, SHA),
    LockedFile("lab/c", "c" * 40, "c.gguf", None, None),
)
LOCK = Lock(LlamaCpp("b1", "d" * 40, "options.json"), {"x/y:1": "sha256:" + SHA}).with_files(FILES)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "models.lock"
    write_lock(path, LOCK)
    assert load_lock(path) == LOCK
    assert [entry.name for entry in tmp_path.iterdir()] == ["models.lock"]


def test_the_order_of_files_does_not_matter() -> None:
    assert render_lock(Lock(LOCK.llama_cpp, LOCK.images).with_files(FILES[::-1])) == render_lock(LOCK)


@pytest.mark.parametrize("name", ["models.lock", "tests/lab/models.lock"])
def test_the_committed_locks_are_as_the_program_writes_them(name: str) -> None:
    assert render_lock(load_lock(TOP / name)) == (TOP / name).read_text()


def test_an_empty_lock(tmp_path: Path) -> None:
    write_lock(tmp_path / "models.lock", Lock())
    assert load_lock(tmp_path / "models.lock") == Lock()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"models\.lock: no such lock file: write it: `gb10 pin`"):
        load_lock(tmp_path / "models.lock")


def test_no_json(tmp_path: Path) -> None:
    (tmp_path / "models.lock").write_text("<<<<<<< HEAD")
    with pytest.raises(BadInput, match="not JSON"):
        load_lock(tmp_path / "models.lock")


def test_every_fault_at_once(tmp_path: Path) -> None:
    good = {"repo": "a/b", "revision": "a" * 40, "file": "f.gguf", "size": 1, "sha256": SHA, "header": None}
    data = {
        "version": 2,
        "colour": "red",
        "llama.cpp": {"ref": "b1", "commit": "main", "options": "o"},
        "images": {"x:1": "latest"},
        "files": [
            good,
            good,
            {**good, "file": "g", "revision": "main", "size": -1, "sha256": "x", "extra": 1},
            7,
        ],
    }
    (tmp_path / "models.lock").write_text(json.dumps(data))
    with pytest.raises(BadInput) as caught:
        load_lock(tmp_path / "models.lock")
    where = [fault.where.removeprefix(f"{tmp_path}/models.lock ") for fault in caught.value.faults]
    assert where[:4] == ["version", "colour", "llama.cpp.commit", "images.x:1"]
    assert {"files[1]", "files[2].revision", "files[2].size", "files[2].sha256", "files[2].extra"} <= set(
        where
    )
    assert "files[3]" in where


CATALOGUE = """
defaults: {ctx-size: 1024, parallel: 1, kv-unified: true, cache-type: f16, cache-ram: 0, n-gpu-layers: all,
  load-mode: none}
models:
  whole: {repo: lab/b, file: b.gguf}
  split: {repo: lab/a, file: a-00001-of-00002.gguf, draft: {repo: lab/b, file: b.gguf}}
  unknown: {repo: lab/c, file: c.gguf}
  elsewhere: {repo: lab/d, file: d.gguf}
  moved: {repo: lab/b, file: b.gguf, revision: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee}
  off: {repo: lab/e, file: e.gguf, enabled: false, reason: because}
"""


def test_the_manifest_holds_what_is_locked_and_the_rest_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(CATALOGUE)
    catalogue = load_catalogue(tmp_path / "models.yaml", load_preset_options())
    manifest = fetch_manifest(
        catalogue,
        LOCK,
        models_dir="/srv/models",
        hub="https://hub.example/",
        token_file=None,
        parallel=2,
        reserve_bytes=5,
        search=("/a",),
    )
    paths = [entry["path"] for entry in manifest["files"]]
    assert paths == [
        "/srv/models/lab/b/b.gguf",
        "/srv/models/lab/a/a-00001-of-00002.gguf",
        "/srv/models/lab/a/a-00002-of-00002.gguf",
    ]
    assert manifest["files"][0] == {
        "repo": "lab/b",
        "revision": "a" * 40,
        "file": "b.gguf",
        "size": 2,
        "sha256": SHA,
        "path": paths[0],
    }
    assert manifest["hub"] == "https://hub.example"
    assert json.loads(json.dumps(manifest)) == manifest
    faults = unresolved(catalogue, LOCK)
    assert [fault.where.split()[-1] for fault in faults] == [
        "models.unknown",
        "models.elsewhere",
        "models.moved",
    ]
    assert faults[0].do == "`gb10 pin unknown`, and commit the lock"
    assert "no size and no sha256 of c.gguf" in faults[0].what
    assert "lab/d d.gguf is not in the lock" in faults[1].what
    assert "at revision aaaaaaaaaaaa, not eeeeeeeeeeee" in faults[2].what
    split = catalogue.model("split")
    assert split is not None
    assert [str(path) for path in model_files(split, PurePosixPath("/m"))] == [
        "/m/lab/a/a-00001-of-00002.gguf",
        "/m/lab/a/a-00002-of-00002.gguf",
        "/m/lab/b/b.gguf",
    ]
