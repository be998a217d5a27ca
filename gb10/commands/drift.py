"""``gb10 drift``: what is on the boxes, against what should be there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from gb10 import interrupt, stages
from gb10.commands import options
from gb10.drift import show
from gb10.drift.case import NOTED
from gb10.drift.examine import examine
from gb10.drift.report import STAGES, HostReport, Report, exit_status
from gb10.faults import BadInput, Fault
from gb10.inventory import load_inventory
from gb10.rendering import TOP, shown
from gb10.revision import revision
from gb10.stages import NAMES, VARIABLE, with_followers


def _stages(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    named = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    for name in named:
        if name not in STAGES:
            raise click.BadParameter(f"there is no stage {name!r}: choose of {', '.join(STAGES)}")
    return named


@click.command("drift")
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@options.inventory
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/drift.schema.json).")
@click.option("--diff", is_flag=True, help="Show unified diffs of files, secrets masked.")
@click.option("--only", callback=_stages, metavar="STAGE,...", help="Count only these stages.")
@click.option("--skip", callback=_stages, metavar="STAGE,...", help="Do not count these stages.")
@click.option("--quiet", is_flag=True, help="Print nothing about boxes that are clean.")
@click.option(
    "--watch-mode", is_flag=True, help="For cron: plain lines, and only when it is not as last time."
)
@click.option("--explain", metavar="ITEM", help="Everything about one difference.")
@click.option("--deep", is_flag=True, help="Read every model file as a whole (minutes).")
@click.option("--timeout", type=click.FloatRange(1), help="Seconds for one box.  [60; with --deep 3600]")
@click.option("--fix", is_flag=True, help="Show, ask, and deploy exactly the stages that drifted.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
def drift_command(
    hosts: tuple[str, ...],
    inventory: Path,
    as_json: bool,
    diff: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    quiet: bool,
    watch_mode: bool,
    explain: str | None,
    deep: bool,
    timeout: float | None,
    fix: bool,
    yes: bool,
) -> None:
    """Compare boxes with their description. Changes nothing, unless with --fix.

    Exit status: 0 clean, 2 drift, 1 could not tell (a box cannot be reached, a look failed, a deploy is under
    way, the data is faulty), or with --fix a deploy failed: an unknown never counts as clean, and any 1 beats
    any 2.

    \b
    Examples:
      gb10 drift
      gb10 drift spark.local --diff
      gb10 drift --explain "router: presets"
      gb10 drift --fix
    """
    interrupt.is_a_failure(
        interrupt.DEPLOYING if fix else "Interrupted: nothing is known, and nothing was changed."
    )

    def looked() -> Report:
        return _filtered(_report(inventory, hosts, deep, diff or explain is not None, timeout), only, skip)

    report = looked()
    if fix:
        report = _fixed(report, inventory, yes, as_json, looked)
    _say(report, as_json, quiet, watch_mode, explain)
    sys.stdout.flush()
    raise SystemExit(report.exit)


def _report(inventory: Path, hosts: Sequence[str], deep: bool, diff: bool, timeout: float | None) -> Report:
    names = [host.name for host in load_inventory(inventory)]
    unknown = [name for name in hosts if name not in names]
    if unknown or not names:
        what = f"no host {unknown[0]!r}" if unknown else "it has no host"
        raise BadInput([Fault(shown(inventory), what, f"it has: {', '.join(names) or 'none'}")])
    found = [
        examine(inventory, name, deep=deep, diff=diff, limit=timeout)
        for name in dict.fromkeys(hosts or names)
    ]
    return _of(found)


def _of(hosts: Sequence[HostReport]) -> Report:
    here = revision()
    return Report(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        revision=here.commit,
        dirty=here.dirty,
        exit=exit_status(hosts),
        hosts=tuple(hosts),
    )


def _filtered(report: Report, only: Sequence[str], skip: Sequence[str]) -> Report:
    if not only and not skip:
        return report
    hosts = []
    for host in report.hosts:
        items = tuple(
            item for item in host.items if (not only or item.stage in only) and item.stage not in skip
        )
        state = host.state if host.state == "unknown" else ("drift" if items else "clean")
        hosts.append(host.model_copy(update={"items": items, "state": state}))
    return _of(hosts)


def _say(report: Report, as_json: bool, quiet: bool, watch_mode: bool, explain: str | None) -> None:
    if explain is not None:
        _explain(report, explain)
    elif watch_mode:
        said = list(show.lines(report))
        if _is_news(report, said):
            click.echo("\n".join(said or [f"{host.host}: clean again" for host in report.hosts]))
    elif as_json:
        click.echo(report.model_dump_json(by_alias=True, indent=1))
    elif quiet:
        loud = tuple(host for host in report.hosts if host.state != "clean" or host.deploy == "failed")
        if loud:
            show.print_table(report.model_copy(update={"hosts": loud}))
    else:
        show.print_table(report)


def _explain(report: Report, name: str) -> None:
    found = [(host, item) for host in report.hosts for item in host.items if item.id == name]
    for host in report.hosts:
        if host.state == "unknown" or host.deploy == "failed":
            click.echo(show.headline(host), err=True)
    if not found and report.exit != 1:
        there = ", ".join(sorted({item.id for host in report.hosts for item in host.items})) or "none"
        raise BadInput([Fault(name, "no such difference now", f"there are: {there}")])
    click.echo("\n\n".join(show.explained(host, item) for host, item in found))


def _is_news(report: Report, said: Sequence[str]) -> bool:
    """Whether the last run for the same boxes said something else; what this one says is kept."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gb10"
    names = hashlib.sha256(json.dumps([str(TOP), *(h.host for h in report.hosts)]).encode()).hexdigest()
    kept = folder / f"drift-{names[:16]}.json"
    try:
        before = json.loads(kept.read_text())
    except (OSError, ValueError):
        before = []
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(list(said)))
    return bool(before != list(said))


def _fixed(report: Report, inventory: Path, yes: bool, as_json: bool, looked: Callable[[], Report]) -> Report:
    """Deploy what drifted, after showing it; the report of a second look. Unknown boxes are left alone.

    With ``as_json`` standard output is for the report alone."""
    show.print_table(report, err=as_json)
    drifted = [host for host in report.hosts if any(item.fix == "deploy" for item in host.items)]
    if not drifted:
        return report
    for host in drifted:
        click.echo(
            f"{host.host}: deploy of {', '.join(stages_of(host)) or 'nothing but the record'}", err=as_json
        )
    if not yes:
        click.confirm("Deploy?", abort=True, err=as_json)
    sys.stdout.flush()
    ended = {host.host: _deployed(host, inventory, as_json) for host in drifted}
    return _of([host.model_copy(update={"deploy": ended.get(host.host, "")}) for host in looked().hosts])


def _deployed(host: HostReport, inventory: Path, as_json: bool) -> str:
    """How the deploy of what drifted on one box has ended: done or failed."""
    command = [str(Path(sys.executable).with_name("pyinfra")), str(inventory.absolute()), "deploy.py"]
    noted = [item.id for item in host.items if item.do == NOTED]
    try:
        status = subprocess.run(
            [*command, "--limit", host.host, "-y"],
            cwd=TOP,
            env={
                **os.environ,
                VARIABLE: ",".join(stages_of(host)) or "verify",
                stages.NOTED: ",".join(noted),
            },
            stdout=sys.stderr if as_json else None,
            check=False,
        ).returncode
    except OSError as error:
        status = 1
        click.echo(f"{command[0]}: {error}", err=True)
    if status:
        click.echo(f"{host.host}: the deploy failed", err=True)
    return "failed" if status else "done"


def stages_of(host: HostReport) -> list[str]:
    """The stages of a deploy that puts a box right, in their order."""
    drifted = {item.stage for item in host.items if item.fix == "deploy"}
    return with_followers([name for name in NAMES if name in drifted])
