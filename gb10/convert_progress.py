"""What a running conversion on the box, and the build of its image, say of themselves, for people."""

from __future__ import annotations

import json
import re
from typing import Any

from gb10.build_progress import BuildProgress

_PHASES = {"reading": "reading tensors", "writing": "writing", "hash": "sha256"}


# What a command of a build step writes: `#8 12.3 ERROR: No matching distribution found for torch==9`.
_STEP_SAYS = re.compile(r"^#\d+ [0-9.]+ (?P<what>.*\b(ERROR|[Ee]rror|fatal|E|wants CUDA)\b.*)")
_LONGEST = 300


class ApplianceProgress:
    """Reads the build of the appliance. What failed is said by the step itself, long before the build's last
    lines, which repeat the whole step."""

    def __init__(self) -> None:
        self._build = BuildProgress()
        self._said = ""

    def progress(self, lines: list[str]) -> str:
        """The build step."""
        for line in lines:
            if said := _STEP_SAYS.match(line):
                self._said = said["what"]
        return self._build.progress(lines)

    def failure(self, lines: list[str]) -> list[str]:
        """The last error that a step has written, else what the build says of itself, in one line."""
        return [(self._said or (self._build.failure(lines) or ["no output"])[-1])[:_LONGEST]]


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
