"""Seconds that a deploy with nothing to do takes, beside a bare `ssh host true`: `make bench-deploy`."""

from __future__ import annotations

import statistics
import subprocess
import time

import click
from rich.console import Console
from rich.table import Table

from tests.lab import deploying
from tests.lab.errors import LabError
from tests.lab.host import LabHost

RUNS = 7


def _timed(command: list[str]) -> float:
    """Seconds that a command took. Raises ClickException when it fails."""
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=deploying.paths.REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: {done.stderr.decode()[-300:]}")
    return time.perf_counter() - begun


@click.command()
@click.option("--name", default="demo", show_default=True, help="A lab host that `make demo` has deployed.")
def main(name: str) -> None:
    """Median and range of several runs, in seconds."""
    host = LabHost(name)
    try:
        host.up()
    except LabError as error:
        raise click.ClickException(str(error)) from None
    settled = deploying.deploy(host)
    if settled.returncode or deploying.changed(settled.stdout):
        raise click.ClickException(f"{name} is not settled: run `make demo` first")
    rows = {
        f"ssh {name} true": [*host.ssh_command(), "true"],
        "dry run, nothing to do": deploying.command(host, "--dry"),
        "deploy, nothing to do": deploying.command(host, "-y"),
    }
    table = Table("what", "median s", "range s", title=f"{RUNS} runs each")
    for what, command in rows.items():
        seconds = [_timed(command) for _ in range(RUNS)]
        table.add_row(what, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
