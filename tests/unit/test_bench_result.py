"""Result files, baselines, the comparison of two results, the terminal's tables."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gb10.bench import story, summary
from gb10.bench.compare import compare, table
from gb10.bench.measure import skipped
from gb10.bench.prompts import ClientLoad
from gb10.bench.result import (
    ClientsRow,
    Device,
    Figure,
    Image,
    LoadTime,
    ModelResult,
    Result,
    Speed,
    Verdict,
    load,
    load_all,
    save,
    save_baselines,
)
from gb10.bench.story import Row
from gb10.faults import BadInput
from gb10.printable import printable
from tests.unit.bench_runs import model, rate, result
from tests.unit.commands import gb10

Captured = pytest.CaptureFixture[str]


def text_of(*parts: Any) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_spread_is_the_farthest_run() -> None:
    assert Figure.of([50.0, 52.0, 47.0]) == Figure(median=50.0, spread=3.0, runs=[50.0, 52.0, 47.0])
    assert Figure.of([7.0]).spread == 0


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = result(models={"a": model(coding=rate(9))}, image=Image(tag="t", id="sha256:1"), host="a b/c")
    path = save(made, tmp_path / "results")
    assert path.name == "a-b-c-20270131T100000Z.json"
    assert load(path) == made
    assert json.loads(path.read_text())["version"] == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def in_another_shape() -> list[dict[str, Any]]:
    found = json.loads(result(models={"a": model()}).model_dump_json())
    changes: list[dict[str, Any]] = [
        {"started": "2027-02-01T10:00:00"},  # of which place?
        {"settings": {"parts": 5}},
        {"settings": {"named": 5}},
        {"plan": {"total_mib": None}},
        {"plan": {"models": [1]}},
        {"plan": {"models": {"a": float("nan")}}},
    ]
    for figure in ({"median": float("nan")}, {"median": float("inf")}, {"runs": []}, {"spread": -1}):
        broken = json.loads(json.dumps(found["models"]))
        broken["a"]["speed"]["generation"].update(figure)
        changes.append({"models": broken})
    return [{**found, **change} for change in changes]


@pytest.mark.parametrize("content", in_another_shape())
def test_a_result_that_was_edited_is_one_line(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="no bench result of version 1"):
        load(path)


def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(result(), tmp_path)
    before = path.read_text()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        save(result(driver="another"), tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "host": 3}', "\xff"]
)
def test_what_is_no_result_is_one_line(tmp_path: Path, content: str, capsys: Captured) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="latin-1")
    status, output, errors = gb10(capsys, "bench", "compare", path, path)
    assert (status, output) == (1, "")
    assert "no bench result of version 1" in errors
    assert gb10(capsys, "bench", "compare", tmp_path / "none.json", path)[0] == 1


def test_all_results_are_in_order_and_by_host(tmp_path: Path) -> None:
    for day, host in ((2, "a"), (0, "b"), (1, "a")):
        save(result(day, host), tmp_path)
    assert [each.host for each in load_all(tmp_path)] == ["b", "a", "a"]
    assert [each.started.day for each in load_all(tmp_path, "a")] == [1, 2]


# -- baselines ---------------------------------------------------------------------------------------


def test_baselines(tmp_path: Path) -> None:
    one = result(models={"a": model(50, 2), "b": model(30)}, image=Image(tag="image:1"), presets="f" * 64)
    path, taken = save_baselines(one, tmp_path)
    assert taken == ["a", "b"]
    later = result(3, models={"b": model(33)}, image=Image(tag="image:2"))
    save_baselines(later, tmp_path)
    content = json.loads(path.read_text())
    assert content["version"] == 1
    assert content["models"]["a"] == {
        "tokens_per_second": 50.0,
        "spread": 2.0,
        "image": "image:1",
        "presets": "f" * 64,
        "measured": "2027-01-31T10:00:00+00:00",
    }
    assert content["models"]["b"]["tokens_per_second"] == 33.0


def test_a_speed_of_the_cpu_is_never_a_baseline(tmp_path: Path) -> None:
    wrong = model(device=Device(state="wrong", name="CPU"))
    unknown = model(device=None)
    path, taken = save_baselines(result(models={"a": wrong, "b": unknown}), tmp_path)
    assert (taken, path.exists()) == ([], False)


def test_a_fall_beyond_the_spread_is_no_baseline_without_a_word(tmp_path: Path) -> None:
    path, _ = save_baselines(result(models={"a": model(55, 1), "b": model(30, 1)}), tmp_path)
    before = path.read_text()
    slow = result(1, models={"a": model(18, 1), "b": model(31, 1)})
    with pytest.raises(BadInput, match=r"a: makes 18\.0 tok/s ± 1\.0, and its baseline is 55\.0"):
        save_baselines(slow, tmp_path)
    assert path.read_text() == before, "all or nothing"
    save_baselines(result(2, models={"a": model(53.5, 1)}), tmp_path)  # within the spread
    assert json.loads(path.read_text())["models"]["a"]["tokens_per_second"] == 53.5
    save_baselines(slow, tmp_path, lower=True)
    assert json.loads(path.read_text())["models"]["a"]["tokens_per_second"] == 18.0
    assert json.loads(path.read_text())["models"]["b"]["tokens_per_second"] == 31.0


def test_an_outlier_hides_no_fall(tmp_path: Path) -> None:
    save_baselines(result(models={"a": model(55, 0.4)}), tmp_path)
    slow = model()
    assert slow.speed
    slow.speed.generation = Figure.of([18.0, 18.1, 17.9, 18.0, 60.0])
    with pytest.raises(BadInput, match=r"a: makes 18\.0 tok/s ± 0\.3, and its baseline is 55\.0"):
        save_baselines(result(1, models={"a": slow}), tmp_path)
    path, _ = save_baselines(result(1, models={"a": slow}), tmp_path, lower=True)
    assert json.loads(path.read_text())["models"]["a"]["spread"] == 0.3


@pytest.mark.parametrize(
    "entry",
    [
        "x",
        [],
        {},
        {"tokens_per_second": "x"},
        {"tokens_per_second": 1, "spread": []},
        {"tokens_per_second": float("nan")},
    ],
)
def test_an_entry_that_is_no_baseline_is_named(tmp_path: Path, entry: object) -> None:
    (tmp_path / "spark.local.json").write_text(json.dumps({"version": 1, "models": {"a": entry}}))
    with pytest.raises(BadInput, match="a: is no baseline"):
        save_baselines(result(models={"a": model()}), tmp_path)


def test_baselines_of_another_kind_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "spark.local.json").write_text('{"version": 9}')
    with pytest.raises(BadInput, match="no baselines of version 1"):
        save_baselines(result(models={"a": model()}), tmp_path)


# -- compare -----------------------------------------------------------------------------------------


def verdicts(first: Result, second: Result) -> dict[str, str]:
    return {change.what: change.verdict for change in compare(first, second)}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((50, 1), (50, 1), "within the spread"),
        ((50, 1), (48.1, 1), "within the spread"),
        ((50, 1), (47.9, 1), "lost"),
        ((50, 0), (49.9, 0), "lost"),
        ((50, 1), (52.1, 1), "won"),
        ((44, 0.5), (12.8, 0.5), "lost"),
    ],
)
def test_a_loss_is_more_than_both_spreads(
    before: tuple[float, float], after: tuple[float, float], verdict: str
) -> None:
    found = verdicts(result(models={"a": model(*before)}), result(1, models={"a": model(*after)}))
    assert found["generation, tok/s"] == verdict


def one_figure(*runs: float) -> ModelResult:
    figure = Figure.of(runs)
    return model(speed=Speed(prompt=figure, generation=figure, prompt_tokens=512, tokens=128))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([55] * 5, [20, 20, 20, 20, 55], "lost"),
        ([55, 55, 55, 55, 20], [20] * 5, "lost"),
        ([20, 20, 20, 20, 55], [55] * 5, "won"),
        ([55, 54.8, 55.1, 55.2, 20], [55, 54.9, 55.1, 20, 55.2], "within the spread"),
        ([50, 52, 48, 51, 49], [48, 50, 46, 49, 47], "within the spread"),
        ([50, 50.1, 49.9], [20, 20, 50], "lost"),
        # One run has no spread, which is not one of zero.
        ([50], [45], "within the spread"),
        ([50], [30], "lost"),
    ],
)
def test_an_outlier_does_not_stretch_the_spread(
    before: list[float], after: list[float], verdict: str
) -> None:
    first, second = result(models={"a": one_figure(*before)}), result(1, models={"a": one_figure(*after)})
    assert verdicts(first, second)["generation, tok/s"] == verdict


def many(aggregate: float | None, failures: int = 0, **more: Any) -> ClientsRow:
    usual = {"clients": 8, "kind": "long", "prompt_tokens": 1, "tokens": 1}
    return ClientsRow(**usual | more, aggregate=aggregate, failures=failures)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (many(300), many(30), "lost"),
        (many(300), many(270), "within one run's slack"),
        (many(30), many(300), "won"),
        (many(300), many(300, 1), "lost"),
        (many(300), many(None, skipped="too long"), "lost"),
        (many(300), many(None), "lost"),
        (many(300), None, "lost"),
        (many(None, 8), many(None, 8), "failed in both"),
        (many(None, 8), many(300), "won"),
        (None, many(300), "not in the first"),
        (many(None, skipped="too long"), many(300), "not in the first"),
    ],
)
def test_clients_at_once(before: ClientsRow | None, after: ClientsRow | None, verdict: str) -> None:
    rows = [[row] if row else [] for row in (before, after)]
    found = verdicts(
        result(models={"a": model(clients=rows[0], slots={"split": rows[0]})}),
        result(1, models={"a": model(clients=rows[1], slots={"split": rows[1]})}),
    )
    assert found["8 clients, long, tok/s"] == verdict
    assert found["8 clients, long, split, tok/s"] == verdict


def test_tasks_and_device() -> None:
    first = model(coding=rate(10), tools=rate(10))
    second = model(coding=rate(9), tools=rate(8), device=Device(state="wrong", name="CPU"))
    found = verdicts(result(models={"a": first}), result(1, models={"a": second}))
    assert found["coding tasks"] == "within one task"
    assert found["tools tasks"] == "lost"
    assert found["device"] == "lost"
    unknown = model(device=None)
    assert verdicts(result(models={"a": first}), result(1, models={"a": unknown}))["device"] == "lost"


def test_what_is_missing_is_lost() -> None:
    load = LoadTime(seconds=3)
    all_of_it = model(coding=rate(10), tools=rate(3), clients=[many(9)], load=load)
    first = result(models={"a": model(), "gone": model(), "mute": all_of_it})
    cut = rate(2, 2).model_copy(update={"broken_off": True})
    second = result(1, models={"a": model(), "new": model(), "mute": ModelResult(coding=cut)})
    found = {(change.model, change.what): change.verdict for change in compare(first, second)}
    assert found["gone", "all"] == "lost"
    assert found["new", "all"] == "not in the first"
    figures = ("generation, tok/s", "coding tasks", "tools tasks", "8 clients, long, tok/s", "load, s")
    assert {found["mute", what] for what in figures} == {"lost"}


def test_what_the_second_was_not_asked_for_is_not_lost() -> None:
    first = result(models={"a": model(coding=rate(10), clients=[many(9)]), "b": model()})
    second = result(1, models={"a": model()}, settings={"parts": ["speed"], "named": ["a"]})
    found = {(change.model, change.what): change.verdict for change in compare(first, second)}
    not_asked = {("b", "all"), ("a", "coding tasks"), ("a", "8 clients, long, tok/s")}
    assert {found[what] for what in not_asked} == {"not asked of the second"}
    assert found["a", "generation, tok/s"] == "within the spread"
    # It was asked for b too, and b did not come.
    second.settings.named = ["a", "b"]
    assert {change.model for change in compare(first, second) if change.lost} == {"b"}


def test_tasks_are_compared_that_both_have() -> None:
    first, second = (result(models={"a": model(coding=rate(passed, of))}) for passed, of in ((3, 3), (0, 5)))
    assert verdicts(first, second)["coding tasks"] == "lost"
    assert "0/5, 3 in both" in text_of(table(first, second, compare(first, second)))


def test_other_tasks_are_not_compared() -> None:
    first, second = result(models={"a": model(coding=rate(3))}), result(models={"a": model(coding=rate(3))})
    assert second.models["a"].coding
    second.models["a"].coding.tasks = {"another": Verdict(passed=False)}
    assert verdicts(first, second)["coding tasks"] == "other tasks: not compared"


def test_off_the_accelerator_in_both_is_not_lost_now() -> None:
    cpu = model(device=Device(state="wrong", name="CPU"))
    first, second = result(models={"a": model()}), result(models={"a": cpu})
    assert verdicts(first, second)["device"] == "lost"
    assert verdicts(second, second)["device"] == "not on the accelerator in both"


def test_a_prompt_that_no_longer_fits_is_a_loss() -> None:
    shorter = model()
    assert shorter.speed
    shorter.speed.prompt_tokens = 256
    first, second = result(models={"a": model()}), result(1, models={"a": shorter})
    assert verdicts(first, second)["prompt that fits"] == "lost"
    assert verdicts(second, first)["prompt that fits"].startswith("longer")


QUICK = {"runs": 3, "clients": [1, 4]}


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({}, {"interrupted": True}, "the second result: did not come to its end"),
        ({"interrupted": True}, {}, "the first result: did not come to its end"),
        ({}, {"settings": QUICK}, r"measured differently: runs None and 3, clients None and \[1, 4\]"),
        ({}, {"models": {}}, "the second result: has no model's figures"),
        (
            {"models": {"b": model()}, "settings": {"named": ["b"]}},
            {"settings": {"named": ["a"]}},
            "have no figure in common",
        ),
    ],
)
def test_results_that_say_nothing_about_each_other(
    first: dict[str, Any], second: dict[str, Any], what: str
) -> None:
    usual = {"models": {"a": model()}}
    with pytest.raises(BadInput, match=what):
        compare(result(**usual | first), result(1, **usual | second))


def test_compare_command(tmp_path: Path, capsys: Captured) -> None:
    one = save(result(models={"a": model(55.4, 0.4)}), tmp_path)
    other = save(result(1, models={"a": model(15.5, 0.2)}), tmp_path)
    assert gb10(capsys, "bench", "compare", one, one)[0] == 0
    assert gb10(capsys, "bench", "compare", other, one)[0] == 0
    status, output, errors = gb10(capsys, "bench", "compare", one, other)
    assert (status, errors) == (2, "")
    assert "-72.0 %" in output
    assert "lost" in output
    broken_off = save(result(2, models={"a": model(55.4, 0.4)}, interrupted=True), tmp_path)
    status, output, errors = gb10(capsys, "bench", "compare", one, broken_off)
    assert (status, output) == (1, "")
    assert "did not come to its end" in errors


# -- tables ------------------------------------------------------------------------------------------


def test_a_summary_with_and_without_figures() -> None:
    many = [
        ClientsRow(clients=4, kind="short", prompt_tokens=64, tokens=8, aggregate=99.5, total=800.0,
                   first_token=Figure.of([0.1, 0.3])),
        *(skipped(ClientLoad(count, "long", 20000, 8), "too long") for count in (1, 4)),
    ]  # fmt: skip
    shown = result(models={"a": model(coding=rate(7), clients=many), "b": model(speed=None, device=None)})
    output = text_of(summary.table(shown), *summary.clients_view(shown))
    assert "50.0 ± 1.0" in output
    assert "7/10" in output
    assert "99.5" in output
    assert "skipped 1 x 20000, 4 x 20000 of a (as set): too long" in output
    assert list(summary.clients_view(result())) == []


def test_a_summary_says_what_is_less_than_it_looks() -> None:
    cut = rate(3, 3).model_copy(update={"broken_off": True})
    shown = result(models={"a": one_figure(50.0).model_copy(update={"coding": cut})}, interrupted=True)
    output = text_of(summary.table(shown))
    assert "50.0 (1 run)" in output
    assert "3/3, broken off" in output
    assert "UTC, broken off" in output


HOSTILE = "[/red][bold]a\x1b[2J\nb"


def test_brackets_in_names_are_no_markup() -> None:
    rows = [many(99.5), skipped(ClientLoad(1, "long", 20000, 8), "[/too] long")]
    found = model(clients=rows, device=Device(state="answered", name="[/x]CUDA0"))
    one, other = (result(day, models={HOSTILE: found}, host="[/box]") for day in (0, 1))
    told = [Row(HOSTILE, "[/side]", "tok/s", "-", "not measured", "[/why]")]
    output = text_of(
        summary.table(one), *summary.clients_view(one), table(one, other, compare(one, other)),
        story.table(told),
    )  # fmt: skip
    assert "\x1b" not in output
    assert output.count(printable(HOSTILE)) == 4
    assert output.count("[/red][bold]a [2J b") == 1
    for text in ("[/box]", "[/x]CUDA0", "[/too] long", "[/side]", "[/why]"):
        assert text in output


def test_a_comparison_table_names_both() -> None:
    one, other = result(models={"a": model()}), result(1, models={"a": model()})
    output = text_of(table(one, other, compare(one, other)))
    assert "spark.local 2027-01-31 10:00 against spark.local 2027-02-01 10:00" in output
