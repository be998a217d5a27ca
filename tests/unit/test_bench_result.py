"""Result files, baselines, the comparison of two results, the terminal's tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gb10.bench import summary
from gb10.bench.compare import compare, table
from gb10.bench.measure import skipped
from gb10.bench.prompts import ClientLoad
from gb10.bench.result import ClientsRow, Device, Figure, Image, Result, load, load_all, save, save_baselines
from gb10.faults import BadInput
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


@pytest.mark.parametrize(
    "entry", ["x", [], {}, {"tokens_per_second": "x"}, {"tokens_per_second": 1, "spread": []}]
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


def test_tasks_device_and_failures() -> None:
    row = ClientsRow(clients=8, kind="long", prompt_tokens=1, tokens=1, seconds=1, aggregate=5)
    first = model(coding=rate(10), tools=rate(10), clients=[row])
    second = model(
        coding=rate(9),
        tools=rate(8),
        clients=[row.model_copy(update={"failures": 8})],
        device=Device(state="wrong", name="CPU"),
    )
    found = verdicts(result(models={"a": first}), result(1, models={"a": second}))
    assert found["coding tasks"] == "within one task"
    assert found["tools tasks"] == "lost"
    assert found["8 clients, long, tok/s"] == "lost"
    assert found["device"] == "lost"


def test_what_only_one_of_them_has() -> None:
    first = result(models={"a": model(), "gone": model(), "mute": model(coding=rate(3))})
    second = result(1, models={"a": model(), "new": model(), "mute": model(speed=None, coding=rate(3, 5))})
    found = {(change.model, change.what): change.verdict for change in compare(first, second)}
    assert found["gone", "all"] == "not in the second"
    assert found["new", "all"] == "not in the first"
    assert found["mute", "generation, tok/s"] == "lost"
    assert found["mute", "coding tasks"] == "other tasks: not compared"


def test_compare_command(tmp_path: Path, capsys: Captured) -> None:
    one = save(result(models={"a": model(55.4, 0.4)}), tmp_path)
    other = save(result(1, models={"a": model(15.5, 0.2)}), tmp_path)
    assert gb10(capsys, "bench", "compare", one, one)[0] == 0
    assert gb10(capsys, "bench", "compare", other, one)[0] == 0
    status, output, errors = gb10(capsys, "bench", "compare", one, other)
    assert (status, errors) == (2, "")
    assert "-72.0 %" in output
    assert "lost" in output


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


def test_a_comparison_table_names_both() -> None:
    one, other = result(models={"a": model()}), result(1, models={"a": model()})
    output = text_of(table(one, other, compare(one, other)))
    assert "spark.local 2027-01-31 10:00 against spark.local 2027-02-01 10:00" in output
