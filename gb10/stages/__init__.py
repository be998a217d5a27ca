"""The stages of the deploy, and which of them a run has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps

from gb10.desired import Desired
from gb10.faults import BadInput, Fault

VARIABLE = "GB10_STAGES"
NOTED = "GB10_NOTED"  # what `gb10 drift --fix` has shown and no stage puts right: the record takes note of it
NAMES = ("lanes", "toolkit", "image", "models", "router", "verify", "watch")
# What a stage may leave undone without the ones behind it: Docker's restart ends the lane, say.
FOLLOWED_BY = {"toolkit": ("router",), "image": ("router",), "models": ("router",)}


def with_followers(stages: Sequence[str]) -> list[str]:
    """``stages`` and those that must come after them, in the order of a deploy."""
    wanted = {*stages, *(after for stage in stages for after in FOLLOWED_BY.get(stage, ()))}
    return [name for name in NAMES if name in wanted]


def chosen() -> list[str] | None:
    """The stages that the environment's GB10_STAGES names (comma between), None for all. Raises
    `BadInput`."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    wrong = sorted(set(named) - set(NAMES))
    if wrong:
        fault = Fault(VARIABLE, f"there is no stage {', '.join(wrong)}", f"choose of {', '.join(NAMES)}")
        raise BadInput([fault])
    return [*with_followers(named), "verify"] if named else None


def noted() -> list[str]:
    """The differences that a run of some stages takes note of, as `gb10 drift` names them (comma between)."""
    return [name.strip() for name in os.environ.get(NOTED, "").split(",") if name.strip()]


def stage(name: str) -> Callable[[Callable[[Desired], None]], Callable[[Desired], None]]:
    """A stage of the deploy: it does nothing in a run that is for others."""

    def decorated(run: Callable[[Desired], None]) -> Callable[[Desired], None]:
        @wraps(run)
        def whole(box: Desired) -> None:
            wanted = chosen()
            if wanted is None or name in wanted:
                run(box)

        return whole

    return decorated
