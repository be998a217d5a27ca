"""What a running `docker build` says of itself, for people."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_STEP = re.compile(r"^#\d+ \[(?P<step>[^\]]+\d+/\d+)\] (?P<what>.*)")
_LAST = re.compile(r"^gb10: the last build took (?P<seconds>\d+) s")
_NINJA = re.compile(r"^#\d+ (?P<at>[0-9.]+) \[(?P<done>\d+)/(?P<all>\d+)\] ")
# How Docker says that a step failed, behind the step's whole command.
_STATUS = re.compile(r"did not complete successfully: exit code: \d+")
# How BuildKit says which step failed; others, whose output begins with another number, were cut off by that.
_FAILED = re.compile(r"^#(\d+) ERROR: ")
_OUTPUT = re.compile(r"^#(\d+) ")
# In front of a line of output: the step's number and its seconds, or the seconds alone.
_OWN_TIME = re.compile(r"^(#\d+ )?\d+\.\d+ ")
# Docker's and the compilers' words for what went wrong.
_TELLING = re.compile(r"error|fatal|failed|not found|No space left|cannot", re.IGNORECASE)


class BuildProgress:
    """Reads plain BuildKit output with ninja's ``[done/all]`` in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = ""
        # Seconds of the step by Docker's count: who joins a build reads all that was compiled before at once.
        self._at = 0.0
        self._first: tuple[float, int] | None = None
        self._done = self._all = 0
        self._began = clock()
        self._last_seconds = 0

    def progress(self, lines: list[str]) -> str:
        """``compiling 120/300, 40 %, about 3:10 left``, or the build step, or nothing yet."""
        for line in lines:
            if last := _LAST.match(line):
                self._last_seconds = int(last["seconds"])
            elif step := _STEP.match(line):
                self._step = f"step {step['step']}: {step['what'][:60]}"
                self._all = 0
            elif ninja := _NINJA.match(line):
                self._at = float(ninja["at"])
                self._done, total = int(ninja["done"]), int(ninja["all"])
                if total != self._all:
                    self._all, self._first = total, (self._at, self._done)
        if not self._all:
            return f"{self._step}{self._left_as_last_time()}" if self._step else ""
        return f"compiling {self._done}/{self._all}, {100 * self._done // self._all} %{self._left()}"

    def _left(self) -> str:
        assert self._first is not None
        began, first = self._first
        steps = self._done - first
        if steps < 5:
            return self._left_as_last_time()
        seconds = int((self._at - began) / steps * (self._all - self._done))
        return f", about {_clock(seconds)} left"

    def _left_as_last_time(self) -> str:
        """From the last build's time; nothing when this one has taken longer, or there was none."""
        seconds = self._last_seconds - (self._clock() - self._began)
        return f", about {_clock(int(seconds))} left if it goes as the last one" if seconds > 0 else ""

    def failure(self, lines: list[str]) -> list[str]:
        """The lines of the step that failed which name an error, and its last ones, each once and not without
        end, then its exit status; or the last lines of all."""
        telling = [
            line
            for line in _of_the_failed_step(lines)
            if _TELLING.search(line) and not _NINJA.match(line) and not _STATUS.search(line)
        ]
        shown = dict.fromkeys(_OWN_TIME.sub("", line)[:300] for line in telling + _last_words(lines))
        status = [found[0] for line in lines if (found := _STATUS.search(line))]
        return [*list(shown)[-12:], *status[-1:]] or lines[-12:]


def _of_the_failed_step(lines: list[str]) -> list[str]:
    """Without the output of other steps, where BuildKit says which one failed."""
    failed = {found[1] for line in lines if (found := _FAILED.match(line))}
    if not failed:
        return lines
    return [line for line in lines if not (found := _OUTPUT.match(line)) or found[1] in failed]


def _last_words(lines: list[str]) -> list[str]:
    """What Docker shows again of the step that failed: between its heading and a rule."""
    heading = next((number for number, line in enumerate(lines) if line.startswith(" > [")), len(lines))
    rule = next((number for number in range(heading, len(lines)) if lines[number].startswith("---")), heading)
    return [line for line in lines[heading + 1 : rule] if _OWN_TIME.sub("", line).strip()][-5:]


def _clock(seconds: int) -> str:
    return f"{seconds // 60}:{seconds % 60:02d}"
