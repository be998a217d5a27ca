"""`gb10 drift` on a settled host: seconds and remote commands beside a bare `ssh host true`, and that it
says clean each time: `make bench-drift`."""

from __future__ import annotations

import json
import statistics
import time

import click
from rich.console import Console
from rich.table import Table

from tests.bench.deploy import _timed
from tests.lab import deploying, drifting
from tests.lab.errors import LabError
from tests.lab.host import LabHost


@click.command()
@click.option("--name", default="demo", show_default=True, help="A lab host that `make demo` has deployed.")
@click.option("--runs", default=50, show_default=True, type=click.IntRange(3))
def main(name: str, runs: int) -> None:
    """Median and range in seconds; how often the host was clean."""
    host = LabHost(name)
    try:
        host.up()
    except LabError as error:
        raise click.ClickException(str(error)) from None
    settled = deploying.deploy(host)
    if settled.returncode or deploying.changed(settled.stdout):
        raise click.ClickException(f"{name} is not settled: run `make demo` first")
    login, whole, inside, commands, clean = [], [], [], set(), 0
    for _ in range(runs):
        login.append(_timed([*host.ssh_command(), "true"]))
        begun = time.perf_counter()
        done = drifting.run(name, "--json")
        whole.append(time.perf_counter() - begun)
        (report,) = json.loads(done.stdout)["hosts"]
        inside.append(report["seconds"])
        commands.add(report["remote_commands"])
        clean += done.returncode == 0
        if done.returncode:
            click.echo(f"{report['state']}: {report['reason']} {list(drifting.items(report))}", err=True)
    table = Table(
        "what", "median s", "range s", title=f"{runs} runs: clean {clean}, remote commands {commands}"
    )
    for what, seconds in (
        (f"ssh {name} true", login),
        ("gb10 drift, connection to judgement", inside),
        ("gb10 drift, the whole command", whole),
    ):
        table.add_row(what, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}")
    Console().print(table)
    if clean != runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
