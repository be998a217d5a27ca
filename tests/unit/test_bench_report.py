"""The report: one page that stands alone, and says what was not measured."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gb10.bench import report
from gb10.bench.result import ClientsRow, Device, Result, StoryRun, save
from gb10.bench.story import Claim
from tests.unit.bench_pages import MARKUP, report_page
from tests.unit.bench_runs import START, figure, model, rate, result
from tests.unit.commands import gb10

VOID = {"meta", "line", "circle", "polyline"}


class Page(HTMLParser):
    """Checks that tags are closed in order; ``links`` are all that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_needs_nothing_else() -> None:
    page = Page(report_page())
    assert "script" not in page.tags
    assert page.links == []
    assert "url(" not in report_page()
    assert "@import" not in report_page()


def test_names_and_reasons_are_text() -> None:
    text = report_page()
    assert MARKUP not in text
    assert html.escape(MARKUP) in text
    assert "<b>full" not in text


def test_it_says_what_there_is_and_what_there_is_not() -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", report_page()).split())
    assert "57.0 tok/s ± 1.0, 2027-02-07" in text
    assert "not measured" in text
    assert "9/10 coding tasks" in text
    assert "skipped: 20128 tokens each" in text
    assert "57240 MiB" in text
    assert "made at home unknown" in text
    assert "tok/s story measured qwen3-coder-next 52 51.3 ± 0.4" in text
    assert "POST /completion answered 500: &lt;b&gt;full" in text
    assert "load: it does not load" in text
    assert "other" in text


def test_it_fits_a_phone() -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in report_page()


def test_a_chart_begins_at_zero_and_holds_every_spread() -> None:
    chart = report.chart([(START, figure(40, 4)), (START, figure(50, 10))])
    assert chart is not None
    assert [text for _, text in chart.ticks] == ["0", "40", "80"]
    bottom, top = chart.ticks[0][0], chart.ticks[-1][0]
    for point in chart.points:
        assert top <= point.high <= point.y <= point.low <= bottom
    assert chart.points[0].x < chart.points[1].x <= report.WIDTH


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.4), (7, 8), (55.4, 80), (99, 100), (100, 100), (101, 200)]
)
def test_the_top_of_a_chart_is_round(value: float, top: float) -> None:
    chart = report.chart([(START, figure(value))])
    assert chart is not None
    assert float(chart.ticks[-1][1]) == top


def passed(kind: str, *results: Result) -> list[tuple[str, str]]:
    found = dict(report.box(results, {}).rates)
    return [(one.rate.words, one.measured) for one in found.get("a", ()) if kind in one.kind]


def test_pass_rates_are_of_the_newest_result_that_has_them() -> None:
    first = result(models={"a": model(coding=rate(9), tools=rate(8))})
    assert passed("coding", first, result(1, models={"a": model()})) == [("9/10", "2027-01-31")]
    newer = result(2, models={"a": model(coding=rate(7))})
    assert passed("coding", first, newer, result(3)) == [("7/10", "2027-02-02")]
    assert passed("tool", first, newer) == [("8/10", "2027-01-31")]
    cut = result(3, models={"a": model(coding=rate(3, 3).model_copy(update={"broken_off": True}))})
    assert passed("coding", newer, cut) == [("7/10", "2027-02-02")]
    assert passed("coding", cut) == [("3/3, broken off", "2027-02-03")]
    assert passed("coding", result()) == []


def test_clients_of_a_model_on_the_cpu_hide_no_others() -> None:
    row = ClientsRow(clients=8, kind="short", prompt_tokens=64, tokens=128, aggregate=9.0)
    first = result(models={"a": model(clients=[row])})
    cpu = model(clients=[row], device=Device(state="wrong", name="CPU"))
    assert report.box([first, result(1, models={"a": cpu})], {}).crowds == report.box([first], {}).crowds
    assert report.box([result(models={"a": cpu})], {}).crowds == ()


def test_a_claim_has_its_newest_figures() -> None:
    claims = {
        name: Claim.model_validate({"says": name, "unit": "tok/s", "sides": {"a": {"model": "a"}}})
        for name in ("one", "two", "three")
    }
    first = result(story={name: {"a": StoryRun(value=9)} for name in ("one", "two")})
    second = result(1, story={"one": {"a": StoryRun(value=8)}, "two": {"a": StoryRun(why="not reached")}})
    told = report.box([first, second], claims).story
    assert [(says, day, sides[0].measured) for says, day, sides in told] == [
        ("one", "2027-02-01", "8.0"),
        ("two", "2027-01-31", "9.0"),
        ("three", "", "not measured"),
    ]
    assert report.box([result()], claims).story == ()


def test_a_run_whose_device_nobody_knows_is_no_history() -> None:
    card = report.card("a", [result(models={"a": model(44)}), result(1, models={"a": model(9, device=None)})])
    assert card.newest is not None
    assert card.newest.median == 44


def test_no_run_no_chart() -> None:
    assert report.chart([]) is None


def test_a_run_on_the_cpu_is_no_history() -> None:
    slow = model(
        12.8, device=Device(state="wrong", name="CPU"), faults=["speed: it does not run on the accelerator"]
    )
    card = report.card("a", [result(models={"a": model(44)}), result(1, models={"a": slow})])
    assert card.newest is not None
    assert card.newest.median == 44
    assert card.chart is not None
    assert len(card.chart.points) == 1
    assert card.faults


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("bench", "report", "--results", tmp_path, "--out", tmp_path / "page" / "report.html")
    status, _, errors = gb10(capsys, *line)
    assert status == 1
    assert "no result is there" in errors
    save(result(models={"a": model()}), tmp_path)
    assert gb10(capsys, *line)[0] == 0
    assert "spark.local" in (tmp_path / "page" / "report.html").read_text()
