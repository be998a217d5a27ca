"""The downloader against a real HTTP server: cuts, refusals, a full disk, kills. Nothing half-named, ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.hub import Fault, Hub, HubServer
from tests.unit.fetching import COMMIT, MB, REPO, Box, finish, served, wait_until

TOKEN = "hf_a_secret_that_shows_up_nowhere"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    box.add("one.gguf")
    with served(box):
        yield box


def whole(box: Box, name: str = "one.gguf") -> bool:
    return box.path(name).read_bytes() == box.files[name].path.read_bytes()


def first_byte(header: str) -> int:
    return int(header.removeprefix("bytes=").removesuffix("-"))


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_goes_on_after_a_cut(box: Box, percent: int) -> None:
    cut = box.files["one.gguf"].size * percent // 100
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(close_after=cut, times=1))
    run = box.run()
    assert run.rc == 0
    assert whole(box)
    assert f"at {cut} of {4 * MB} bytes" in run.of("retry")[0]["reason"]
    assert [request.get("range") for request in box.blob_requests("one.gguf")] == [None, f"bytes={cut}-"]
    assert box.left() == ["one.gguf"]


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_the_next_run_goes_on_where_the_last_one_gave_up(box: Box, percent: int) -> None:
    cut = box.files["one.gguf"].size * percent // 100
    box.settings["attempts"] = 1
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(close_after=cut, times=1))
    run = box.run()
    assert run.rc == 1
    assert "gave up" in run.errors
    assert "are kept in" in run.errors
    assert box.left() == ["one.gguf.part", "one.gguf.part.json"]
    assert box.states() == ["partial"]
    box.hub.faults.clear()
    assert box.run().rc == 0
    assert whole(box)
    assert box.blob_requests("one.gguf")[-1]["range"] == f"bytes={cut}-"
    assert box.left() == ["one.gguf"]


def test_a_server_that_always_cuts_is_left_in_the_end(box: Box) -> None:
    box.settings["attempts"] = 3
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(close_after=10))
    run = box.run()
    assert run.rc == 1
    assert len(run.of("retry")) == 2
    assert "gave up after 3 tries without progress" in run.errors


def test_a_server_that_ignores_ranges_sends_all_again(box: Box) -> None:
    box.hub.ignores_range = True
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(close_after=MB, times=1))
    assert box.run().rc == 0
    assert whole(box)


def test_another_etag_starts_over_where_the_hub_does_not_vouch(box: Box) -> None:
    box.hub.faults.set("/one.gguf", Fault(close_after=MB, drop_headers=True))
    box.settings["attempts"] = 1
    assert box.run().rc == 1
    path = box.part("one.gguf").with_suffix(".part.json")
    state = json.loads(path.read_text())
    assert state["etag"] == f'"{box.files["one.gguf"].sha256}"'
    path.write_text(json.dumps({**state, "etag": '"of-yesterday"'}))
    box.hub.faults.set("/one.gguf", Fault(drop_headers=True))
    assert box.run().rc == 0
    assert box.blob_requests("one.gguf")[-1]["if-range"] == '"of-yesterday"'
    assert whole(box)


def test_a_silent_server_is_a_cut(box: Box) -> None:
    box.settings |= {"attempts": 2, "timeout_s": 0.3}
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=1))
    run = box.run()
    assert run.rc == 1
    assert "timed out" in run.errors


def test_a_busy_hub_is_asked_again(box: Box) -> None:
    box.hub.faults.set("resolve/" + COMMIT + "/one.gguf", Fault(status=503, times=2))
    run = box.run()
    assert run.rc == 0
    assert [retry["reason"].split()[0] for retry in run.of("retry")] == ["503", "503"]


def test_wrong_content_gets_no_name_and_the_others_go_on(box: Box) -> None:
    box.add("two.gguf")
    box.hub.faults.set("/one.gguf", Fault(corrupt=True))
    run = box.run()
    assert run.rc == 1
    assert "the sha256 is" in run.errors
    assert "one.gguf.part was removed" in run.errors
    assert box.left() == ["two.gguf"]
    assert run.events[-1]["failed"] == [f"{REPO}/one.gguf"]


def test_a_hub_that_has_another_file_now_is_refused_before_the_first_byte(box: Box) -> None:
    box.hub.faults.set("/one.gguf", Fault(wrong_etag=True))
    run = box.run()
    assert run.rc == 1
    assert "the hub's sha256 is 000" in run.errors
    assert not box.blob_requests("one.gguf")


def test_a_damaged_part_is_found_and_fetched_anew(box: Box) -> None:
    box.settings["attempts"] = 1
    box.hub.faults.set("/one.gguf", Fault(close_after=2 * MB))
    assert box.run().rc == 1
    with box.part("one.gguf").open("r+b") as stream:
        stream.seek(MB)
        stream.write(b"damage")
    box.hub.faults.clear()
    box.settings["attempts"] = 8
    run = box.run()
    assert run.rc == 0
    assert "starting over" in run.of("retry")[0]["reason"]
    assert whole(box)


def test_a_file_that_the_hub_does_not_have(box: Box) -> None:
    box.add("two.gguf")
    box.publish(without="one.gguf")
    run = box.run()
    assert run.rc == 1
    assert f"404 EntryNotFound from {box.url[7:]}: no one.gguf in {REPO} at revision {COMMIT}" in run.errors
    assert box.left() == ["two.gguf"]


def test_gated_without_a_token(box: Box) -> None:
    box.publish(token=TOKEN)
    run = box.run()
    assert run.rc == 1
    assert "401 GatedRepo" in run.errors
    assert "no token file is set" in run.errors
    box.settings["token_file"] = str(box.folder / "token")
    assert f"the token file {box.folder}/token is not there" in box.run().errors


def test_the_token_opens_a_gated_model_and_shows_up_nowhere(box: Box) -> None:
    token_file = box.folder / "token"
    token_file.write_text(TOKEN + "\n")
    token_file.chmod(0o600)
    box.settings["token_file"] = str(token_file)
    box.publish(token="another")
    refused = box.run()
    assert f"the token in {token_file} does not open {REPO}" in refused.errors
    box.publish(token=TOKEN)
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=8 * MB))
    process = box.start()
    seen = Path(f"/proc/{process.pid}/cmdline").read_text() + Path(f"/proc/{process.pid}/environ").read_text()
    run = finish(process)
    assert run.rc == 0
    assert TOKEN not in seen + run.text + refused.text
    left = [path.read_text() for path in box.models.rglob("*") if path.is_file() and path.suffix != ".gguf"]
    assert TOKEN not in "".join(left)


def test_the_token_does_not_follow_a_redirect_to_another_host(box: Box) -> None:
    token_file = box.folder / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    box.settings["token_file"] = str(token_file)
    box.publish(token=TOKEN)
    elsewhere = Hub(tuple(box.hub.repos.values()))
    with HubServer(elsewhere) as server:
        box.hub.cdn = server.url.removeprefix("http://")
        run = box.run()
    assert run.rc == 0, run.text
    assert [request.headers.get("authorization") for request in box.hub.requests] == [f"Bearer {TOKEN}"]
    assert elsewhere.requests
    assert all("authorization" not in request.headers for request in elsewhere.requests)


def test_a_token_that_others_can_read_is_refused(box: Box) -> None:
    token_file = box.folder / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o644)
    box.settings["token_file"] = str(token_file)
    run = box.run()
    assert run.rc == 1
    assert f"chmod 600 {token_file}" in run.errors
    assert not box.hub.requests


def test_too_little_room_is_seen_before_the_first_byte(box: Box) -> None:
    assert box.check()["shortage"] == ""
    box.settings["reserve_bytes"] = 1 << 60
    assert "are to come" in box.check()["shortage"]
    run = box.run()
    assert run.rc == 1
    assert "make room; nothing was fetched" in run.errors
    assert not box.hub.requests


@pytest.fixture
def small_disk(box: Box) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk wants root")
    box.models.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(box.models)], check=True)
    try:
        yield box.models
    finally:
        subprocess.run(["umount", str(box.models)], check=True)


def test_a_disk_that_fills_up_meanwhile(box: Box, small_disk: Path) -> None:
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=4 * MB))
    process = box.start()
    wait_until(lambda: box.part("one.gguf").exists())
    filler = small_disk / "filler"
    filler.write_bytes(bytes(6 * MB))
    run = finish(process)
    assert run.rc == 1
    assert "the disk is full" in run.errors
    assert not box.path("one.gguf").exists()
    filler.unlink()
    box.hub.faults.clear()
    assert box.run().rc == 0
    assert whole(box)


def test_the_reserve_is_kept_while_it_downloads(box: Box, small_disk: Path) -> None:
    box.settings["reserve_bytes"] = 2 * MB
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=MB))
    process = box.start()
    wait_until(lambda: box.part("one.gguf").exists())
    (small_disk / "filler").write_bytes(bytes(5 * MB))
    run = finish(process)
    assert run.rc == 1
    assert "that must stay free" in run.errors


def test_killed_in_the_middle(box: Box) -> None:
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=MB))
    process = box.start()
    wait_until(lambda: box.part("one.gguf").with_suffix(".part.json").exists())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert box.left() == ["one.gguf.part", "one.gguf.part.json"]
    box.hub.faults.clear()
    assert box.run().rc == 0
    assert whole(box)
    assert first_byte(box.blob_requests("one.gguf")[-1]["range"]) > 0


def test_two_at_once_share_the_work(box: Box) -> None:
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=MB // 2))
    first = box.start()
    wait_until(lambda: box.part("one.gguf").exists())
    assert box.check()["running"].startswith(f"process {first.pid} since ")
    second = box.start()
    runs = [finish(first), finish(second)]
    assert [run.rc for run in runs] == [0, 0]
    assert runs[1].of("waiting")[0]["holder"].startswith(f"process {first.pid} since ")
    # The hub notes a request when its answer has ended, which may be after the client has all of it.
    wait_until(lambda: len(box.blob_requests("one.gguf")) > 0)
    assert len(box.blob_requests("one.gguf")) == 1
    assert box.check()["running"] is None


def test_progress_is_told_while_it_downloads(box: Box) -> None:
    box.hub.faults.set(f"{box.files['one.gguf'].sha256}/one.gguf", Fault(bytes_per_s=2 * MB))
    progress = box.run().of("progress")
    assert progress
    assert progress[0]["file"] == f"{REPO}/one.gguf"
    assert 0 < progress[0]["done"] < progress[0]["size"] == 4 * MB
    assert progress[0]["bytes_per_second"] > 0
    assert progress[0]["eta_seconds"] >= 0
