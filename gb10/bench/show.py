"""Progress of a bench: a bar on a terminal, plain lines elsewhere. All on standard error."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gb10.printable import LINES, printable


class Progressing:
    """A `gb10.bench.run.Show`. ``total`` is the number of parts that will begin."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=total)
        self._begun = -1
        self._part = ""

    def __enter__(self) -> Progressing:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def part(self, model: str, part: str) -> None:
        self._begun += 1
        self._part = f"{model} {part}"
        self._say(self._part)

    def step(self, text: str) -> None:
        self._say(f"{self._part}: {text}")

    def _say(self, text: str) -> None:
        self._progress.update(self._task, description=escape(printable(text)), completed=self._begun)
        if not self._console.is_terminal:
            self.line(text)

    def line(self, text: str) -> None:
        self._console.print(printable(text, LINES), markup=False, highlight=False, soft_wrap=True)
