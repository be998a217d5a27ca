"""``gb10 check``: every rule that needs no box."""

from __future__ import annotations

from pathlib import Path

import click

from gb10.commands import options
from gb10.faults import BadInput, Fault
from gb10.found import places
from gb10.inventory import desired, load_inventory
from gb10.plan_view import NOT_COUNTED
from gb10.rendering import shown
from gb10.requirements import description_faults


def faults_of(inventory: Path) -> tuple[list[Fault], int]:
    """Every fault of data, catalogue and lock over all hosts, each once; and the number of hosts."""
    found: dict[Fault, None] = {}
    hosts = list(load_inventory(inventory))
    for host in hosts:
        try:
            box = desired(host)
            list(box.files())
            found |= dict.fromkeys(description_faults(box))
        except BadInput as error:
            found |= dict.fromkeys(error.faults)
    return list(found), len(hosts)


def stale_baselines(inventory: Path) -> list[str]:
    """A line for each baseline that was measured with something else than what is described."""
    notes = []
    for host in load_inventory(inventory):
        box = desired(host)
        # Models that are found on a box are in its presets too, and nobody has looked here.
        presets = None if places(box.data) else box.presets_digest
        for name, baseline in box.baselines.items():
            if stale := baseline.stale(box.image, presets):
                do = f"measure it again: gb10 bench {name} --save-baseline"
                notes.append(f"{host.name}: the baseline of {name} is of {stale}: {do}")
    return notes


@click.command()
@options.inventory
def check(inventory: Path) -> None:
    """Check data, catalogue and lock, all faults in one go. Needs no box and no network.

    So it does not count models that only lie on the box: `gb10 plan --on-box` does, and every deploy.

    Exit status: 0 a deploy may begin, 1 it would be refused.

    \b
    Examples:
      gb10 check
      gb10 check --inventory tests/lab/inventory.py
    """
    faults, hosts = faults_of(inventory)
    if not hosts and not faults:
        faults = [Fault(shown(inventory), "it has no host", 'add one: gb10 = [("NAME", {})]')]
    for fault in faults:
        click.echo(fault, err=True)
    if faults:
        raise SystemExit(1)
    click.echo(f"{shown(inventory)}: {hosts} host{'s' if hosts != 1 else ''}, no fault")
    click.echo(f"note: {NOT_COUNTED}")
    for note in stale_baselines(inventory):
        click.echo(f"note: {note}")
