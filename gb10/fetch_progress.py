"""What the downloader on the box says of itself, for people."""

from __future__ import annotations

import json
from typing import Any

CUT_OFF = "it did not come to its end; what has come is kept: {again}, and it goes on from there"


class FetchProgress:
    """Reads the JSON lines of ``files/gb10_fetch.py``."""

    def __init__(self, again: str = "run the deploy again") -> None:
        self._again = again
        self._files: dict[str, dict[str, Any]] = {}
        self._word = ""
        self._trouble: dict[str, str] = {}  # why a file is being tried again, until more of it has come

    def progress(self, lines: list[str]) -> str:
        """``2 files, 41 %, 110.0 MB/s, about 3:20 left``, or nothing yet."""
        for line in lines:
            event = _event(line)
            kind = event.get("event")
            if kind == "progress":
                self._note_progress(event)
            elif kind in ("done", "used-in-place", "error"):
                self._files.pop(str(event.get("file")), None)
                self._trouble.pop(str(event.get("file")), None)
                self._word = _sentence(event)
                if kind == "error":  # why is said once, at the end
                    self._word = f"{event.get('file') or 'the files'}: failed"
            elif kind in ("waiting", "note", "held"):
                self._word = _sentence(event)
            elif kind == "retry":
                self._trouble[str(event.get("file"))] = _sentence(event)
        trouble = "; ".join(self._trouble.values())
        if not self._files:
            return trouble or self._word
        done = sum(event.get("done") or 0 for event in self._files.values())
        size = sum(event.get("size") or 0 for event in self._files.values())
        speed = sum(event.get("bytes_per_second") or 0 for event in self._files.values())
        names = ", ".join(sorted(name.rpartition("/")[2] for name in self._files))
        left = ""
        if speed > 0:
            seconds = int((size - done) / speed)
            left = f", {speed / 1e6:.1f} MB/s, about {seconds // 60}:{seconds % 60:02d} left"
        trouble = f"; {trouble}" if trouble else ""
        return f"{names}: {100 * done // max(size, 1)} % of {size / 1e9:.1f} GB{left}{trouble}"

    def _note_progress(self, event: dict[str, Any]) -> None:
        name = str(event.get("file"))
        before = self._files.get(name, {}).get("done") or 0
        if (event.get("done") or 0) > before:
            self._trouble.pop(name, None)
        self._files[name] = event

    def failure(self, lines: list[str]) -> list[str]:
        """The downloader's own error lines; where it did not come to speak, what is not in its words."""
        errors = [_sentence(event) for line in lines if (event := _event(line)).get("event") == "error"]
        return errors or [line for line in lines if not _event(line)] or [CUT_OFF.format(again=self._again)]


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _sentence(event: dict[str, Any]) -> str:
    if "message" in event:
        return str(event["message"])
    if event["event"] == "retry":
        return f"again in {event.get('wait_seconds') or 0:.0f} s: {event.get('reason')}"
    if event["event"] == "waiting":
        return f"another run is fetching ({event.get('holder')})"
    verb = {"done": "fetched", "used-in-place": "already on the box"}[event["event"]]
    return f"{event.get('file')}: {verb}"
