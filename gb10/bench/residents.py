"""Which models were loaded before, and that they are again afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gb10.bench.router import LOADED, RESIDENT, Router, RouterFault


@dataclass(frozen=True)
class Residents:
    """The models that are loaded, and of those that answer somebody now how many requests; None: it does not
    say."""

    loaded: tuple[str, ...]
    busy: dict[str, int | None]


def residents(router: Router) -> Residents:
    """Who is there now. Loads and evicts nothing."""
    states = router.states()
    # One that sleeps or is on its way answers nobody yet.
    counts = {name: router.busy(name) for name, state in states.items() if state.value == LOADED}
    return Residents(tuple(router.loaded()), {name: count for name, count in counts.items() if count != 0})


def put_back(router: Router, before: Sequence[str]) -> list[str]:
    """Unload what was not loaded before, load what was; one line for each that is not as it was.

    A model that is on its way is waited for, never cut off. What counts is what the router says in the end: a
    load can push another one out, and a client may have loaded one itself.
    """
    reasons: dict[str, str] = {}
    try:
        extra = [name for name in router.loaded() if name not in before]
        for name in extra:
            with _noted(reasons, name):
                router.unload(name)
        for name in before:
            with _noted(reasons, name):
                if name not in router.loaded() or router.settle(name).value not in RESIDENT:
                    router.load(name)
        now = {name for name, state in router.states().items() if state.value in RESIDENT}
    except RouterFault as error:
        return [f"the models that were loaded before ({', '.join(before) or 'none'}) are not back: {error}"]
    return [
        *(f"{name} was not loaded before and still is: {reasons[name]}" for name in extra if name in reasons),
        *(
            f"{name} was loaded before and is not: {reasons.get(name, 'another one has taken its place')}"
            for name in before
            if name not in now
        ),
    ]


@contextmanager
def _noted(reasons: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except RouterFault as error:
        reasons[name] = str(error)
