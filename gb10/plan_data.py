"""The box whose catalogue is planned, and its budget with what the command line says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gb10.facts.found import found_on
from gb10.faults import BadInput, Fault
from gb10.inventory import desired, load_inventory
from gb10.lock import Lock
from gb10.model import Catalogue
from gb10.plan import Budget, Found
from gb10.remote import connected, named_host


@dataclass(frozen=True)
class PlannedBox:
    """What a plan needs of one box. ``found`` is None where nobody has looked for models on it."""

    catalogue: Catalogue
    lock: Lock
    budget: Budget
    found: tuple[Found, ...] | None


def planned_box(
    inventory: Path, host: str | None, given: Mapping[str, int | None], *, on_box: bool = False
) -> PlannedBox:
    """The catalogue, lock and budget of a host of the inventory. Raises BadInput.

    ``given`` takes the place of the data's values; its keys are the fields of `Budget`. ``on_box`` asks the
    host which models lie there beside the catalogue's; pyinfra's ``PyinfraError`` when it cannot be reached.
    """
    found = None
    if on_box:
        with connected(inventory, host) as box_there:
            box = desired(box_there)
            found = tuple(model.counted for model in found_on(box_there, box).models)
    else:
        box = desired(named_host(list(load_inventory(inventory)), host, inventory))
    budget = replace(box.budget, **given)  # type: ignore[arg-type]  # the fields are whole numbers or None
    if budget.models_max == 0:
        # The router takes 0 for no limit at all.
        raise BadInput([Fault("models-max", "0 lets every model be loaded", "write a number or `auto`")])
    if budget.bytes <= 0:
        raise BadInput([Fault("reserve", "leaves nothing for models", "make it smaller")])
    return PlannedBox(box.catalogue, box.lock, budget, found)
