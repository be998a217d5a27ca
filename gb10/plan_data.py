"""The box whose catalogue is planned, and its budget with what the command line says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gb10.faults import BadInput, Fault
from gb10.inventory import desired, load_inventory
from gb10.lock import Lock
from gb10.model import Catalogue
from gb10.plan import Budget
from gb10.remote import named_host


@dataclass(frozen=True)
class PlannedBox:
    """What a plan needs of one box."""

    catalogue: Catalogue
    lock: Lock
    budget: Budget


def planned_box(inventory: Path, host: str | None, given: Mapping[str, int | None]) -> PlannedBox:
    """The catalogue, lock and budget of a host of the inventory. Raises BadInput.

    ``given`` takes the place of the data's values; its keys are the fields of `Budget`.
    """
    box = desired(named_host(list(load_inventory(inventory)), host, inventory))
    budget = replace(box.budget, **given)  # type: ignore[arg-type]  # the fields are whole numbers or None
    if budget.models_max == 0:
        # The router takes 0 for no limit at all.
        raise BadInput([Fault("models-max", "0 lets every model be loaded", "write a number or `auto`")])
    if budget.bytes <= 0:
        raise BadInput([Fault("reserve", "leaves nothing for models", "make it smaller")])
    return PlannedBox(box.catalogue, box.lock, budget)
