"""What Docker on the host has."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

# $1 image, $2 its proof: the image's id or nothing, then what was proven of which id, or nothing.
_LOOK = (
    'docker image inspect --format "{{.Id}}" "$1" 2>/dev/null || echo none; '
    r"""grep -oE '"(id|expectation)": "[0-9a-f:sha]*"' "$2" 2>/dev/null | head -n 2 | cut -d '"' -f 2,4"""
)


class ImageState(FactBase[str]):
    """``absent``, ``unproven`` (no proof of what is expected now is kept, or it is of another image),
    ``proven``.

    ``absent`` also without Docker.
    """

    @staticmethod
    def default() -> str:
        return "absent"

    def command(self, image: str, folder: str, expectation: str = "") -> StringCommand:
        self.expectation = expectation
        proof = f"{folder}/proof.json"
        return StringCommand("sh", "-c", QuoteString(_LOOK), "-", QuoteString(image), QuoteString(proof))

    def process(self, output: list[str]) -> str:
        there, *lines = [line.strip() for line in output]
        proven = dict(line.split('"', 1) for line in lines if '"' in line)
        if not there.startswith("sha256:"):
            return "absent"
        return "proven" if proven == {"id": there, "expectation": self.expectation} else "unproven"


def _list_command(program: str, description: str, *more: str) -> str:
    """``PROGRAM DESCRIPTION list``; nothing where a deploy has not put both there yet."""
    run = shlex.join(["python3", program, description, "list", *more])
    there = f"[ -e {shlex.quote(program)} -a -e {shlex.quote(description)} ]"
    return f"if {there}; then {run} || echo no answer; fi"


class Images(FactBase[list[dict[str, Any]] | None]):
    """All images of the lane's name, newest first, as ``gb10_image.py list`` says; [] before it is there.
    None when it does not say: Docker is down.

    ``whole``: with the servers' help texts in their proofs, some 40 kB each.
    """

    @staticmethod
    def default() -> list[dict[str, Any]]:
        return []

    def command(self, program: str, description: str, whole: bool = False) -> str:
        return _list_command(program, description, *(["whole"] if whole else []))

    def process(self, output: list[str]) -> list[dict[str, Any]] | None:
        try:
            return list(json.loads("\n".join(output))["images"]) if output else []
        except (ValueError, KeyError, TypeError):
            return None


class Generations(FactBase[dict[str, Any] | None]):
    """The lanes that answered, as ``gb10_generations.py list`` says; none before it is there. None when it
    does not say.

    ``{"current": number, "served": numbers, "going_to": number, "next": number, "damaged": numbers,
    "installed": digest, "generations": [...], "changes": [...]}``
    """

    @staticmethod
    def default() -> dict[str, Any]:
        return {
            "current": 0,
            "served": [],
            "going_to": 0,
            "next": 0,
            "damaged": [],
            "installed": "",
            "generations": [],
            "changes": [],
        }

    def command(self, program: str, lane: str) -> str:
        return _list_command(program, lane)

    def process(self, output: list[str]) -> dict[str, Any] | None:
        try:
            return self.default() | (dict(json.loads("\n".join(output))) if output else {})
        except (ValueError, TypeError):
            return None
