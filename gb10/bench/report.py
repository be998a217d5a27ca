"""The report: one HTML page that needs nothing else, made from all results. No script in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gb10.bench.result import ClientsRow, Figure, Rate, Result
from gb10.bench.story import NOT_MEASURED, Claim, Row, rows
from gb10.rendering import TOP

# Of a chart's drawing, in its own units: as wide as on a small phone, so that no text in it gets smaller.
WIDTH, HEIGHT = 260, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 8, 10, 20


@dataclass(frozen=True)
class Point:
    """One run of a model in its chart: place, its spread from ``low`` to ``high`` (y, downwards), and
    words."""

    x: float
    y: float
    low: float
    high: float
    words: str


@dataclass(frozen=True)
class Chart:
    """The history of one model's tok/s. ``ticks`` are (y, text); ``first`` and ``last`` dates."""

    points: tuple[Point, ...]
    ticks: tuple[tuple[float, str], ...]
    first: str
    last: str

    @property
    def line(self) -> str:
        """The points of the line, as SVG has them."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True)
class Card:
    """One model of one box: newest figures, history, and what is wrong."""

    name: str
    newest: Figure | None
    measured: str
    chart: Chart | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """One model in the memory plan; ``share`` of what models may take, in percent, None while unknown."""

    name: str
    mib: int | None
    share: float | None


@dataclass(frozen=True)
class Passed:
    """How many tasks of one kind passed, and on which day."""

    kind: str
    rate: Rate
    measured: str


@dataclass(frozen=True)
class Box:
    """One box in the report: its newest result and the history of its models. ``crowds``: of each model the
    newest figures with several clients, for each way of its slots. ``rates``: of each model the newest pass
    rates."""

    host: str
    newest: Result
    runs: int
    cards: tuple[Card, ...]
    bars: tuple[Bar, ...]
    models_mib: int
    crowds: tuple[tuple[str, tuple[tuple[str, tuple[ClientsRow, ...]], ...]], ...]
    rates: tuple[tuple[str, tuple[Passed, ...]], ...]
    story: tuple[tuple[str, str, tuple[Row, ...]], ...]


def page(results: Sequence[Result], claims: Mapping[str, Claim]) -> str:
    """The whole page, from at least one result, the oldest first."""
    environment = Environment(
        loader=FileSystemLoader(TOP / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    boxes = [
        box([one for one in results if one.host == host], claims)
        for host in dict.fromkeys(result.host for result in results)
    ]
    template = environment.get_template("bench-report.html.j2")
    return template.render(boxes=boxes, width=WIDTH, height=HEIGHT, left=_LEFT, not_measured=NOT_MEASURED)


def box(results: Sequence[Result], claims: Mapping[str, Claim]) -> Box:
    """What is shown of one box, from its results, the oldest first."""
    newest = results[-1]
    names = dict.fromkeys(name for result in reversed(results) for name in result.models)
    plan = next((result for result in reversed(results) if result.plan.models), newest).plan
    models_mib = max(int(plan.total_mib - plan.reserve_mib), 0)
    return Box(
        host=newest.host,
        newest=newest,
        runs=len(results),
        cards=tuple(card(name, results) for name in names),
        bars=tuple(_bars(plan.models, models_mib)),
        models_mib=models_mib,
        crowds=tuple(_crowds(names, results)),
        rates=tuple(_rates(names, results)),
        story=tuple(_told(claims, results)),
    )


def card(name: str, results: Sequence[Result]) -> Card:
    """The history of one model. Runs that were not on the accelerator are no history: they are faults."""
    history = []
    for result in results:
        found = result.models.get(name)
        if found and found.speed and found.on_accelerator:
            history.append((result, found.speed.generation))
    last = next((result for result in reversed(results) if name in result.models), results[-1])
    newest = history[-1] if history else None
    return Card(
        name=name,
        newest=newest[1] if newest else None,
        measured=_day(newest[0].started) if newest else "",
        chart=chart([(result.started, figure) for result, figure in history]),
        faults=tuple(last.models[name].faults) if name in last.models else (),
    )


def chart(history: Sequence[tuple[datetime, Figure]]) -> Chart | None:
    """A chart from zero, one place for each run; None without a run."""
    if not history:
        return None
    top = _round_up(max(figure.highest for _, figure in history))
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def y(value: float) -> float:
        return round(_TOP + height * (1 - min(max(value / top, 0), 1)), 1)

    step = width / max(len(history) - 1, 1)
    points = tuple(
        Point(
            round(_LEFT + step * number if len(history) > 1 else _LEFT + width / 2, 1),
            y(figure.median),
            y(figure.lowest),
            y(figure.highest),
            f"{started:%Y-%m-%d %H:%M}: {figure.words} tok/s",
        )
        for number, (started, figure) in enumerate(history)
    )
    ticks = tuple((y(value), f"{value:g}") for value in (0, top / 2, top))
    return Chart(points, ticks, _day(history[0][0]), _day(history[-1][0]))


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value))


def _rates(names: Iterable[str], results: Sequence[Result]) -> Iterator[tuple[str, tuple[Passed, ...]]]:
    """Of each model the newest rate of each kind; one that was broken off only where there is no other."""
    for name in names:
        kinds = []
        for kind, words in (("coding", "coding tasks, their tests run"), ("tools", "tool scenarios")):
            every = [
                Passed(words, rate, _day(result.started))
                for result in reversed(results)
                if name in result.models and (rate := getattr(result.models[name], kind))
            ]
            whole = [one for one in every if not one.rate.broken_off]
            kinds += (whole or every)[:1]
        if kinds:
            yield name, tuple(kinds)


def _told(
    claims: Mapping[str, Claim], results: Sequence[Result]
) -> Iterator[tuple[str, str, tuple[Row, ...]]]:
    """Every claim with the day of its newest figures, once the story was told at all."""
    if not any(result.story for result in results):
        return
    for name, claim in claims.items():
        runs = [(result.started, result.story[name]) for result in reversed(results) if name in result.story]
        with_figure = [one for one in runs if any(run.value is not None for run in one[1].values())]
        found = (with_figure or runs)[:1]
        sides = rows({name: claim}, {name: found[0][1]} if found else {})
        yield claim.says, _day(found[0][0]) if found else "", tuple(sides)


def _crowds(
    names: Iterable[str], results: Sequence[Result]
) -> Iterator[tuple[str, tuple[tuple[str, tuple[ClientsRow, ...]], ...]]]:
    for name in names:
        every = [result.models[name] for result in reversed(results) if name in result.models]
        found = next((one for one in every if (one.clients or one.slots) and one.on_accelerator), None)
        if found is not None:
            ways = [("as set", found.clients), *found.slots.items()]
            yield name, tuple((way, tuple(rows)) for way, rows in ways if rows)


def _bars(models: Mapping[str, float | None], models_mib: int) -> list[Bar]:
    found = []
    for name, figure in sorted(models.items(), key=lambda entry: -(entry[1] or 0)):
        known = figure is not None and models_mib > 0
        share = round(min(100 * (figure or 0) / models_mib, 100), 1) if known else None
        found.append(Bar(name, None if figure is None else round(figure), share))
    return found


def _day(time: datetime) -> str:
    return f"{time:%Y-%m-%d}"
