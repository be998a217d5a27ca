"""Which model files are on the host, by the downloader's own eyes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from gb10.facts.probe import probe_answer


class ModelFiles(FactBase[dict[str, Any]]):
    """The answer of ``gb10_fetch.py --check``: ``ok`` (bool), ``files``, each with ``path``, ``state`` and
    ``closed`` (the file or folders above it that the server's user may not read), and ``shortage``: which
    disk lacks how much room, or an empty text.

    Cheap: names, sizes and what was verified before; no model file is read. The program is sent along, so
    that the answer is about the manifest of now and not about the one that the last deploy left there.
    """

    @staticmethod
    def default() -> dict[str, Any]:
        # No answer: let the downloader itself say what is wrong.
        return {"ok": False, "files": [], "shortage": ""}

    def command(self, program: str, manifest: Mapping[str, Any]) -> StringCommand:
        question = QuoteString(json.dumps(manifest))
        check = StringCommand("python3", "-I", "-c", QuoteString(program), "--check", "/dev/stdin")
        return StringCommand("printf", "%s", question, "|", check, "|", "tr", "-d", QuoteString("\n"))

    def process(self, output: list[str]) -> dict[str, Any]:
        answer: dict[str, Any] = probe_answer(output)
        return answer
