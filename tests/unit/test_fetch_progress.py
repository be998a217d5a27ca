"""The downloader's JSON lines, for people."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gb10.fetch_progress import FetchProgress


def line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields})


def progress(file: str, done: int, speed: int = 100_000_000) -> str:
    return line("progress", file=file, done=done, size=10_000_000_000, bytes_per_second=speed)


def test_nothing_yet() -> None:
    assert FetchProgress().progress([]) == ""
    assert FetchProgress().progress([line("start", files=3, size=1)]) == ""


def test_one_file() -> None:
    said = FetchProgress().progress([progress("lab/a/a.gguf", 4_000_000_000)])
    assert said == "a.gguf: 40 % of 10.0 GB, 100.0 MB/s, about 1:00 left"


def test_two_files_are_added_up() -> None:
    reader = FetchProgress()
    reader.progress([progress("lab/a/a.gguf", 1_000_000_000)])
    said = reader.progress([progress("lab/b/b.gguf", 9_000_000_000), progress("lab/a/a.gguf", 5_000_000_000)])
    assert said == "a.gguf, b.gguf: 70 % of 20.0 GB, 200.0 MB/s, about 0:30 left"


def test_no_speed_is_no_estimate() -> None:
    assert FetchProgress().progress([progress("lab/a/a.gguf", 0, speed=0)]) == "a.gguf: 0 % of 10.0 GB"


def test_an_empty_file_divides_by_nothing() -> None:
    said = FetchProgress().progress([line("progress", file="a", done=0, size=0, bytes_per_second=0)])
    assert said == "a: 0 % of 0.0 GB"


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (line("done", file="lab/a/a.gguf", path="/srv/models/a"), "lab/a/a.gguf: fetched"),
        (line("used-in-place", file="lab/a/a.gguf", how="linked"), "lab/a/a.gguf: already on the box"),
        (line("error", file="lab/a/a.gguf", message="a.gguf: no such revision"), "lab/a/a.gguf: failed"),
        (line("waiting", holder="process 77", done=1, size=2), "another run is fetching (process 77)"),
        (line("held", file="a", message="waits for the other shards"), "waits for the other shards"),
    ],
)
def test_the_last_word_when_nothing_is_under_way(event: str, word: str) -> None:
    assert FetchProgress().progress([event]) == word


@pytest.mark.parametrize("event", ["done", "used-in-place", "error"])
def test_a_file_that_ended_is_not_under_way(event: str) -> None:
    reader = FetchProgress()
    reader.progress([progress("lab/a/a.gguf", 1)])
    assert "%" not in reader.progress([line(event, file="lab/a/a.gguf", message="m")])


RETRY = line("retry", file="lab/a/a.gguf", reason="the connection was reset", done=1, wait_seconds=4.0)


def test_trouble_is_said_from_the_first_byte_to_the_next_one() -> None:
    reader = FetchProgress()
    assert reader.progress([RETRY]) == "again in 4 s: the connection was reset"
    assert reader.progress([progress("lab/a/a.gguf", 5)]).endswith(" left")
    assert reader.progress([RETRY, progress("lab/a/a.gguf", 5)]).endswith(
        "; again in 4 s: the connection was reset"
    )
    assert "again" not in reader.progress([progress("lab/a/a.gguf", 6)])


def test_trouble_ends_with_its_file() -> None:
    reader = FetchProgress()
    reader.progress([progress("lab/a/a.gguf", 5), progress("lab/b/b.gguf", 5), RETRY])
    assert "again" not in reader.progress([line("done", file="lab/a/a.gguf")])


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):", "[]", "3", '{"event": "new-kind"}', "{}"]
)
def test_other_lines_are_passed_over(text: str) -> None:
    assert FetchProgress().progress([text]) == ""


def test_failure_shows_the_errors() -> None:
    lines = [
        progress("a", 1),
        line("error", file=None, message="/srv: no space left"),
        line("result", ok=False),
    ]
    assert FetchProgress().failure(lines) == ["/srv: no space left"]


def test_failure_without_a_word_shows_everything() -> None:
    lines = ["python3: can't open file", "x"]
    assert FetchProgress().failure(lines) == lines


def test_failure_of_a_run_that_was_killed_says_how_to_go_on() -> None:
    (said,) = FetchProgress().failure([line("start", files=1, size=1), progress("a", 1)])
    assert "run the deploy again" in said
