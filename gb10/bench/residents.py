"""Which models were loaded before, and that they are again afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gb10.bench.router import LOADED, RESIDENT, Router, RouterFault

WAIT_SECONDS = 15.0
AGAIN_SECONDS = 0.5


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


def alone(router: Router, but: Collection[str] = ()) -> None:
    """Nobody else is answered now, by any model ``but`` these: a figure of two is none. What is short, a look
    of the watch, is waited for. Raises `RouterFault`."""

    def busy() -> list[str]:
        return [name for name, count in residents(router).busy.items() if count and name not in but]

    if names := _still(busy):
        raise RouterFault(f"{', '.join(names)} answers somebody else: a figure would be of both")


def unused(router: Router, model: str) -> None:
    """``model`` answers nobody now, or not for long. Raises `RouterFault`."""
    if _still(lambda: [model] if router.busy(model) else []):
        raise RouterFault("it answers somebody")


def _still(busy: Callable[[], list[str]]) -> list[str]:
    """Who is still busy after a while."""
    until = time.perf_counter() + WAIT_SECONDS
    while (names := busy()) and time.perf_counter() < until:
        time.sleep(AGAIN_SECONDS)
    return names


def put_back(router: Router, before: Sequence[str]) -> list[str]:
    """Unload what was not loaded before, load what was; one line for each that is not as it was.

    A model that is on its way is waited for, never cut off, and one that answers somebody stays. What counts
    is what the router says in the end: a load can push another one out, and a client may have loaded one.
    """
    reasons: dict[str, str] = {}
    try:
        extra = [name for name in router.loaded() if name not in before]
        for name in extra:
            with _noted(reasons, name):
                unused(router, name)
                router.unload(name)
        for name in before:
            with _noted(reasons, name):
                if name not in router.loaded() or router.settle(name).value not in RESIDENT:
                    router.load(name)
        states = router.states()
        now = {name for name, state in states.items() if state.value in RESIDENT}
    except RouterFault as error:
        return [f"the models that were loaded before ({', '.join(before) or 'none'}) are not back: {error}"]
    return [
        *(f"{name} was not loaded before and still is: {reasons[name]}" for name in extra if name in reasons),
        # The watch calls that one dead.
        *(
            f"{name} did not end when it was unloaded, and was killed: its next request loads it again"
            for name in extra
            if name in states and states[name].failed and name not in now
        ),
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
