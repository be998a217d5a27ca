"""The story's claims, measured again: its figures beside ours, and "not measured" where nothing was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pyinfra.api.exceptions import PyinfraError
from rich.table import Table

from gb10.bench import measure
from gb10.bench.prompts import SHORT_TOKENS, ClientLoad, refuse
from gb10.bench.result import Result, StoryRun
from gb10.bench.router import RouterFault
from gb10.bench.run import Bench, Ended, one_client, other_presets
from gb10.bench.summary import FRAME, cell
from gb10.faults import BadInput, Fault

NOT_MEASURED = "not measured"
CLIENTS_AT_ONCE = 8


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Part):
    """One side of a claim: ``keys`` differ from the box's own preset, ``story`` is its figure, if it has
    one."""

    model: str
    keys: dict[str, str] = {}
    story: float | None = None


class Claim(_Part):
    """``difference``: the story's figure for the last side less the first, where it gives only that."""

    says: str
    unit: Literal["tok/s", "aggregate tok/s", "MiB"]
    sides: dict[str, Side]
    difference: float | None = None


def load_claims(path: Path) -> dict[str, Claim]:
    """The claims of a file by name. Raises `BadInput`."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {name: Claim.model_validate(claim) for name, claim in content.items()}
    except ValidationError as error:
        first = error.errors()[0]
        fault = Fault(f"{path} {'.'.join(map(str, first['loc']))}", first["msg"], "correct the file")
    except (OSError, yaml.YAMLError, AttributeError) as error:
        fault = Fault(str(path), " ".join(str(error).split()), "name a file of claims")
    raise BadInput([fault])


@dataclass(frozen=True)
class Setting:
    """A model as one side wants it; sides that want the same share the run."""

    model: str
    keys: tuple[tuple[str, str], ...]


def setting_of(side: Side) -> Setting:
    """The setting that a side needs."""
    return Setting(side.model, tuple(sorted(side.keys.items())))


def run_story(
    bench: Bench, claims: Mapping[str, Claim], served: Sequence[str], off: Mapping[str, str], result: Result
) -> None:
    """Measure every side whose model is ``served``, into ``result.story``. ``off`` has the reasons of those
    that are not. What was tried and failed is in the bench's faults. Raises `Ended`."""
    wanted: dict[Setting, set[str]] = {}
    for name, claim in claims.items():
        result.story[name] = {}
        for label, side in claim.sides.items():
            if side.model in served:
                wanted.setdefault(setting_of(side), set()).add(claim.unit)
            why = "" if side.model in served else off.get(side.model, "the model is not on the box")
            result.story[name][label] = StoryRun(why=why or "not reached")
    for setting, units in wanted.items():
        keys = " ".join(f"{key}={value}" for key, value in setting.keys)
        bench.show.part(setting.model, keys or "as it is")
        try:
            figures = _figures(bench, setting, units)
        except PyinfraError as error:
            run = _failed(bench, f"{setting.model} {keys}".rstrip(), str(error))
            figures = dict.fromkeys(units, run)
            try:
                bench.router.states()
            except RouterFault as gone:
                raise Ended(f"the router no longer answers: {gone}") from None
        for name, claim in claims.items():
            for label, side in claim.sides.items():
                if setting_of(side) == setting and claim.unit in figures:
                    result.story[name][label] = figures[claim.unit]


def _figures(bench: Bench, setting: Setting, units: set[str]) -> dict[str, StoryRun]:
    if not setting.keys:
        return _measured(bench, setting.model, units)
    with other_presets(bench, setting.model, dict(setting.keys)):
        return _measured(bench, setting.model, units)


def _measured(bench: Bench, model: str, units: set[str]) -> dict[str, StoryRun]:
    found = {}
    bench.show.step("load")
    load = measure.load_time(bench.router, model, bench.free_mib, bench.cut)
    if "MiB" in units:
        memory = load.memory_mib
        found["MiB"] = (
            _failed(bench, model, "its memory is not known: the box is silent, or another model came")
            if memory is None
            else _on_accelerator(bench, model, StoryRun(value=memory))
        )
    # Inside a held preset this reads the held one.
    slots, trained = bench.slots(model)
    if "tok/s" in units:
        speed = one_client(bench, model, slots, trained).generation
        found["tok/s"] = _on_accelerator(bench, model, StoryRun(value=speed.median, spread=speed.spread))
    if "aggregate tok/s" in units:
        ask = ClientLoad(CLIENTS_AT_ONCE, "short", SHORT_TOKENS, bench.options.answer)
        why = refuse(ask, slots, trained)
        bench.show.step(f"{ask.clients} clients")
        row = None if why else measure.clients(bench.router, model, bench.prompts(model), ask)
        if row is None:
            found["aggregate tok/s"] = StoryRun(why=why or "")
        elif row.failures:
            failed = f"{row.failures} of {row.clients} requests failed: {'; '.join(row.reasons)}"
            found["aggregate tok/s"] = _failed(bench, model, failed)
        else:
            found["aggregate tok/s"] = _on_accelerator(bench, model, StoryRun(value=row.aggregate))
    return found


def _on_accelerator(bench: Bench, model: str, run: StoryRun) -> StoryRun:
    # A figure from the CPU is none of the box's.
    state = bench.device(model).state
    if state == "answered":
        return run
    return _failed(bench, model, f"the model does not run on the accelerator ({state})")


def _failed(bench: Bench, what: str, why: str) -> StoryRun:
    """A run that was tried and gave no figure: a fault of the bench, unlike a side that was not tried."""
    bench.faults.append(f"{what}: {why}")
    bench.show.line(bench.faults[-1])
    return StoryRun(why=why)


@dataclass(frozen=True)
class Row:
    """One side for people: the story's figure, ours, and why there is none."""

    claim: str
    side: str
    unit: str
    story: str
    measured: str
    why: str = ""


def rows(claims: Mapping[str, Claim], runs: Mapping[str, Mapping[str, StoryRun]]) -> list[Row]:
    """Every side of every claim, also those that nobody has run."""
    found = []
    for name, claim in claims.items():
        ours = runs.get(name, {})
        for label, side in claim.sides.items():
            run = ours.get(label, StoryRun(why="no run"))
            measured = NOT_MEASURED
            if run.value is not None:
                measured = f"{run.value:.1f}" + (f" ± {run.spread:.1f}" if run.spread else "")
            story = "-" if side.story is None else f"{side.story:g}"
            found.append(Row(claim.says, label, claim.unit, story, measured, run.why))
        if claim.difference is not None:
            values = [ours[label].value for label in claim.sides if label in ours]
            both = len(values) == len(claim.sides) and None not in values
            first, last = (values[0], values[-1]) if both else (None, None)
            text = NOT_MEASURED if first is None or last is None else f"{last - first:+.1f}"
            found.append(Row(claim.says, "difference", claim.unit, f"{claim.difference:+g}", text))
    return found


def table(found: Sequence[Row]) -> Table:
    """The claims for a terminal."""
    made = Table("claim", "side", "unit", title="The story, measured again", **FRAME)
    made.add_column("story", justify="right")
    made.add_column("measured", justify="right")
    made.add_column("why not")
    before = ""
    for row in found:
        claim = row.claim if row.claim != before else ""
        made.add_row(*map(cell, (claim, row.side, row.unit, row.story, row.measured, row.why)))
        before = row.claim
    return made
