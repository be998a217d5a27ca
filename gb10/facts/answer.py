"""Does the lane answer, and from where."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from gb10.facts.probe import probe_answer


@dataclass(frozen=True)
class Answer:
    """``state``: answered, idle (no model loaded), wrong (not on the accelerator) or down, with ``reason``.

    When answered: the model, tokens per second as the server measured them, the device and who holds it.
    """

    state: str
    reason: str = ""
    model: str = ""
    tokens_per_second: float = 0.0
    device: str = ""
    holder: str = ""

    def __str__(self) -> str:
        if self.state != "answered":
            return f"{self.state}: {self.reason}"
        return (
            f"{self.model} answered with {self.tokens_per_second:.1f} tok/s on {self.device} ({self.holder})"
        )


def read_answer(output: list[str]) -> Answer:
    """An `Answer` out of what ``gb10_router.py verify`` or ``probe`` printed."""
    said = probe_answer(output)
    try:
        return Answer(**said)
    except TypeError:
        # The program there may be that of an earlier deploy.
        return Answer("down", "the program on the host answered in another shape: run the deploy again")


class LaneAnswer(FactBase[Answer]):
    """One short chat with a model that is loaded already. Loads and evicts nothing.

    A program or a description that was damaged on the host means a lane that does not answer: as a fact that
    fails it would end the deploy before the stage that puts both right.
    """

    @staticmethod
    def default() -> Answer:
        return Answer("down", "there is no lane yet")

    def command(self, program: str, lane: str) -> StringCommand:
        run = StringCommand("python3", QuoteString(program), QuoteString(lane), "probe")
        there = StringCommand("[", "-e", QuoteString(program), "-a", "-e", QuoteString(lane), "]")
        return StringCommand("if", there, "; then", run, "|| true; fi")

    def process(self, output: list[str]) -> Answer:
        try:
            return read_answer(output)
        except FactProcessError as error:
            return Answer("down", str(error))
