"""``gb10 rollback``: the lane that answered before, image and presets, in one step."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import gevent
from paramiko import SSHException
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gb10.commands import options
from gb10.desired import Desired
from gb10.facts.answer import read_answer
from gb10.facts.docker import Generations
from gb10.inventory import desired
from gb10.operations import deploy_lock
from gb10.operations.going_back import BACK_SECONDS, back_command, outcome_of
from gb10.printable import all_printable
from gb10.remote import connected

WIDTH = 140
SHOWN = 4  # differences of a lane in the list


@click.command()
@click.option(
    "--to",
    default="",
    metavar="LANE",
    help="Not the previous lane: its number in --list, or the tag of its image (the newest with it).",
)
@click.option("--list", "listing", is_flag=True, help="Show what there is to go back to. Changes nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.one_host
@options.inventory
def rollback(to: str, listing: bool, yes: bool, host_name: str | None, inventory: Path) -> None:
    """Go back to the lane that answered before the present one: its image, unit and presets.

    It must answer; what was done is recorded on the box. The lane restarts, unless the presets alone differ:
    those a running router reads anew. One that was cut off (a lost connection, a power cut) or did not answer
    is taken up again by the next. The data of this repository stay as they are: the next deploy brings back
    what they describe.

    Exit status: 0 the lane answers again, 1 it does not, or there is nowhere to go.

    \b
    Examples:
      gb10 rollback --list
      gb10 rollback
      gb10 rollback --to 2
      gb10 rollback --to b11312-1c03001ecfa9
    """
    with connected(inventory, host_name) as host:
        box = desired(host)
        known = host.get_fact(
            Generations, program=box.program_files["gb10_generations.py"].path, lane=box.lane_path
        )
        if known is None:
            raise PyinfraError(f"{host.name} does not say which lanes it has kept: run a deploy first")
        if listing or not yes:
            _show(all_printable(known))
        if listing:
            return
        if not yes:
            click.confirm(question(host.name, all_printable(known), to), abort=True)
        deploy_lock.take(host, "gb10 rollback")
        done = go_back(host, box, to)
    sys.exit(_report(box, done))


def go_back(host: Host, box: Desired, to: str) -> dict[str, Any]:
    """What ``gb10_generations.py back`` says. Raises pyinfra's ``PyinfraError`` when it says nothing."""
    command = back_command(box, why="gb10 rollback", to=to)
    try:
        with Console(stderr=True).status("going back, until it answers"):
            _, output = host.run_shell_command(command, _sudo=True, _timeout=BACK_SECONDS)
        done: dict[str, Any] = all_printable(outcome_of(output.stdout_lines, output.stderr_lines))
        return done
    except (SSHException, OSError, EOFError, gevent.Timeout, ValueError) as error:
        raise PyinfraError(
            f"{host.name}: going back is not known to have worked ({error}): it may go on there; "
            "run it again: that waits for its end, or brings it there"
        ) from None


def question(name: str, known: Mapping[str, Any], to: str) -> str:
    """What to ask before going back: to which lane, what it has otherwise, and whether the lane restarts."""
    lanes = known["generations"]
    of_tag = [one for one in lanes if to in (one["image"], one["image"].rpartition(":")[2])]
    named = of_tag or [one for one in lanes if str(one["number"]) == (to or str(known["next"]))]
    if not named or "differs" not in named[-1]:  # the box says what is wrong; an older one says less
        return f"Go back on {name}?"
    lane = named[-1]
    otherwise = f" ({'; '.join(lane['differs'])})" if lane["differs"] else ""
    restart = "with a restart" if lane["restarts"] else "without a restart while it runs"
    return f"Go back on {name} to lane {lane['number']}{otherwise}, {restart}?"


def otherwise(lane: Mapping[str, Any]) -> str:
    """What a kept lane has otherwise than the one in place, short enough for a column."""
    differs = list(lane.get("differs", []))
    more = len(differs) - SHOWN
    return "; ".join([*differs[:SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _show(known: dict[str, Any]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("lane", "image", "answered", "", "differs from what is in place in"):
        table.add_column(heading, no_wrap=heading == "image")
    installed_is_known = False
    for entry in reversed(known["generations"]):
        words = []
        if entry["number"] == known["current"]:
            words.append("answered last")
        if entry["digest"] == known["installed"] and not installed_is_known:
            words.append("in place")
            installed_is_known = True
        cells = (str(entry["number"]), entry["image"], entry["kept"], ", ".join(words), otherwise(entry))
        table.add_row(*(Text(cell) for cell in cells))
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    console.print(table if known["generations"] else "no lane has answered yet")
    if known["generations"] and not installed_is_known:
        click.echo("in place is a lane that has not answered")
    if known["going_to"]:
        click.echo(f"going back to lane {known['going_to']} has not come to its end: gb10 rollback goes on")
    for number in known["damaged"]:
        click.echo(f"lane {number} is not whole any more: nothing goes back to it")
    for change in [change for change in known["changes"] if change["what"] == "back"][-5:]:
        outcome = "it answered" if change.get("answered") else "it did not answer"
        why = change.get("why", "")
        click.echo(f"{change['time']} back to lane {change['number']}, because {why}: {outcome}")


def _report(box: Desired, done: dict[str, Any]) -> int:
    if done["state"] == "nothing":
        click.echo(f"not gone back: {done['reason']}", err=True)
        return 1
    if done["state"] == "stuck":
        click.echo(f"lane {done['to']} with {done['image']} does not answer: {done['reason']}", err=True)
        return 1
    answer = read_answer([json.dumps(done["answer"])])
    click.echo(f"back at lane {done['to']} with {done['image']}: {answer}")
    if done["image"] != box.image:
        click.echo(f"note: the data describe {box.image}: the next deploy brings that one back")
    else:
        click.echo("note: the next deploy brings back what the data describe")
    return 0
