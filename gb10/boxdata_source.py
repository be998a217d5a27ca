"""The way of a box's data in: every fault of it at once, each with the file and line where the key stands."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gb10.boxdata import BoxData, BuildProof, FileSignal, IgnoredDrift, OldLane, PeerSignal
from gb10.faults import BadInput, Fault


def assignments(paths: Iterable[Path], top: Path) -> dict[str, str]:
    """Where each top-level name is set: name to ``file:line``; a later file wins.

    Paths are shown relative to ``top`` where they lie below it. A file that cannot be read or parsed
    is passed over: whoever loads it says so better.
    """
    places: dict[str, str] = {}
    for path in paths:
        try:
            tree = ast.parse(path.read_text())
        except (OSError, SyntaxError):
            continue
        shown = path.relative_to(top) if path.is_relative_to(top) else path
        for node in tree.body:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    places[target.id] = f"{shown}:{node.lineno}"
    return places


def own_data(data: Mapping[str, object], connection_keys: frozenset[str]) -> dict[str, object]:
    """``data`` without pyinfra's own keys: of its connector (ssh_user, ...) and arguments (_sudo, ...)."""
    return {
        key: value for key, value in data.items() if not key.startswith("_") and key not in connection_keys
    }


def _lists_as_tuples(value: object) -> object:
    # Data files are written with lists; the checked data is frozen.
    if isinstance(value, list):
        return tuple(_lists_as_tuples(item) for item in value)
    return value


def read_box_data(
    data: Mapping[str, object],
    *,
    host: str,
    places: Mapping[str, str],
    connection_keys: frozenset[str] = frozenset(),
) -> BoxData:
    """Check the merged data of ``host`` and return it typed.

    ``places`` says where a key is set (see `assignments`), ``connection_keys`` are those that belong
    to pyinfra. Raises `BadInput` with every fault found.
    """
    own = own_data(data, connection_keys)
    clashes = [
        Fault(f"{_place(key, host, places)} {key}", what, "change one of the two")
        for key, what in _clashes(own)
    ]
    try:
        checked = BoxData.model_validate({key: _lists_as_tuples(value) for key, value in own.items()})
    except ValidationError as error:
        raise BadInput([*_faults(error, host, places), *clashes]) from None
    if clashes:
        raise BadInput(clashes)
    return checked


# Environment of the container that must not be set a second time: the lane would serve from the CPU, or
# have its key in the unit file.
_OWN_VARIABLES = {"LLAMA_ARG_DEVICE": "accelerator_device", "LLAMA_API_KEY": "the key is a file on the box"}


def _clashes(own: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Rules over several keys: the key, and what it clashes with. Passes over what has another shape."""
    environment = own.get("lane_environment")
    for variable, key in _OWN_VARIABLES.items():
        if isinstance(environment, Mapping) and variable in environment:
            yield "lane_environment", f"{variable} is set by the deploy itself ({key})"
    port, lane = own.get("lane_port"), own.get("lane_name")
    lanes_out = own.get("lanes_out")
    total, reserve = own.get("memory_total_mib"), own.get("memory_reserve_mib")
    if isinstance(total, int) and isinstance(reserve, int) and reserve >= total:
        yield "memory_reserve_mib", f"{reserve} of {total} MiB in memory_total_mib leaves nothing for models"
    watched = own.get("watch_memory_reserve_mib")
    if isinstance(watched, int) and isinstance(reserve, int) and watched > reserve:
        yield (
            "watch_memory_reserve_mib",
            f"{watched} is more than memory_reserve_mib ({reserve}): a plan that fits would be unloaded",
        )
    models_dir = own.get("models_dir")
    for key in ("models_found_cache", "models_found_folder"):
        found = own.get(key)
        if found and isinstance(found, str) and isinstance(models_dir, str):
            both = {Path(found), Path(models_dir)}
            # A path that is too short has its own fault.
            if min(len(path.parts) for path in both) > 2 and (len(both) == 1 or _nested(*both)):
                yield key, f"{found} and models_dir ({models_dir}) lie in each other"
    for old in lanes_out if isinstance(lanes_out, (list, tuple)) else ():
        if not isinstance(old, Mapping):
            continue
        if "port" in old and old["port"] == port:
            yield "lane_port", f"{port} is also the port of {old.get('unit')} in lanes_out"
        # What lanes_out names is taken out by every deploy.
        for kind, name in (("unit", f"{lane}.service"), ("container", lane)):
            if kind in old and old[kind] == name:
                yield "lane_name", f"the {kind} {name} is listed in lanes_out: it cannot be both"


def _nested(one: Path, other: Path) -> bool:
    return one in other.parents or other in one.parents


def _place(key: str, host: str, places: Mapping[str, str]) -> str:
    return places.get(key, f"data of host {host}")


# What pydantic calls a wrong type, in the words of a data file.
_TYPES = {
    "int_type": ("is not a whole number", "write it without quotes"),
    "string_type": ("is not text", "put it in quotes"),
    "tuple_type": ("is not a list", "write [...], also for a single entry"),
    "dict_type": ("is not a mapping", "write {name: value}"),
    "model_type": ("is not a mapping", "write {name: value}"),
    "model_attributes_type": ("is not a mapping", "write {name: value}"),
}

_BOUNDS = (
    ("ge", "too small", "it must be at least"),
    ("gt", "too small", "it must be more than"),
    ("le", "too large", "it must be at most"),
)


# More keys than anybody forgets: what is missing then is the file that holds them.
MANY_MISSING = 5


def _faults(error: ValidationError, host: str, places: Mapping[str, str]) -> list[Fault]:
    """All faults; missing keys last, for a key that is nearly one of them is why it is missing."""
    details = error.errors(include_url=False)
    missing = [one for one in details if one["type"] == "missing" and len(one["loc"]) == 1]
    faults = [_fault(detail, host, places) for detail in details if detail not in missing]
    if len(missing) <= MANY_MISSING:
        return faults + [_fault(detail, host, places) for detail in missing]
    some = ", ".join(str(one["loc"][0]) for one in missing[:3])
    what = f"{len(missing)} of {len(BoxData.model_fields)} keys are missing ({some}, …)"
    do = "is this the right inventory, and the host in a group that group_data/ describes (gb10)?"
    return [*faults, Fault(f"data of host {host}", what, do)]


def _fault(detail: Any, host: str, places: Mapping[str, str]) -> Fault:
    key = str(detail["loc"][0])
    tags = ("file", "peer") if key == "accelerator_signal" else ()
    location = [str(part) for part in detail["loc"] if part not in (*tags, "[key]")]
    where = f"{_place(key, host, places)} {'.'.join(location)}"
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "union_tag_not_found":
        return Fault(f"{where}.kind", "is missing", "set it to 'file' or 'peer'")
    if kind == "missing":
        if len(location) > 1:
            return Fault(where, "is missing", f"add {location[-1]!r}")
        return Fault(where, "is missing", f"set {key} in group_data or for the host in the inventory")
    if kind == "union_tag_invalid":
        return Fault(f"{where}.kind", f"{context['tag']!r} is not known", "set it to 'file' or 'peer'")
    if kind == "extra_forbidden":
        known = list(BoxData.model_fields) if len(location) == 1 else _nested_keys(key)
        near = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "remove it, or see group_data/all.py for the keys"
        return Fault(where, "is not a known key", hint)
    if kind in _TYPES:
        what, do = _TYPES[kind]
        return Fault(where, f"{given!r} {what}", do)
    if kind == "string_pattern_mismatch":
        return Fault(where, f"{given!r} is not allowed", f"must match {context['pattern']}")
    if kind == "too_short":
        return Fault(where, "is empty", f"name at least {context['min_length']}")
    for bound, what, do in _BOUNDS:
        if bound in context:
            return Fault(where, f"{given} is {what}", f"{do} {context[bound]}")
    message = str(detail["msg"]).removeprefix("Value error, ")
    return Fault(where, f"{given!r} {message[:1].lower()}{message[1:]}", "correct the value")


def _nested_keys(key: str) -> list[str]:
    models: dict[str, tuple[type[BaseModel], ...]] = {
        "lanes_out": (OldLane,),
        "accelerator_signal": (FileSignal, PeerSignal),
        "image_build_proofs": (BuildProof,),
        "drift_ignore": (IgnoredDrift,),
    }
    return [name for model in models.get(key, ()) for name in model.model_fields]
