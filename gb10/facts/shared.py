"""One look for everybody who asks the same of a host, as long as nothing on it has been changed.

pyinfra sends a command for each fact that is asked for, also for the same one again. A plan changes nothing,
so an answer stays true for all of it; while a deploy executes, it stays true until an operation has run
commands. An operation reads before its own first command.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host

Answer = TypeVar("Answer")
_PLACE = "gb10_looks"  # in pyinfra's own place for what belongs to one connection


def look(host: Host, fact: type[FactBase[Answer]], **question: Any) -> Answer:
    """``host.get_fact(fact, **question)``, from an earlier look where nothing has been changed since."""
    looks = _looks(host)
    if looks is None:
        return host.get_fact(fact, **question)
    key = _key(fact, question)
    if key not in looks:
        looks[key] = host.get_fact(fact, **question)
    answer: Answer = looks[key]
    return answer


def known(host: Host, fact: type[FactBase[Answer]], answer: Answer, **question: Any) -> None:
    """`look` has ``answer`` to this question now: a wider look has brought it along."""
    looks = _looks(host)
    if looks is not None:
        looks.setdefault(_key(fact, question), answer)


def _key(fact: type, question: dict[str, Any]) -> tuple[str, str]:
    return fact.__name__, json.dumps(question, sort_keys=True, default=str)


def _looks(host: Host) -> dict[Any, Any] | None:
    """The answers that are still true; None where nobody can say (a host without a state)."""
    data, state = getattr(host, "connector_data", None), getattr(host, "state", None)
    if data is None or state is None:
        return None
    done = [op.operation_meta for op in state.ops.get(host, {}).values()]
    # The plan is one time; then each operation that has run something begins another.
    time = (state.is_executing, sum(meta.is_complete() and meta.executed for meta in done))
    kept = data.get(_PLACE)
    if kept is None or kept[0] != time:
        kept = data[_PLACE] = (time, {})
    looks: dict[Any, Any] = kept[1]
    return looks
