"""What a running conversion on the box says of itself, for people."""

from __future__ import annotations

import json
from typing import Any

_PHASES = {"reading": "reading tensors", "writing": "writing", "hash": "sha256"}


class ConvertProgress:
    """Reads the JSON lines of ``files/gb10_convert.py``, and passes over the converter's own between them."""

    def __init__(self) -> None:
        self._word = "starting the converter"

    def progress(self, lines: list[str]) -> str:
        """``reading tensors 120/300, 40 %``, ``writing, 55 %``."""
        for line in lines:
            event = _event(line)
            if event.get("event") == "progress":
                self._word = _sentence(event)
        return self._word

    def failure(self, lines: list[str]) -> list[str]:
        """The program's own error; where it did not come to speak, the last line of what is there."""
        errors = [
            str(event.get("message")) for line in lines if (event := _event(line)).get("event") == "error"
        ]
        return errors or [line for line in lines if line.strip()][-1:] or ["it did not come to its end"]


def _sentence(event: dict[str, Any]) -> str:
    done, size = int(event.get("done") or 0), int(event.get("size") or 0)
    share = f"{min(100, 100 * done // max(size, 1))} %"
    counted = f" {done}/{size}" if event.get("phase") == "reading" else ""
    return f"{_PHASES.get(str(event.get('phase')), 'working')}{counted}, {share}"


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
