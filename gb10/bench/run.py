"""One bench: every part of every model, what was measured kept at any time, the box as it was afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pyinfra.api.exceptions import PyinfraError

from gb10.bench import ctrl_c, measure
from gb10.bench.coding import CodingTask, attempt
from gb10.bench.prompts import CLIENTS, LONG_TOKENS, PromptSource, client_loads, refuse
from gb10.bench.residents import alone
from gb10.bench.result import ClientsRow, Device, ModelResult, Rate, Result, Speed, Verdict
from gb10.bench.router import RESIDENT, Router, RouterFault
from gb10.bench.sandbox import Job
from gb10.bench.tools import Scenario, play
from gb10.bench.variants import Held
from gb10.slots import Slots

PARTS = ("load", "speed", "clients", "slots", "coding", "tools")
USUAL = ("load", "speed", "clients", "coding", "tools")
Task = TypeVar("Task", CodingTask, Scenario)


@dataclass(frozen=True)
class Options:
    """How much is measured. Lengths in tokens; ``tasks`` is how many of each kind, ``answer_limit`` how
    long an answer to one may get, None for the usual lengths."""

    parts: tuple[str, ...] = USUAL
    runs: int = 5
    prompt: int = 512
    answer: int = 128
    long: int = LONG_TOKENS
    clients: tuple[int, ...] = CLIENTS
    tasks: int | None = None
    answer_limit: int | None = None


QUICK = Options(runs=3, prompt=256, answer=32, clients=(1, 4), tasks=3, answer_limit=1024)


class Show(Protocol):
    """Where progress goes."""

    def part(self, model: str, part: str) -> None:
        """``part`` of ``model`` begins."""

    def step(self, text: str) -> None:
        """What is done in it now."""

    def line(self, text: str) -> None:
        """A line that stays."""


class HeldPresets(Protocol):
    """Other settings for a while: see `gb10.bench.variants.Presets`."""

    def text(self) -> str:
        """The preset file as it is now."""

    def held(self, model: str, keys: Mapping[str, str | None]) -> AbstractContextManager[Slots]:
        """Let ``model`` have these keys in a with block."""


class Ended(PyinfraError):
    """The router is gone: the bench cannot go on. What was measured before is kept."""


@dataclass
class Bench:
    """What the measurements need of a box.

    ``slots`` gives a model's slots and its longest trained context in tokens (0: not known), ``free_mib`` the
    box's MemAvailable, ``judge`` runs an answer in the sandbox, ``device`` says where a loaded model runs.
    ``cut``: models that may be unloaded while they answer somebody. ``faults``: what failed and is in no
    model's result, one line each.
    """

    router: Router
    presets: HeldPresets
    slots: Callable[[str], tuple[Slots, int]]
    free_mib: Callable[[], int | None]
    judge: Callable[[Job], Verdict]
    device: Callable[[str], Device]
    show: Show
    options: Options
    coding: Sequence[CodingTask] = ()
    scenarios: Sequence[Scenario] = ()
    cut: Collection[str] = ()
    faults: list[str] = field(default_factory=list)
    _prompts: dict[str, PromptSource] = field(default_factory=dict)

    def prompts(self, model: str) -> PromptSource:
        """Where the prompts of ``model`` come from."""
        if model not in self._prompts:
            self._prompts[model] = PromptSource(lambda text: self.router.tokenize(model, text))
        return self._prompts[model]


def bench_model(bench: Bench, model: str, result: Result) -> None:
    """Measure one model into ``result``. Faults of the model are lines in it. Raises `Ended`."""
    found = result.models.setdefault(model, ModelResult())
    parts = {
        "load": _load,
        "speed": _speed,
        "clients": _clients,
        "slots": _slots,
        "coding": _coding,
        "tools": _tools,
    }
    for part in (part for part in PARTS if part in bench.options.parts):
        bench.show.part(model, part)
        with _kept(bench, model, part, found):
            if part != "load" and model not in bench.router.loaded():
                bench.router.load(model)
            parts[part](bench, model, found)
        if part == "load" and found.load is None:
            return  # nothing else can be measured


@contextmanager
def _kept(bench: Bench, model: str, part: str, found: ModelResult) -> Iterator[None]:
    """A fault ends the part, not the bench, as long as the router answers."""
    try:
        yield
    except PyinfraError as error:
        _fault(bench, model, found, f"{part}: {error}")
        try:
            bench.router.states()
        except RouterFault as gone:
            raise Ended(f"the router no longer answers: {gone}") from None


def _fault(bench: Bench, model: str, found: ModelResult, text: str) -> None:
    """A line in the model's result, and on the screen."""
    found.faults.append(text)
    bench.show.line(f"{model} {text}")


@contextmanager
def other_presets(bench: Bench, model: str, keys: Mapping[str, str | None]) -> Iterator[Slots]:
    """A with block in which ``model`` has these keys, and gives its slots then. Raises `Held` and
    `RouterFault`.

    When it ends early the box reads its own presets again, which ends a model whose keys were others: one
    that is loading then is waited for, because the router would kill it. It begins when nobody is answered,
    for the same reason.
    """
    alone(bench.router, but=bench.cut)
    with bench.presets.held(model, keys) as slots:
        try:
            yield slots
        except BaseException:
            with ctrl_c.waits(bench.show.line), suppress(RouterFault):
                bench.router.settle(model)
            raise


def _load(bench: Bench, model: str, found: ModelResult) -> None:
    bench.show.step("load")
    found.load = measure.load_time(bench.router, model, bench.free_mib, bench.cut)


def one_client(bench: Bench, model: str, slots: Slots, trained: int) -> Speed:
    """Tokens per second of one client, with the options' prompts; a model with a small context is measured
    with what it can take."""
    options = bench.options
    longest = min(slots.longest, trained) if trained else slots.longest
    return measure.speed(
        bench.router,
        model,
        bench.prompts(model),
        runs=options.runs,
        prompt=max(16, min(options.prompt, longest - options.answer)),
        answer=options.answer,
        step=bench.show.step,
    )


def _speed(bench: Bench, model: str, found: ModelResult) -> None:
    found.speed = one_client(bench, model, *bench.slots(model))
    _where(bench, model, "speed", found)


def _where(bench: Bench, model: str, part: str, found: ModelResult) -> None:
    """Where the model runs after a part. One that was off the accelerator once has no figures of it."""
    bench.show.step("where it runs")
    device = bench.device(model)
    if found.device is None or device.state != "answered":
        found.device = device
    if device.state != "answered":
        fault = f"{model} does not run on the accelerator ({device.state}): its figures are no baseline"
        found.faults.append(f"{part}: {fault}")
        bench.show.line(fault)


def client_rows(bench: Bench, model: str, slots: Slots, trained: int) -> Iterator[ClientsRow]:
    """Every load of the options, asked or skipped with its reason."""
    options = bench.options
    for load in client_loads(options.answer, options.long, options.clients):
        why = refuse(load, slots, trained)
        if why:
            yield measure.skipped(load, why)
            continue
        bench.show.step(f"{load.clients} clients, {load.prompt} tokens each")
        yield measure.clients(bench.router, model, bench.prompts(model), load)


def _keep_rows(
    bench: Bench,
    model: str,
    what: str,
    rows: Iterator[ClientsRow],
    into: list[ClientsRow],
    found: ModelResult,
) -> None:
    """Every row ``into`` the result as soon as it is there; requests that failed are faults. Raises
    `RouterFault`."""
    for row in rows:
        into.append(row)
        if not row.failures:
            continue
        why = "; ".join(row.reasons) or "no reason"
        failed = f"{row.clients} x {row.prompt_tokens} tokens: {row.failures} failed: {why}"
        _fault(bench, model, found, f"{what}: {failed}")
        bench.router.states()
    if any(not row.skipped for row in into):
        _where(bench, model, what, found)


def _clients(bench: Bench, model: str, found: ModelResult) -> None:
    slots, trained = bench.slots(model)
    rows = client_rows(bench, model, slots, trained)
    _keep_rows(bench, model, "clients", rows, found.clients, found)


def _slots(bench: Bench, model: str, found: ModelResult) -> None:
    slots, trained = bench.slots(model)
    if slots.parallel < 2:
        bench.show.line(f"{model} slots: it has one slot, so unified and split are the same")
        return
    for way, unified in (("split", "false"), ("unified", "true")):
        keys = {"kv-unified": unified, "kv-unified-per-slot": None}
        try:
            with other_presets(bench, model, keys) as held:
                bench.show.step(f"{way}: load")
                # What the box has already was not unloaded by the changed presets.
                alone(bench.router)
                bench.router.unload(model)
                bench.router.load(model)
                rows = client_rows(bench, model, held, trained)
                kept = found.slots.setdefault(way, [])
                _keep_rows(bench, model, f"slots, {way}", rows, kept, found)
        except Held:
            # Nobody knows which presets these figures are of.
            found.slots.pop(way, None)
            raise


def _coding(bench: Bench, model: str, found: ModelResult) -> None:
    def one(task: CodingTask) -> Verdict:
        return attempt(bench.router, model, task, bench.judge, **_answer_limit(bench))

    for rate in _tried(bench, model, "coding", bench.coding, one, found):
        found.coding = rate


def _tools(bench: Bench, model: str, found: ModelResult) -> None:
    def one(scenario: Scenario) -> Verdict:
        return play(bench.router, model, scenario, **_answer_limit(bench))

    for rate in _tried(bench, model, "tools", bench.scenarios, one, found):
        found.tools = rate


def _answer_limit(bench: Bench) -> dict[str, int]:
    limit = bench.options.answer_limit
    return {} if limit is None else {"tokens": limit}


def _tried(
    bench: Bench,
    model: str,
    part: str,
    tasks: Sequence[Task],
    one: Callable[[Task], Verdict],
    found: ModelResult,
) -> Iterator[Rate]:
    """The rate after each task. A request that fails is a fault and no wrong answer. Raises `RouterFault`."""
    verdicts: dict[str, Verdict] = {}
    wanted = tasks[: bench.options.tasks]
    for number, task in enumerate(wanted, 1):
        bench.show.step(f"{number} of {len(wanted)}, {task.name}")
        try:
            verdicts[task.name] = one(task)
        except RouterFault as error:
            _still_there(bench, model, str(error))
            _fault(bench, model, found, f"{part}, {task.name}: {error}")
            continue
        yield Rate.of_tasks(verdicts, len(wanted))


def _still_there(bench: Bench, model: str, why: str) -> None:
    """What failed because the router or the model's process went away ends the part. Raises `RouterFault`."""
    state = bench.router.states().get(model)
    if state is None or state.value not in RESIDENT:
        code = None if state is None else state.exit_code
        ended = "" if code is None else f" (its process ended with {code})"
        raise RouterFault(f"{model} is no longer loaded{ended}: {why}")
