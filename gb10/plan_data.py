"""The memory budget from the data of a box, and the box whose catalogue is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gb10.faults import BadInput, Fault
from gb10.inventory import desired, load_inventory
from gb10.lock import Lock
from gb10.model import Catalogue
from gb10.plan import AUTO, Budget

MEMORY_KEYS = {
    "memory_total_mib": "memory of the box",
    "memory_reserve_mib": "never planned: system, Docker, page cache",
    "memory_overhead_mib": "of one loaded model beyond its buffers",
}
"""Keys of the data that make the budget, each a whole number of MiB."""


@dataclass(frozen=True)
class PlannedBox:
    """What a plan needs of one box."""

    catalogue: Catalogue
    lock: Lock
    budget: Budget


def planned_box(inventory: Path, host: str | None, given: Mapping[str, int | str]) -> PlannedBox:
    """The catalogue, lock and budget of a host of the inventory. Raises BadInput.

    ``given`` takes the place of the data's values; its keys are the same.
    """
    hosts = {one.name: one for one in load_inventory(inventory)}
    if host is None and len(hosts) == 1:
        (host,) = hosts
    if host is None or host not in hosts:
        what = f"no host {host}" if host else f"it has {len(hosts)} hosts"
        raise BadInput([Fault(str(inventory), what, f"name one with --host: {', '.join(sorted(hosts))}")])
    wanted = desired(hosts[host])
    return PlannedBox(wanted.catalogue, wanted.lock, budget_of({**wanted.data.model_dump(), **given}))


def budget_of(data: Mapping[str, object]) -> Budget:
    """The budget in the data: MEMORY_KEYS, and ``lane_models_max`` (a number, or ``auto`` for the most that
    fits). Raises BadInput with every key that is missing or wrong."""
    faults: list[Fault] = []
    numbers: dict[str, int] = {}
    for key, meaning in MEMORY_KEYS.items():
        value = data.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            numbers[key] = value
        else:
            faults.append(Fault(f"data {key}", f"`{value}` is no number of MiB", f"set it ({meaning})"))
    models_max = data.get("lane_models_max")
    if models_max != AUTO and (
        not isinstance(models_max, int) or isinstance(models_max, bool) or models_max < 0
    ):
        faults.append(
            Fault("data lane_models_max", f"`{models_max}` is no number", "write a number or `auto`")
        )
    elif models_max == 0:
        # The router takes 0 for no limit at all.
        faults.append(
            Fault("data lane_models_max", "0 lets every model be loaded", "write a number or `auto`")
        )
    if not faults and numbers["memory_reserve_mib"] >= numbers["memory_total_mib"]:
        faults.append(Fault("data memory_reserve_mib", "leaves nothing for models", "make it smaller"))
    if faults:
        raise BadInput(faults)
    return Budget(
        total_mib=numbers["memory_total_mib"],
        reserve_mib=numbers["memory_reserve_mib"],
        overhead_mib=numbers["memory_overhead_mib"],
        models_max=models_max if isinstance(models_max, int) else None,
    )
