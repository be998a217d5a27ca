"""What is on the box beside the catalogue, and removing a model's files: nothing else ever goes."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gb10.commands.models import Found, files_to_remove, size_text, why_stray
from gb10.desired import Desired
from gb10.faults import BadInput
from gb10.inventory import desired, load_inventory

TOP = Path(__file__).parents[2]
PROGRAM = TOP / "files" / "gb10_models.py"


def ask(verb: str, **question: Any) -> tuple[int, str]:
    command = [sys.executable, str(PROGRAM), verb, json.dumps(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout or done.stderr


def find(folders: list[Path], known: list[Path]) -> list[dict[str, Any]]:
    rc, text = ask("list", folders=[str(path) for path in folders], known=[str(path) for path in known])
    assert rc == 0, text
    found: list[dict[str, Any]] = json.loads(text)["found"]
    return found


def put(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def everything(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith(".")
    )


def test_models_beside_the_catalogue_are_found(tmp_path: Path) -> None:
    models, cache = tmp_path / "models", tmp_path / "hub"
    known = put(models / "lab/known/known.gguf")
    put(models / "old.gguf", 7)
    put(models / "old-mmproj.gguf")
    put(models / "lab/known/known.gguf.set-aside-20261130T010203Z", 9)
    put(models / "lab/known/mmproj.gguf.set-aside-20261130T010203Z", 2)
    put(models / "lab/half/half.gguf.part")
    for number in (1, 2):
        put(models / f"big/big-0000{number}-of-00002.gguf", 5)
    blob = put(cache / "models--org--name" / "blobs" / "abc", 3)
    link = cache / "models--org--name" / "snapshots" / "commit" / "Q4" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    (models / "again.gguf").hardlink_to(known)
    (models / "nowhere.gguf").symlink_to("/nowhere/at/all")
    found = {entry["name"]: entry for entry in find([models, cache, tmp_path / "none"], [known])}
    aside = [f"lab/known/{name}.gguf.set-aside-20261130T010203Z" for name in ("known", "mmproj")]
    assert set(found) == {"old.gguf", "big/big-00001-of-00002.gguf", "org/name/Q4/m.gguf", *aside}
    assert [found["old.gguf"][key] for key in ("bytes", "shards")] == [7, 1]
    assert [found["big/big-00001-of-00002.gguf"][key] for key in ("bytes", "shards")] == [10, 2]
    assert len(found["big/big-00001-of-00002.gguf"]["paths"]) == 2
    assert found["org/name/Q4/m.gguf"]["bytes"] == 3


def test_a_model_goes_with_its_parts_and_its_empty_folders(tmp_path: Path) -> None:
    path = put(tmp_path / "lab/one/one.gguf", 7)
    put(tmp_path / "lab/one/one.gguf.part")
    put(tmp_path / "lab/one/one.gguf.part.json")
    put(tmp_path / "lab/two/two.gguf")
    rc, text = ask(
        "remove", models_dir=str(tmp_path), paths=[str(path), str(tmp_path / "lab/x/not-there.gguf")]
    )
    assert rc == 0, text
    assert [entry["freed"] for entry in json.loads(text)["removed"]] == [7, 10, 10]
    assert everything(tmp_path) == ["lab", "lab/two", "lab/two/two.gguf"]


def test_a_file_with_another_name_frees_nothing(tmp_path: Path) -> None:
    path = put(tmp_path / "models/lab/one/one.gguf")
    (tmp_path / "blob").hardlink_to(path)
    _, text = ask("remove", models_dir=str(tmp_path / "models"), paths=[str(path)])
    assert [entry["freed"] for entry in json.loads(text)["removed"]] == [0]
    assert (tmp_path / "blob").stat().st_size == 10


def test_nothing_outside_the_models_folder_goes(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside/x.gguf")
    inside = put(tmp_path / "models/lab/in.gguf")
    (tmp_path / "models/door").symlink_to(tmp_path / "outside")
    for path in (outside, tmp_path / "models/../outside/x.gguf", tmp_path / "models/door/x.gguf"):
        rc, text = ask("remove", models_dir=str(tmp_path / "models"), paths=[str(inside), str(path)])
        assert rc == 1
        assert "nothing was removed" in text
    rc, text = ask("remove", models_dir=str(tmp_path / "models"), paths=[str(inside.parent)])
    assert "is a folder" in text
    assert outside.exists()
    assert inside.exists()


def test_of_a_link_only_the_link_goes(tmp_path: Path) -> None:
    outside = put(tmp_path / "x.gguf")
    link = tmp_path / "models" / "x.gguf"
    link.parent.mkdir()
    link.symlink_to(outside)
    assert ask("remove", models_dir=str(tmp_path / "models"), paths=[str(link)])[0] == 0
    assert not link.is_symlink()
    assert outside.exists()


def test_nothing_goes_while_a_download_runs(tmp_path: Path) -> None:
    path = put(tmp_path / "one.gguf")
    with (tmp_path / ".gb10-fetch.lock").open("w") as lock:
        lock.write("process 7 since today\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        rc, text = ask("remove", models_dir=str(tmp_path), paths=[str(path)])
    assert rc == 1
    assert "a download runs (process 7 since today): nothing was removed" in text
    assert path.exists()


@pytest.fixture(scope="module")
def box() -> Desired:
    return desired(next(iter(load_inventory(TOP / "inventory.py"))))


def found(name: str, state: str, *paths: str) -> Found:
    return Found(name, state, 1, 1, "", paths)


LISTED = [
    found("gemma-4-31B", "ok", "/srv/models/a/a.gguf", "/srv/models/a/shared.gguf"),
    found("gemma-4-E4B", "ok", "/srv/models/b/b.gguf", "/srv/models/a/shared.gguf"),
    found("old.gguf", "stray", "/srv/models/old.gguf"),
    found("org/name/m.gguf", "stray", "/root/.cache/huggingface/hub/x/m.gguf"),
]


def test_what_another_model_uses_stays(box: Desired) -> None:
    assert files_to_remove(box, "gemma-4-31B", LISTED) == ["/srv/models/a/a.gguf"]
    assert files_to_remove(box, "old.gguf", LISTED) == ["/srv/models/old.gguf"]


def test_the_last_part_of_a_name_is_enough_where_it_is_the_only_one(box: Desired) -> None:
    one, other = (
        found("mine/mine.gguf", "stray", "/srv/models/mine.gguf"),
        found("x/mine", "stray", "/srv/models/x"),
    )
    assert files_to_remove(box, "mine", [one]) == ["/srv/models/mine.gguf"]
    assert files_to_remove(box, "mine.gguf", [one, other]) == ["/srv/models/mine.gguf"]
    with pytest.raises(BadInput, match="no such model"):
        files_to_remove(box, "mine", [one, other])


def test_a_snapshot_with_another_name_says_so() -> None:
    cache = "/srv/hub/models--org--name/snapshots"
    assert why_stray(f"{cache}/main/m.gguf") == "not served, its snapshot main is no commit's"
    assert why_stray(f"{cache}/{'a' * 40}/m.gguf") == why_stray("/srv/m.gguf") == "not in the catalogue"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gemma-4-31b", "did you mean `gemma-4-31B`"),
        ("org/name/m.gguf", "is not in /srv/models: it is not ours: remove it by hand"),
    ],
)
def test_what_cannot_be_removed(box: Desired, name: str, fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        files_to_remove(box, name, LISTED)


def test_sizes_for_people() -> None:
    assert [size_text(538_048), size_text(22_134_528_992)] == ["0.5 MB", "22.1 GB"]


def test_what_was_fetched_to_be_converted_has_a_name(tmp_path: Path) -> None:
    source = tmp_path / ".source"
    one = put(source / "nv/a/abc/model.safetensors")
    put(source / "nv/a/abc/x.json", 3)
    put(source / "nv/b/def/model.safetensors.part", 7)
    put(source / "nv/b/def/model.safetensors.part.json", 1)
    (source / "nv/empty/abc").mkdir(parents=True)
    rc, text = ask("list", folders=[str(tmp_path)], known=[], sources=str(source))
    assert rc == 0, text
    found = {entry["name"]: entry for entry in json.loads(text)["sources"]}
    assert found["nv/a@abc"] == {
        "name": "nv/a@abc",
        "bytes": 13,
        "paths": [str(one), str(one.with_name("x.json"))],
    }
    # A download that was cut off goes by the same name.
    assert (found["nv/b@def"]["bytes"], len(found)) == (8, 2)
    for name in found:
        assert ask("remove", models_dir=str(tmp_path), paths=found[name]["paths"])[0] == 0
    assert [path for path in source.rglob("*") if path.is_file()] == []
