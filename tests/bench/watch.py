"""What the watch itself costs: `make bench-watch`, on a lab host that was deployed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from tests.lab.errors import LabError
from tests.lab.host import LabHost

UNITS = ("gb10-watch.service", "gb10-watch-hand.service", "docker.service", "containerd.service")
OURS = UNITS[:2]


@dataclass(frozen=True)
class Cost:
    """CPU seconds used so far and resident MiB now, by unit."""

    at: float
    cpu: dict[str, float]
    resident: dict[str, float]


def cost(host: LabHost) -> Cost:
    """Read in one command."""
    script = (
        "for unit in " + " ".join(UNITS) + "; do"
        " pid=$(systemctl show --property=MainPID --value $unit);"
        " echo $unit $(systemctl show --property=CPUUsageNSec --value $unit)"
        " $(sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\) kB/\\1/p' /proc/$pid/status); done"
    )
    cpu, resident = {}, {}
    for line in host.ssh(script, sudo=True, check=False).stdout.splitlines():
        unit, used, *kib = line.split()
        cpu[unit] = int(used) / 1e9 if used.isdigit() else 0.0
        resident[unit] = int(kib[0]) / 1024 if kib else 0.0
    return Cost(time.monotonic(), cpu, resident)


def cpu_spent(costs: Sequence[Cost], unit: str) -> float:
    """CPU seconds over these readings. systemd counts from 0 again when a unit is started anew."""
    figures = [one.cpu.get(unit, 0.0) for one in costs]
    return sum(now - then if now >= then else now for then, now in itertools.pairwise(figures))


def cost_table(costs: Sequence[Cost], title: str) -> Table:
    """Share of one core over these readings, and the most that was resident."""
    table = Table("unit", "% of a core", "MiB resident", title=title)
    seconds = costs[-1].at - costs[0].at
    for unit in UNITS:
        resident = max(one.resident.get(unit, 0.0) for one in costs)
        share = 100 * cpu_spent(costs, unit) / seconds
        table.add_row(unit, f"{share:.2f}", f"{resident:.1f}" if unit in OURS else "")
    return table


@click.command()
@click.option("--name", default="demo", show_default=True, help="A lab host that was deployed.")
@click.option("--seconds", default=120, show_default=True)
def main(name: str, seconds: int) -> None:
    """CPU and memory of the watch on an idle lane. Docker's own rise is what its probes cost there."""
    host = LabHost(name)
    try:
        host.up()
        looks = ["systemctl stop gb10-watch.service", "systemctl start gb10-watch.service"]
        rows = []
        for line, title in zip(looks, ("without the watch", "with the watch"), strict=True):
            host.ssh(line, sudo=True)
            time.sleep(5)
            before = cost(host)
            time.sleep(seconds)
            rows.append(cost_table((before, cost(host)), f"{title}, {seconds} s idle"))
    except LabError as error:
        raise click.ClickException(str(error)) from None
    for table in rows:
        Console().print(table)


if __name__ == "__main__":
    main()
