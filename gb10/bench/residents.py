"""Which models were loaded before, and that they are again afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gb10.bench.router import Router, RouterFault


@dataclass(frozen=True)
class Residents:
    """The models that are loaded, and of those that answer somebody now how many requests."""

    loaded: tuple[str, ...]
    busy: dict[str, int]


def residents(router: Router) -> Residents:
    """Who is there now. Loads and evicts nothing."""
    loaded = tuple(router.loaded())
    busy = {name: count for name in loaded if (count := router.busy(name))}
    return Residents(loaded, busy)


def put_back(router: Router, before: Sequence[str]) -> list[str]:
    """Unload what was not loaded before, load what was; one line for each that failed."""
    faults = []
    try:
        now = router.loaded()
    except RouterFault as error:
        return [f"the models that were loaded before ({', '.join(before) or 'none'}) are not back: {error}"]
    for name in [*(name for name in now if name not in before)]:
        try:
            router.unload(name)
        except RouterFault as error:
            faults.append(f"{name} was not loaded before and still is: {error}")
    for name in [name for name in before if name not in now]:
        try:
            router.load(name)
        except RouterFault as error:
            faults.append(f"{name} was loaded before and is not: {error}")
    return faults
