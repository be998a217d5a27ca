"""The bench's report in a real browser: a small phone, a phone and a laptop, by day and by night."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.unit.bench_pages import LONG, MARKUP, report_page

WIDTHS = (320, 390, 1280)

pytestmark = [
    pytest.mark.skipif(chromium.program() is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give it an empty network"),
]


@pytest.fixture(scope="module", params=["light", "dark"])
def views(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What is seen at each width, with what folds closed and open."""
    found = chromium.looks(
        report_page(), tmp_path_factory.mktemp("page"), widths=WIDTHS, scheme=request.param
    )
    views = [view[state] for view in found for state in ("closed", "open")]
    assert {view["dark"] for view in views} == {request.param == "dark"}
    assert [view["width"] for view in views] == [width for width in WIDTHS for _ in range(2)]
    return views


@pytest.mark.parametrize("fault", ["outside", "overlapping", "small", "pale", "low", "fetched"])
def test_nothing_in_it_is(views: list[dict[str, Any]], fault: str) -> None:
    """Outside the screen or cut off, over other text, under 12 px, of less contrast than 4.5, too low for a
    finger, or from elsewhere."""
    assert {view["width"]: view[fault] for view in views if view[fault]} == {}


def test_it_does_not_scroll_sideways(views: list[dict[str, Any]]) -> None:
    assert [view["scrolls"] for view in views] == [view["width"] for view in views]


def test_what_folds_opens(views: list[dict[str, Any]]) -> None:
    for closed, opened in zip(views[::2], views[1::2], strict=True):
        assert "9/10 coding tasks" in closed["text"]
        assert "task-9: no" not in closed["text"]
        assert "task-9: no" in opened["text"]


def test_every_chart_is_drawn(views: list[dict[str, Any]]) -> None:
    for view in views:
        assert len(view["drawings"]) == 3
        assert min(view["drawings"]) > 250


def test_names_are_shown_as_they_are(views: list[dict[str, Any]]) -> None:
    for view in views:
        assert MARKUP in view["text"]
        assert LONG in view["text"]


def test_a_fault_would_be_seen(tmp_path: Path) -> None:
    """The looking itself: a page that is wrong in each way."""
    wrong = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="http://nowhere.invalid/a.css">
      <body style="background: #fff"><p style="width: 900px">wide wide wide wide wide wide wide wide wide
      wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide wide</p>
      <p style="font-size: 9px">small</p><p style="color: #ccc">pale</p>
      <div style="position: absolute; top: 200px">under</div>
      <div style="position: absolute; top: 200px">over</div>
      <details><summary style="font-size: 12px; line-height: 12px">low</summary></details>"""
    found = chromium.looks(wrong, tmp_path, widths=(390,), scheme="light")[0]["closed"]
    assert found["scrolls"] > 390
    assert found["outside"][0].startswith("wide wide")
    assert found["overlapping"] == ["under | over"]
    assert [words for words, _ in found["small"]] == ["small"]
    assert [words for words, _ in found["pale"]] == ["pale"]
    assert found["low"] == [12]
    assert found["fetched"] == ["http://nowhere.invalid/a.css"]
