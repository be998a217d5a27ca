"""What Docker on the host has."""

from __future__ import annotations

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase


class ImagePresent(FactBase[bool]):
    """True when Docker has the image; False also without Docker."""

    @staticmethod
    def default() -> bool:
        return False

    def command(self, image: str) -> StringCommand:
        return StringCommand(
            "docker",
            "image",
            "inspect",
            "--format",
            "present",
            QuoteString(image),
            "2>/dev/null",
            "||",
            "echo absent",
        )

    def process(self, output: list[str]) -> bool:
        return output[-1] == "present"
