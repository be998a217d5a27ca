"""One shape for everything that is wrong with what we were given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyinfra.api.exceptions import PyinfraError

from gb10.printable import printable


@dataclass(frozen=True)
class Fault:
    """One fault: where it is (``file:line key``), what is wrong, and what to do about it."""

    where: str
    what: str
    do: str

    def __str__(self) -> str:
        # A name that somebody chose on the box may stand in it.
        return printable(f"{self.where}: {self.what}: {self.do}")


class BadInput(PyinfraError):
    """All faults of one input, found before anything was changed.

    It is a pyinfra error so that ``pyinfra`` itself prints it without a traceback and exits with 1.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        count = len(self.faults)
        lines = "\n".join(f"  {fault}" for fault in self.faults)
        super().__init__(f"nothing was changed, {count} fault{'s' if count != 1 else ''} found:\n{lines}")
