"""Tool-calling scenarios: does a model call the right tool, with the right arguments, and use what comes
back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from gb10.bench.answers import spoken
from gb10.bench.result import Verdict
from gb10.bench.router import Router

ANSWER_TOKENS = 2048
# Of a call that a model has made up: not JSON, not this shape, too deep.
_NO_CALL = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tool(_Part):
    """A function as the model is told of it; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Call(_Part):
    """A call that must come. A list below ``{"any": [...]}`` in place of an argument's value allows each of
    its values; ``optional`` arguments may be there with any value. ``result`` is what the tool then says."""

    name: str
    arguments: dict[str, Any]
    optional: list[str] = []
    result: str


class Step(_Part):
    """One answer of the model. ``user`` is said before it. With ``calls`` it must make these and no others,
    in any order; without, it must answer, and each of ``text`` must stand in the answer, one of a list's
    texts. ``pairs``: names, and what must be said of each of them, one of the texts."""

    user: str | None = None
    calls: list[Call] = []
    text: list[str | list[str]] = []
    pairs: dict[str, list[str]] = {}


class Scenario(_Part):
    """A conversation. The first step has what the user asks."""

    name: str
    system: str | None = None
    tools: list[Tool]
    steps: list[Step]


def play(router: Router, model: str, scenario: Scenario, tokens: int = ANSWER_TOKENS) -> Verdict:
    """Play a scenario up to the first step that goes wrong. Raises `RouterFault` where no answer comes."""
    begun = time.perf_counter()
    messages: list[dict[str, Any]] = []
    if scenario.system:
        messages.append({"role": "system", "content": scenario.system})
    tools = [{"type": "function", "function": tool.model_dump()} for tool in scenario.tools]
    why = ""
    for number, step in enumerate(scenario.steps, 1):
        if step.user:
            messages.append({"role": "user", "content": step.user})
        message = router.chat(model, messages, tokens, tools=tools)
        why = wrong(step, message)
        if why:
            why = f"step {number}: {why}"
            break
        messages += turn(step, message)
    return Verdict(passed=not why, why=why, seconds=round(time.perf_counter() - begun, 2))


def wrong(step: Step, message: Mapping[str, Any]) -> str:
    """What is wrong with the model's answer, or an empty text."""
    try:
        made = [_call(call) for call in message.get("tool_calls") or ()]
    except _NO_CALL:
        return "a tool call that is no JSON object"
    if not step.calls:
        if made:
            return f"it calls {made[0][0]}, where it should answer"
        return _missing(step, spoken(str(message.get("content") or "")))
    if not made:
        return f"it does not call {step.calls[0].name}"
    left = list(step.calls)
    for name, arguments in made:
        fitting = [call for call in left if call.name == name and not differs(call, arguments)]
        if fitting:
            left.remove(fitting[0])
            continue
        named = [call for call in left if call.name == name]
        if named:
            return f"{name}: {differs(named[0], arguments)}"
        return f"it calls {name}, where it should not"
    return f"it does not call {left[0].name} with {json.dumps(left[0].arguments)}" if left else ""


def differs(call: Call, arguments: Mapping[str, Any]) -> str:
    """How the arguments differ from what they should be, or an empty text."""
    for key, value in call.arguments.items():
        if key not in arguments:
            return f"no argument {key}"
        if not same(value, arguments[key]):
            return f"{key} is {json.dumps(arguments[key])[:80]}, not {json.dumps(value)}"
    extra = [key for key in arguments if key not in call.arguments and key not in call.optional]
    return f"an argument {extra[0]} that nobody asked for" if extra else ""


def same(wanted: object, given: object) -> bool:
    """Equal, but for case and blanks at the ends of a text, and 3 is 3.0. ``{"any": [...]}``: one of
    these."""
    if isinstance(wanted, dict) and set(wanted) == {"any"}:
        return any(same(one, given) for one in wanted["any"])
    if isinstance(wanted, str) and isinstance(given, str):
        return wanted.strip().casefold() == given.strip().casefold()
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    if isinstance(wanted, dict) and isinstance(given, dict):
        return wanted.keys() == given.keys() and all(same(wanted[key], given[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(given, list):
        return len(wanted) == len(given) and all(map(same, wanted, given))
    return wanted == given


def turn(step: Step, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that a right answer adds: the model's own, and the results of its calls."""
    said: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    calls = message.get("tool_calls") or []
    if not step.calls or not calls:
        return [said]
    results = []
    left = list(step.calls)
    for call in calls:
        name, arguments = _safe_call(call)
        found = next((one for one in left if one.name == name and not differs(one, arguments)), None)
        if found is not None:
            left.remove(found)
            results.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": found.result})
    return [{**said, "tool_calls": calls}, *results]


def _missing(step: Step, content: str) -> str:
    text = " ".join(content.split()).casefold()
    if not text:
        return "an empty answer"
    for one in step.text:
        choices = [one] if isinstance(one, str) else one
        if not _places(choices, text):
            return f"the answer does not say {' or '.join(choices)}"
    named = {name: _places([name], text) for name in step.pairs}
    values = {name: _places(choices, text) for name, choices in step.pairs.items()}
    for name, choices in step.pairs.items():
        if not named[name] or not values[name]:
            return f"the answer does not say {name}, and {' or '.join(choices)}"
    # Whichever comes first in a pair, the pairs come in one order. The names may stand above all of them.
    orders = [sorted(named, key=lambda name: named[name][which]) for which in (0, -1)]
    if sorted(values, key=lambda name: values[name][0]) not in orders:
        return f"the answer has {' and '.join(step.pairs)} the wrong way round"
    return ""


def _places(choices: Sequence[str], text: str) -> list[int]:
    """Where the choices stand in a text, each as a word or a number of its own."""
    return sorted(match.start() for choice in choices for match in _alone(choice.casefold()).finditer(text))


def _alone(choice: str) -> re.Pattern[str]:
    before = after = ""
    # 23 is neither in 230 nor in 1,23 nor in -23, but it is in 23.00 and in 23°C, and 55.4 in 55.40.
    if choice[0].isdigit():
        before = r"(?<!\d)(?<!\d[.,:])(?<!(?<!\w)-)"
    elif choice[0].isalpha():
        before = r"(?<!\w)"
    if choice[-1].isdigit():
        after = (r"0*" if "." in choice else r"(?:[.,]0+)?") + r"(?!\d|[.,:]\d)"
    elif choice[-1].isalpha():
        after = r"(?!\w)"
    return re.compile(before + re.escape(choice) + after)


def _call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    function = call["function"]
    arguments = function["arguments"]
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(found, dict):
        raise ValueError(arguments)
    return str(function["name"]), found


def _safe_call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    try:
        return _call(call)
    except _NO_CALL:
        return "", {}
