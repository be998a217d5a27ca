"""The downloader and what is on the box already: caches, folders, earlier runs, shards, the manifest."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.hub import Fault, HubFile
from tests.unit.fetching import MB, REPO, Box, finish, served


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    with served(box):
        yield box


def hub_cache(box: Box, file: HubFile) -> Path:
    """A Hugging Face cache on the box that holds the file; returns its blob."""
    root = box.folder / "cache" / "hub" / ("models--" + REPO.replace("/", "--"))
    blob, link = root / "blobs" / file.sha256, root / "snapshots" / "abc" / file.name
    blob.parent.mkdir(parents=True)
    link.parent.mkdir(parents=True)
    blob.write_bytes(file.path.read_bytes())
    link.symlink_to(Path("..", "..", "blobs", file.sha256))
    box.settings["search"] = [str(box.folder / "cache" / "hub"), "/nowhere/at/all"]
    return blob


def test_a_file_in_a_hub_cache_is_linked(box: Box) -> None:
    blob = hub_cache(box, box.add("one.gguf"))
    run = box.run()
    assert run.rc == 0
    used = run.of("used-in-place")[0]
    assert (used["how"], used["source"]) == ("hard link", str(blob))
    assert box.path("one.gguf").samefile(blob)
    assert not box.path("one.gguf").is_symlink(), (
        "a link out of the models folder is nothing in the container"
    )
    assert not box.hub.requests
    assert box.left() == ["one.gguf"]
    assert box.states() == ["ok"]


def test_a_file_that_only_its_owner_may_read_is_copied(box: Box) -> None:
    blob = hub_cache(box, box.add("one.gguf"))
    blob.chmod(0o600)
    run = box.run()
    assert run.of("used-in-place")[0]["how"] == "copy"
    assert box.path("one.gguf").stat().st_mode & 0o777 == 0o644
    assert blob.stat().st_mode & 0o777 == 0o600
    assert not box.hub.requests


def test_a_file_on_another_file_system_is_copied(box: Box) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk wants root")
    file = box.add("one.gguf")
    hub_cache(box, file)
    box.models.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(box.models)], check=True)
    try:
        run = box.run()
        assert run.of("used-in-place")[0]["how"] == "copy"
        assert box.path("one.gguf").read_bytes() == file.path.read_bytes()
        assert box.left() == ["one.gguf"]
    finally:
        subprocess.run(["umount", str(box.models)], check=True)


def test_a_file_of_another_name_in_the_models_folder_is_linked(box: Box) -> None:
    file = box.add("one.gguf")
    box.models.mkdir()
    own = box.models / "my-old-model.gguf"
    own.write_bytes(file.path.read_bytes())
    assert box.run().rc == 0
    assert box.path("one.gguf").samefile(own)
    assert own.read_bytes() == file.path.read_bytes()


def test_a_file_that_only_looks_the_same_is_not_taken(box: Box) -> None:
    file = box.add("one.gguf")
    blob = hub_cache(box, file)
    blob.write_bytes(os.urandom(file.size))
    kept = blob.read_bytes()
    run = box.run()
    assert run.rc == 0
    assert run.of("done")
    assert box.path("one.gguf").read_bytes() == file.path.read_bytes()
    assert blob.read_bytes() == kept


@pytest.mark.parametrize("size", [4 * MB, 1000])
def test_another_file_at_the_place_is_set_aside_when_the_right_one_is_proven(box: Box, size: int) -> None:
    file = box.add("one.gguf")
    box.path("one.gguf").parent.mkdir(parents=True)
    box.path("one.gguf").write_bytes(bytes(size))
    box.hub.faults.set("/one.gguf", Fault(status=404))
    run = box.run()
    assert run.rc == 1
    assert box.path("one.gguf").read_bytes() == bytes(size), "it goes only when there is a better one"
    assert box.states() == ["wrong"]
    assert not (box.models / ".gb10-replaced.json").exists()

    box.hub.faults.clear()
    run = box.run()
    assert run.rc == 0
    assert box.path("one.gguf").read_bytes() == file.path.read_bytes()
    assert box.states() == ["ok"]
    kept = next(box.path("one.gguf").parent.glob("one.gguf.set-aside-*"))
    assert kept.read_bytes() == bytes(size)
    assert [event["message"] for event in run.of("note")] == [
        f"another file is at {box.path('one.gguf')} ("
        + (f"sha256 {hashlib.sha256(bytes(size)).hexdigest()}, the lock says {file.sha256})"
           if size == file.size else f"{size} bytes, the lock says {file.size})"),
        f"the file that was at {box.path('one.gguf')} is kept as {kept.name}",
    ]  # fmt: skip
    # A router that was started before now may hold what it read of the other file.
    replaced = json.loads((box.models / ".gb10-replaced.json").read_text())
    assert 0 < time.monotonic() - replaced["monotonic_us"] / 1e6 < 60
    assert not box.run().of("note")


def test_another_file_in_place_of_a_made_one_stays(box: Box) -> None:
    box.add("one.gguf")
    box.path("one.gguf").parent.mkdir(parents=True)
    box.path("one.gguf").write_bytes(b"other")
    (entry,) = json.loads(box.manifest().read_text())["files"]
    box.settings["files"] = [{**entry, "made": "gb10 convert x"}]
    run = box.run()
    assert run.rc == 1
    assert "`gb10 models rm` its model, then `gb10 convert x`" in run.errors
    assert box.path("one.gguf").read_bytes() == b"other"


def test_what_the_server_may_not_read_is_opened(box: Box) -> None:
    box.add("one.gguf")
    assert box.run().rc == 0
    path = box.path("one.gguf")
    path.chmod(0o600)
    path.parent.chmod(0o700)
    box.models.chmod(0o750)
    found = box.check()
    assert found["ok"] is False
    assert found["files"][0]["state"] == "ok"
    assert set(found["files"][0]["closed"]) == {str(box.models), str(path.parent), str(path)}
    run = box.run()
    assert run.rc == 0
    assert sum("was not readable" in event["message"] for event in run.of("note")) == 3
    assert (path.stat().st_mode & 0o777, box.models.stat().st_mode & 0o777) == (0o604, 0o755)
    assert box.check()["ok"] is True


def test_a_folder_at_the_place_is_left_alone(box: Box) -> None:
    box.add("one.gguf")
    box.path("one.gguf").mkdir(parents=True)
    run = box.run()
    assert run.rc == 1
    assert "it is no file: move it away" in run.errors


def test_a_disk_without_room_for_the_right_one_beside_the_other(box: Box) -> None:
    box.add("one.gguf")
    box.path("one.gguf").parent.mkdir(parents=True)
    box.path("one.gguf").write_bytes(b"other")
    box.settings["reserve_bytes"] = 1 << 60
    run = box.run()
    assert run.rc == 1
    assert "must stay free" in run.errors
    assert box.path("one.gguf").read_bytes() == b"other"


def test_a_file_that_was_set_aside_comes_back_when_it_is_wanted_again(box: Box) -> None:
    old = box.add("one.gguf")
    assert box.run().rc == 0
    kept = old.path.read_bytes()
    box.add("one.gguf")
    assert box.run().rc == 0
    box.files["one.gguf"].path.write_bytes(kept)
    box.files["one.gguf"] = HubFile("one.gguf", old.path)
    box.publish()
    before = len(box.hub.requests)
    assert box.run().rc == 0
    assert box.path("one.gguf").read_bytes() == kept
    assert len(box.hub.requests) == before


def test_a_verified_file_is_not_read_again(box: Box) -> None:
    box.add("one.gguf")
    assert box.run().rc == 0
    path = box.path("one.gguf")
    before = path.stat()
    # Other content under the same size, time and inode: only a run that reads it would notice.
    with path.open("r+b") as stream:
        stream.write(b"xxxx")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert box.run().rc == 0
    os.utime(path)
    assert box.states() == ["unverified"]
    run = box.run()
    assert run.rc == 0
    assert "another file is at" in run.of("note")[0]["message"]
    assert box.states() == ["ok"]


def test_a_spoilt_memory_of_what_was_verified_costs_a_read_and_no_more(box: Box) -> None:
    box.add("one.gguf")
    assert box.run().rc == 0
    for spoilt in ("", "[]", '{"a": 1}', "\0"):
        (box.models / ".gb10-verified.json").write_text(spoilt)
        assert box.run().rc == 0
        assert box.states() == ["ok"]


def test_looking_changes_nothing(box: Box) -> None:
    box.add("one.gguf")
    found = box.check()
    assert found["ok"] is False
    assert found["files"][0]["state"] == "missing"
    assert found["free_bytes"] > 0
    assert not box.models.exists()
    assert not box.hub.requests


SHARDS = [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def test_a_set_of_shards_gets_its_names_together(box: Box) -> None:
    for name in SHARDS:
        box.add(name, MB)
    box.publish(without=SHARDS[1])
    run = box.run()
    assert run.rc == 1
    assert "(shard 2 of 3)" in run.errors
    assert "404" in run.errors
    assert [entry["message"] for entry in run.of("held")] == [
        "whole, but waits for the other shards of its set"
    ] * 2
    assert all(name.endswith((".part", ".part.json")) for name in box.left())
    box.publish()
    asked = len(box.blob_requests(SHARDS[0]))
    assert box.run().rc == 0
    assert box.left() == SHARDS
    assert len(box.blob_requests(SHARDS[0])) == asked, "what was whole is not fetched again"


def test_a_shard_that_the_manifest_leaves_out(box: Box) -> None:
    for name in SHARDS[:2]:
        box.add(name, MB)
    run = box.run()
    assert run.rc == 1
    assert f"{REPO}/big: shard 3 of 3 is missing from the manifest" in run.errors
    assert not box.hub.requests


def test_files_in_folders_of_the_repository(box: Box) -> None:
    (box.folder / "hub" / "Q4").mkdir(parents=True)
    box.add("Q4/one.gguf", MB)
    assert box.run().rc == 0
    assert box.path("Q4/one.gguf").stat().st_size == MB


def test_several_at_a_time_within_the_limit(box: Box) -> None:
    for number in range(4):
        box.add(f"{number}.gguf", MB)
    box.hub.faults.set(".gguf", Fault(bytes_per_s=2 * MB))
    process = box.start()
    most = 0
    while process.poll() is None:
        # A whole one may still wait for its name.
        most = max(most, sum(0 < size < MB for size in box.part_sizes()))
        time.sleep(0.005)
    assert finish(process).rc == 0
    assert most == 2


def test_every_fault_of_the_manifest_at_once(box: Box) -> None:
    box.add("one.gguf", MB)
    data = json.loads(box.manifest().read_text())
    data["parallel"] = 0
    data["files"][0] |= {"sha256": "abc", "path": "/etc/passwd", "size": -1, "file": "../x"}
    box.settings = data
    run = box.run()
    assert run.rc == 1
    assert len(run.of("error")) == 5, run.errors
    for word in ("parallel", "sha256", "path", "size", "file"):
        assert f"{word}: " in run.errors
    assert not box.models.exists()


def test_what_is_made_at_home_is_proven_and_never_fetched(box: Box) -> None:
    file = box.add("own.gguf")
    entries = json.loads(box.manifest().read_text())["files"]
    box.settings |= {"files": [{**entries[0], "made": "gb10 convert own"}], "reserve_bytes": 0}
    run = box.run()
    assert run.rc == 1
    assert run.errors.endswith("own.gguf is not there, and no hub has it: run `gb10 convert own`")
    assert not box.hub.requests
    # It is not to come, so it needs no room.
    box.settings["files"][0]["size"] = 1 << 60
    assert box.check()["shortage"] == ""
    box.settings["files"][0]["size"] = file.size
    box.path("own.gguf").write_bytes(file.path.read_bytes())
    assert box.states() == ["unverified"]
    assert box.run().rc == 0
    assert box.states() == ["ok"]
    assert not box.hub.requests
