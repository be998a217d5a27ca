"""``gb10 bench``: measure a box, compare two results, write the report, tell the story again."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from pyinfra.api.exceptions import PyinfraError
from rich.console import Console

from gb10.bench import compare as comparing
from gb10.bench import ctrl_c, report, story, summary
from gb10.bench.on_box import FOLDER, BoxUnderTest
from gb10.bench.residents import put_back, residents
from gb10.bench.result import ModelResult, Result, load, load_all, save, save_baselines, write_whole
from gb10.bench.run import PARTS, QUICK, USUAL, Ended, Options, bench_model
from gb10.bench.show import Progressing
from gb10.commands import options
from gb10.faults import BadInput, Fault
from gb10.interrupt import STATUS
from gb10.operations import deploy_lock
from gb10.printable import LINES, printable
from gb10.remote import connected

RESULTS = FOLDER / "results"
BASELINES = FOLDER / "baselines"


class _RunByDefault(click.Group):
    """What is no subcommand is a model, or an option of the bench itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("bench", cls=_RunByDefault)
def bench() -> None:
    """Measure a box: `gb10 bench [MODEL...]`. `gb10 bench run --help` has the options.

    \b
    Examples:
      gb10 bench --quick gemma-4-E4B
      gb10 bench --save-baseline
      gb10 bench qwen3-coder-next --part clients --slots
      gb10 bench compare bench/results/OLD.json bench/results/NEW.json
      gb10 bench report
      gb10 bench story
    """


_out = click.option(
    "--out", type=click.Path(path_type=Path), default=RESULTS, show_default="bench/results", help="Folder."
)
_yes = click.option("--yes", is_flag=True, help="Also while a model answers somebody.")
_quick = click.option("--quick", is_flag=True, help="Fewer runs, clients and tasks, shorter answers.")


@bench.command("run")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@_quick
@click.option("--runs", type=click.IntRange(1), help="Runs of the speed, one after the other.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this; several times.")
@click.option(
    "--slots", is_flag=True, help="Also unified against split slots: the model's preset is changed for it."
)
@click.option("--tasks", type=click.IntRange(1), help="How many coding tasks and tool scenarios.")
@click.option("--answer-limit", type=click.IntRange(16), help="Longest answer to a task, tokens.")
@click.option("--long", "long_tokens", type=click.IntRange(256), help="Length of a long prompt, tokens.")
@click.option(
    "--save-baseline",
    is_flag=True,
    help="Make the speeds the baselines in bench/baselines; the next deploy brings them to the watch.",
)
@click.option("--lower", is_flag=True, help="With --save-baseline: also a speed that has fallen.")
@click.option("--baselines", type=click.Path(path_type=Path), default=BASELINES, hidden=True)
@_out
@_yes
@options.one_host
@options.inventory
def run(
    models: tuple[str, ...],
    quick: bool,
    runs: int | None,
    parts: tuple[str, ...],
    slots: bool,
    tasks: int | None,
    answer_limit: int | None,
    long_tokens: int | None,
    save_baseline: bool,
    lower: bool,
    baselines: Path,
    out: Path,
    yes: bool,
    host_name: str | None,
    inventory: Path,
) -> None:
    """Measure MODELs, or all of the catalogue: load time, speed, clients at once, coding tasks, tool calls.

    Models are loaded and unloaded for it; afterwards those are loaded that were before. Ctrl-C ends it, puts
    the box back and keeps what was measured. Exits with 1 when a part failed or nothing was measured.
    """
    chosen = QUICK if quick else Options()
    chosen = Options(
        parts=_parts(parts, slots),
        runs=runs or chosen.runs,
        prompt=chosen.prompt,
        answer=chosen.answer,
        long=long_tokens or chosen.long,
        clients=chosen.clients,
        tasks=tasks or chosen.tasks,
        answer_limit=answer_limit or chosen.answer_limit,
    )
    if lower and not save_baseline:
        raise click.UsageError("--lower is a way of --save-baseline: name both")
    if save_baseline and "speed" not in chosen.parts:
        raise click.UsageError("a baseline is a speed: take `--part speed` in")

    def measure(under_test: BoxUnderTest, console: Console, result: Result) -> list[str]:
        names = under_test.choose(models)
        result.settings.named = names if models else []
        missing = [] if models else under_test.not_served()
        with Progressing(console, len(names) * len(chosen.parts)) as show:
            made = under_test.bench(show, chosen)
            for name in names:
                bench_model(made, name, result)
        return [f"{name}: the catalogue has it on, the router does not serve it: deploy" for name in missing]

    result, path, status = _measured(inventory, host_name, out, yes, chosen, measure)
    console = Console()
    console.print(summary.table(result))
    for more in summary.clients_view(result):
        console.print(more)
    _say(_where_it_is(result, path))
    if save_baseline and result.interrupted:
        _say("no baseline is written: the bench did not come to its end")
    elif save_baseline:
        kept, taken = save_baselines(result, baselines, lower)
        if taken:
            _say(f"baselines of {', '.join(taken)}: {_shown(kept)}")
            _say("commit that file; the next deploy brings it to the watch on the box")
        missing = [name for name in result.models if name not in taken]
        if missing:
            _say(f"no baseline of {', '.join(missing)}: no speed on the accelerator")
            status = status or 1
    raise SystemExit(status)


@bench.command("story")
@_quick
@click.option("--claims", type=click.Path(path_type=Path), default=FOLDER / "story.yaml", hidden=True)
@_out
@_yes
@options.one_host
@options.inventory
def story_command(
    quick: bool, claims: Path, out: Path, yes: bool, host_name: str | None, inventory: Path
) -> None:
    """Measure the story of the box again and print its figures beside ours.

    Only claims whose models are on the box; a claim without a run prints as "not measured". Presets that a
    claim needs otherwise are changed for it and put back. Exits with 1 when a run failed or there was none.
    """
    chosen = QUICK if quick else Options()
    told = story.load_claims(claims)

    def measure(under_test: BoxUnderTest, console: Console, result: Result) -> list[str]:
        settings = {story.setting_of(side) for claim in told.values() for side in claim.sides.values()}
        with Progressing(console, len(settings)) as show:
            made = under_test.bench(show, chosen)
            story.run_story(made, told, list(under_test.router.states()), under_test.off, result)
        return made.faults

    result, path, status = _measured(inventory, host_name, out, yes, chosen, measure)
    Console().print(story.table(story.rows(told, result.story)))
    _say(_where_it_is(result, path))
    raise SystemExit(status)


@bench.command("compare")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def compare(first: Path, second: Path) -> None:
    """Two results side by side. Exits with 2 when the second lost more than the spread of both, or has no
    figure for what it was asked; with 1 when they cannot be compared."""
    one, other = load(first), load(second)
    changes = comparing.compare(one, other)
    Console().print(comparing.table(one, other, changes))
    if any(change.lost for change in changes):
        raise SystemExit(2)


@bench.command("report")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, show_default="bench/results")
@click.option("--claims", type=click.Path(path_type=Path), default=FOLDER / "story.yaml", hidden=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=FOLDER / "report.html", show_default="bench/report.html"
)
@click.option("--host", "host_name", help="Only this box.")
def report_command(results: Path, claims: Path, out: Path, host_name: str | None) -> None:
    """Write one page with the history of all results: speeds, memory plan, pass rates, the story."""
    found = load_all(results, host_name)
    if not found:
        raise BadInput([Fault(str(results), "no result is there", "run `gb10 bench` first")])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, report.page(found, story.load_claims(claims)))
    _say(f"written: {_shown(out)}")


def _parts(parts: tuple[str, ...], slots: bool) -> tuple[str, ...]:
    wanted = set(parts or USUAL) | ({"slots"} if slots else set())
    return tuple(part for part in PARTS if part in wanted)


def _measured(
    inventory: Path,
    host_name: str | None,
    out: Path,
    yes: bool,
    chosen: Options,
    measure: Callable[[BoxUnderTest, Console, Result], list[str]],
) -> tuple[Result, Path | None, int]:
    """The result of ``measure``, which gives its faults, on the box; its file, if anything was measured, and
    the exit status. The box is put back in any case."""
    console = Console(stderr=True)
    _writable(out)
    with ctrl_c.reaches_us(), connected(inventory, host_name) as host:
        # A deploy would restart what is measured, and two benches would measure each other.
        deploy_lock.take(host, "gb10 bench")
        under_test = BoxUnderTest(host)
        result = under_test.result(chosen)
        before = residents(under_test.router)
        _ask(before.busy, yes)
        under_test.cut = list(before.busy)
        loaded = ", ".join(before.loaded) or "nothing"
        _say(f"{host.name}: loaded now: {loaded}; it will be so again afterwards")
        faults: list[str] = []
        stopped = False
        result.interrupted = True  # until it has come to its end
        try:
            faults += measure(under_test, console, result)
            result.interrupted = False
        except KeyboardInterrupt:
            stopped = True
        except Ended as error:
            faults.append(str(error))
        finally:
            with ctrl_c.waits(_say):
                try:
                    faults += _as_before(under_test, before.loaded)
                except KeyboardInterrupt:
                    stopped = True
                    faults.append("the box was left as it is")
                except PyinfraError as error:
                    faults.append(f"the box is not put back: {error}")
                result.finished = datetime.now(UTC).replace(microsecond=0)
                try:
                    path = _kept(result, out)
                except OSError as error:
                    # The figures are still shown.
                    path = None
                    faults.append(f"the result cannot be written to {out}: {error.strerror}")
                for fault in faults:
                    _say(fault)
    failed = faults or not path or any(found.faults for found in result.models.values())
    if stopped:
        _say(f"Interrupted. The box is {'not ' if faults else ''}as it was.")
        return result, path, STATUS
    return result, path, 1 if failed else 0


def _where_it_is(result: Result, path: Path | None) -> str:
    if path:
        return f"written: {_shown(path)}"
    return "no result is written" if result.measured else "nothing was measured: no result is written"


def _kept(result: Result, out: Path) -> Path | None:
    """Write what was measured, if anything was: an empty result would hide the one before it."""
    result.models = {name: found for name, found in result.models.items() if found != ModelResult()}
    return save(result, out) if result.measured else None


def _writable(out: Path) -> None:
    """Not after hours that nothing can be written. Raises `BadInput`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise BadInput([Fault(str(out), f"no place for a result: {error.strerror}", "say --out")]) from None


def _as_before(under_test: BoxUnderTest, loaded: Sequence[str]) -> Iterator[str]:
    """Put the box back; one line for each thing that is not as it was."""
    under_test.router.abort()
    yield from put_back(under_test.router, loaded)
    yield from under_test.presets.faults
    yield from _cleaned(under_test)


def _cleaned(under_test: BoxUnderTest) -> Iterator[str]:
    try:
        under_test.clean()
    except PyinfraError as error:
        yield f"the sandbox's folder is still there: {error}"


def _ask(busy: dict[str, int | None], yes: bool) -> None:
    """Whoever uses a model now is not pushed out without a word. Raises `BadInput`, or ``click.Abort``."""
    if not busy or yes:
        return
    named = ", ".join(
        f"{name} does not say whether it answers somebody"
        if count is None
        else f"{name} answers {count} request{'s' * (count != 1)}"
        for name, count in busy.items()
    )
    if not sys.stdin.isatty():
        raise BadInput([Fault("bench", f"{named} now", "wait, or say --yes: it would be slowed or evicted")])
    click.confirm(f"{named} now; the bench slows or evicts it. Go on?", abort=True, err=True)


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _say(text: str) -> None:
    click.echo(printable(text, LINES), err=True)
