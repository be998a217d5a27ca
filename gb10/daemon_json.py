"""Docker's daemon.json: what we want goes in, everything else that stands there is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gb10.faults import BadInput, Fault

PATH = "/etc/docker/daemon.json"


def merge(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """``current`` with ``wanted`` laid over it; objects are merged key by key, all else is replaced."""
    merged = dict(current)
    for key, value in wanted.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def merged_text(host: str, text: str | None, wanted: Mapping[str, Any]) -> str:
    """Content for daemon.json. The old text stays to the letter when it already says what is wanted.

    ``text`` is the file as it is, None where there is none. Raises `BadInput` when it is no JSON object:
    a file that Docker itself cannot read is nothing to overwrite.
    """
    try:
        current = json.loads(text) if text and text.strip() else {}
        if not isinstance(current, dict):
            raise ValueError("it is not an object")
    except ValueError as error:
        raise BadInput(
            [Fault(f"{host}:{PATH}", f"not valid JSON ({error})", "correct it by hand first")]
        ) from None
    merged = merge(current, wanted)
    if text is not None and merged == current:
        return text
    return json.dumps(merged, indent=2) + "\n"
