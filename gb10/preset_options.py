"""The options that a preset of the pinned llama.cpp may hold, read from a file kept beside the pin.

The router exits with 1 at the first key that it does not know, and it says nothing about a value that is
wrong until the child starts. So every key and value is checked here first, against the list that
``gb10.option_source`` made from the source of the pinned version.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gb10.faults import BadInput, Fault

PRESET_OPTIONS_FILE = Path(__file__).with_name("preset_options.json")
"""The list of the llama.cpp that this repository pins."""

KINDS = ("flag", "bool", "int", "float", "string", "two")
"""``flag`` has no ``--no-`` form, ``bool`` has one; ``two`` takes two values, which a preset cannot hold."""

TRUTHY = frozenset({"on", "enabled", "true", "1"})
FALSEY = frozenset({"off", "disabled", "false", "0"})

GONE: Mapping[str, str] = {
    "mmap": "load-mode = mmap",
    "no-mmap": "load-mode = none",
    "LLAMA_ARG_MMAP": "load-mode = mmap or none",
    "LLAMA_ARG_NO_MMAP": "load-mode = none",
    "mlock": "load-mode = mlock (or mmap+mlock)",
    "LLAMA_ARG_MLOCK": "load-mode = mlock (or mmap+mlock)",
    "direct-io": "load-mode = dio",
    "no-direct-io": "load-mode = none",
    "dio": "load-mode = dio",
    "LLAMA_ARG_DIO": "load-mode = dio",
    "ndio": "load-mode = none",
    "LLAMA_ARG_NO_DIO": "load-mode = none",
}
"""Options that left llama.cpp without a trace in its source, and what took their place."""


@dataclass(frozen=True)
class PresetOption:
    """One option of llama-server as a preset key.

    ``key`` is the name to write, ``names`` are all names that the router takes for it (long, short, negated
    and from the environment), without leading dashes. ``allowed`` is empty where the source lists nothing.
    """

    key: str
    names: tuple[str, ...]
    negated: tuple[str, ...]
    kind: str
    allowed: tuple[str, ...] = ()
    sampling: bool = False
    preset_only: bool = False

    def refuse(self, value: str) -> str | None:
        """Why llama.cpp would not take ``value``, or None."""
        if self.kind == "two":
            return "takes two values, which a preset cannot hold"
        if self.kind in ("flag", "bool") and value not in TRUTHY | FALSEY:
            return "takes true or false"
        if self.kind == "int" and not _is_int(value):
            return "takes a whole number"
        if self.kind == "float" and not _is_float(value):
            return "takes a number"
        if self.allowed and value not in self.allowed:
            return f"takes one of {', '.join(self.allowed)}"
        return None


@dataclass(frozen=True)
class PresetOptions:
    """All options of one llama.cpp. ``removed`` maps a name that is gone to what took its place."""

    ref: str
    commit: str
    options: tuple[PresetOption, ...]
    removed: Mapping[str, str]

    @cached_property
    def by_name(self) -> dict[str, PresetOption]:
        """Every name that the router takes, to its option."""
        return {name: option for option in self.options for name in option.names}

    def find(self, name: str) -> PresetOption | None:
        """The option that the router would take ``name`` for, or None."""
        return self.by_name.get(name)

    def why_unknown(self, name: str) -> tuple[str, str]:
        """For a name that is not an option: what is wrong, and what to do."""
        bare = name.lstrip("-")
        if bare in self.removed:
            return f"llama.cpp {self.ref} has no option `{bare}` any more", f"use {self.removed[bare]}"
        if bare != name and bare in self.by_name:
            return "a preset key has no leading dashes", f"write `{bare}`"
        return f"llama.cpp {self.ref} has no option `{name}`", near_miss(bare, self.by_name)


def near_miss(name: str, candidates: Mapping[str, object] | tuple[str, ...]) -> str:
    """``did you mean `x`?``, or a request to remove the key where nothing comes near."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else "remove it"


def load_preset_options(path: Path = PRESET_OPTIONS_FILE) -> PresetOptions:
    """Read the option list. Raises BadInput when the file is not what ``gb10 pin`` writes."""
    try:
        return preset_options_from(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = Fault(
            str(path), f"not a list of preset options ({error})", "run `gb10 pin` to write it again"
        )
        raise BadInput([fault]) from error


def preset_options_from(data: Mapping[str, object]) -> PresetOptions:
    """The options in ``data``, the object that ``gb10.option_source`` makes and the file holds."""
    rows = data["options"]
    removed = data["removed"]
    if not isinstance(rows, list) or not isinstance(removed, dict):
        raise TypeError("`options` must be a list and `removed` a mapping")
    return PresetOptions(
        ref=str(data["ref"]),
        commit=str(data["commit"]),
        options=tuple(_option_from(row) for row in rows),
        removed={**GONE, **{str(name): str(new) for name, new in removed.items()}},
    )


def _option_from(row: dict[str, object]) -> PresetOption:
    def names(key: str) -> tuple[str, ...]:
        values = row.get(key, [])
        if not isinstance(values, list):
            raise TypeError(f"`{key}` must be a list")
        return tuple(str(value) for value in values)

    if row["kind"] not in KINDS:
        raise ValueError(f"unknown kind {row['kind']}")
    return PresetOption(
        key=str(row["key"]),
        names=names("names"),
        negated=names("negated"),
        kind=str(row["kind"]),
        allowed=names("allowed"),
        sampling=bool(row.get("sampling", False)),
        preset_only=bool(row.get("preset_only", False)),
    )


def _is_int(value: str) -> bool:
    try:
        int(value)
    except ValueError:
        return False
    return True


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
