"""``gb10 status`` and ``gb10 logs``: the box at a glance, through SSH."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pyinfra.api.exceptions import FactProcessError, PyinfraError
from pyinfra.api.host import Host
from rich.console import Console
from rich.live import Live

from gb10.commands import options
from gb10.desired import Desired
from gb10.facts.probe import probe_answer, probe_command
from gb10.inventory import desired
from gb10.printable import all_printable
from gb10.remote import connected, stream
from gb10.status import status_json
from gb10.status_view import status_view
from gb10.watch_config import STATUS

ASK_SECONDS = 60
DEPLOY_LOCK = "/run/gb10-deploy.lock"  # as in files/gb10_lock.py
EXIT = {"healthy": 0, "degraded": 2, "failed": 2, "unknown": 3}


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--follow", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--every", default=5, show_default=True, type=click.IntRange(1), help="Seconds, with --follow.")
@options.one_host
@options.inventory
def status(as_json: bool, follow: bool, every: int, host_name: str | None, inventory: Path) -> None:
    """The lane at a glance: state and why, models with tok/s against their baseline, memory beside the plan,
    what the watch has done.

    Changes nothing, loads and evicts no model. With --json and --follow one object a line.
    --follow waits for a box that goes away: its state is `unreachable` until it is back.

    Exit status: 0 healthy, 1 the box was not reached, 2 degraded or failed, 3 no watch has looked.

    \b
    Examples:
      gb10 status
      gb10 status --follow
      gb10 status --json --host spark.local
    """
    console = Console()
    if follow:
        seen = followed(inventory, host_name, every)
        if as_json:
            for _, found in seen:
                click.echo(json.dumps(found))
        elif not console.is_terminal:
            for name, found in seen:
                console.print(status_view(name, found))
        else:
            with Live(console=console, auto_refresh=False) as live:
                for name, found in seen:
                    live.update(status_view(name, found), refresh=True)
    with connected(inventory, host_name) as host:
        found = status_of(host, desired(host))
        if as_json:
            click.echo(json.dumps(found, indent=1))
        else:
            console.print(status_view(host.name, found))
    raise SystemExit(EXIT[found["state"]])


def followed(inventory: Path, host_name: str | None, every: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The box's name and what `status_of` says of it, every so many seconds, without an end.

    A box that goes away is waited for: meanwhile it is ``{"state": "unreachable", "reasons": [why]}``. Raises
    pyinfra's ``PyinfraError`` where it was not even there at the beginning.
    """
    name = ""
    while True:
        try:
            with connected(inventory, host_name) as host:
                box = desired(host)
                while True:
                    found = status_of(host, box)
                    name = host.name
                    yield name, found
                    time.sleep(every)
        except PyinfraError as error:
            if not name:
                raise
            yield name, {"state": "unreachable", "reasons": [str(error)]}
            time.sleep(every)


def status_of(host: Host, box: Desired) -> dict[str, Any]:
    """One remote command. Raises pyinfra's ``PyinfraError`` when the box does not answer it."""
    question = {
        "lane": box.data.lane_name,
        "status": STATUS,
        "drift": box.drift_path,
        "record": box.record_path,
        "lock": DEPLOY_LOCK,
        "programs": box.data.program_dir,
        "lane_file": box.lane_path,
    }
    command = probe_command("box_status.py", question)
    ok, output = host.run_shell_command(command, _sudo=True, _timeout=ASK_SECONDS)
    if not ok:
        raise PyinfraError(
            f"{host.name}: {(output.stderr_lines or output.stdout_lines or ['no reason'])[-1]}"
        )
    try:
        return status_json(box, all_printable(probe_answer(output.stdout_lines), keep=""))
    except (FactProcessError, KeyError, TypeError, AttributeError) as error:
        raise PyinfraError(
            f"{host.name}: its watch answered in another shape ({error}): run the deploy"
        ) from None


@click.command("logs")
@click.option("--watch", "of_watch", is_flag=True, help="The watch's journal instead of the lane's.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--lines", default=50, show_default=True, type=click.IntRange(1), help="How many to begin with."
)
@options.one_host
@options.inventory
def logs(of_watch: bool, follow: bool, lines: int, host_name: str | None, inventory: Path) -> None:
    """The journal of the lane, or of the watch.

    \b
    Examples:
      gb10 logs --lines 200
      gb10 logs --watch --follow
    """
    with connected(inventory, host_name) as host:
        units = ["gb10-watch.service", "gb10-watch-hand.service"] if of_watch else [desired(host).unit]
        command = ["journalctl", "--no-pager", "--output", "short-iso", "--lines", str(lines)]
        for unit in units:
            command += ["--unit", unit]
        found = stream(host, [*command, *(["--follow"] if follow else [])])
    raise SystemExit(found)
