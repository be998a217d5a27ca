"""The story's claims: what is run once for several, what is not, and how it is told."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gb10.bench.on_box import FOLDER
from gb10.bench.result import Device, StoryRun
from gb10.bench.run import Ended
from gb10.bench.story import NOT_MEASURED, Claim, load_claims, rows, run_story, table
from gb10.faults import BadInput
from gb10.preset_options import load_preset_options
from gb10.slots import Slots
from tests.unit.bench_runs import Held, Models, bench, result
from tests.unit.boxes import box
from tests.unit.router_server import Router, running

CLAIMS = load_claims(FOLDER / "story.yaml")
TOLD = {
    "speed": Claim.model_validate(
        {
            "says": "a beats b",
            "unit": "tok/s",
            "sides": {"a": {"model": "a", "story": 78}, "b": {"model": "b"}},
        }
    ),
    "memory": Claim.model_validate(
        {
            "says": "more slots, more memory",
            "unit": "MiB",
            "difference": 253,
            "sides": {
                "4": {"model": "a", "keys": {"parallel": "4"}},
                "8": {"model": "a", "keys": {"parallel": "8"}},
            },
        }
    ),
    "clients": Claim.model_validate(
        {
            "says": "more slots, more speed",
            "unit": "aggregate tok/s",
            "sides": {"8": {"model": "a", "keys": {"parallel": "8"}}},
        }
    ),
}


@pytest.fixture
def server() -> Iterator[Router]:
    with running() as router:
        router.models = Models(router, "a", "b")  # type: ignore[attr-defined]
        yield router


def test_the_claims_are_of_the_catalogue_and_of_llama_cpp() -> None:
    names = {model.name for model in box().catalogue.models}
    options = load_preset_options()
    for claim in CLAIMS.values():
        for side in claim.sides.values():
            assert side.model in names
            assert all(options.find(key) for key in side.keys)
    pairs = {side.model for claim in CLAIMS.values() for side in claim.sides.values()}
    assert {"gemma-4-26B-A4B", "gemma-4-31B", "Qwen3.6-35B-A3B", "Qwen3.6-35B-A3B-NVFP4"} <= pairs


def test_each_setting_is_run_once(server: Router) -> None:
    made, into = bench(server), result()
    run_story(made, TOLD, ["a"], {"b": "off: made at home"}, into)
    assert made.show.parts == [("a", "as it is"), ("a", "parallel=4"), ("a", "parallel=8")]  # type: ignore[attr-defined]
    held = made.presets
    assert isinstance(held, Held)
    assert held.asked == [{"parallel": "4"}, {"parallel": "8"}]
    assert into.story["speed"]["a"] == StoryRun(value=50.0)
    assert into.story["speed"]["b"] == StoryRun(why="off: made at home")
    assert into.story["memory"]["8"].value == 1000
    assert into.story["clients"]["8"].value


def test_a_figure_of_the_cpu_is_none(server: Router) -> None:
    made, into = bench(server, device=lambda model: Device(state="wrong")), result()
    run_story(made, TOLD, ["a", "b"], {}, into)
    run = into.story["speed"]["a"]
    assert run.value is None
    assert "accelerator" in run.why


def test_a_model_that_does_not_load_is_one_side(server: Router) -> None:
    models = server.models  # type: ignore[attr-defined]
    models.broken.add("b")
    made, into = bench(server, free_mib=lambda: 9000 - 1000 * len(models.loaded)), result()
    run_story(made, TOLD, ["a", "b"], {}, into)
    assert "does not load" in into.story["speed"]["b"].why
    assert into.story["speed"]["a"].value == 50.0
    (fault,) = made.faults
    assert fault.startswith("b: b does not load")


def test_what_was_tried_and_failed_is_a_fault(server: Router) -> None:
    made, into = bench(server, free_mib=lambda: None), result()
    server.answers["POST /completion"] = (500, {"error": {"message": "full"}})
    run_story(made, {name: TOLD[name] for name in ("memory", "clients")}, ["a"], {}, into)
    assert [fault[:12] for fault in made.faults] == ["a: its memor", "a: its memor", "a: 8 of 8 re"]
    assert "8 of 8 requests failed: POST /completion answered 500: full" in into.story["clients"]["8"].why
    assert "memory is not known" in into.story["memory"]["4"].why
    # A side that was not tried is none.
    made, into = bench(server, slots=lambda _: (Slots(256, 4, unified=True), 0)), result()
    run_story(made, {"clients": TOLD["clients"]}, ["a"], {}, into)
    assert made.faults == []
    assert "cells" in into.story["clients"]["8"].why


def test_memory_on_the_cpu_is_none(server: Router) -> None:
    made, into = bench(server, device=lambda model: Device(state="wrong")), result()
    run_story(made, {"memory": TOLD["memory"]}, ["a"], {}, into)
    assert {run.value for run in into.story["memory"].values()} == {None}


def test_a_router_that_is_gone_ends_it_and_keeps_what_was_run(server: Router) -> None:
    made, into = bench(server), result()

    def gone(model: str) -> Device:
        server.answers["GET /models"] = (502, b"")
        return Device(state="answered")

    made.device = gone
    with pytest.raises(Ended):
        run_story(made, TOLD, ["a"], {}, into)
    assert into.story["speed"]["a"].value == 50.0
    assert into.story["memory"]["4"].value is None


def test_the_storys_figures_stand_beside_ours() -> None:
    runs = {
        "speed": {"a": StoryRun(value=77.4, spread=0.6), "b": StoryRun(why="off")},
        "memory": {"4": StoryRun(value=1000), "8": StoryRun(value=1250)},
    }
    told = [(row.side, row.story, row.measured) for row in rows(TOLD, runs)]
    assert told == [
        ("a", "78", "77.4 ± 0.6"),
        ("b", "-", NOT_MEASURED),
        ("4", "-", "1000.0"),
        ("8", "-", "1250.0"),
        ("difference", "+253", "+250.0"),
        ("8", "-", NOT_MEASURED),
    ]


def test_without_a_run_nothing_is_measured() -> None:
    found = rows(CLAIMS, {})
    assert len(found) > 15
    assert {row.measured for row in found} == {NOT_MEASURED}
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table(found))
    text = console.export_text()
    assert text.count(NOT_MEASURED) == len(found)
    assert "55.4" in text


@pytest.mark.parametrize(
    "content", ["[]", "a: 1", "a: {says: x, unit: miles, sides: {}}", "{", "a: {says: x}"]
)
def test_claims_in_another_shape(tmp_path: Path, content: str) -> None:
    path = tmp_path / "story.yaml"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"story\.yaml"):
        load_claims(path)
