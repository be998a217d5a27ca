"""Which models lie on the host beside the catalogue's, with their headers: one look for all of them."""

from __future__ import annotations

from typing import Any

from pyinfra.api.host import Host

from gb10.desired import Desired
from gb10.facts.probe import ProbeFact
from gb10.found import FoundOnBox, found_question, read_found


class FoundModels(ProbeFact):
    """GGUF models in a Hugging Face cache and in a flat folder that are none of the catalogue's.

    Question: ``{"cache": folder or "", "folder": folder or "", "known": [{"repo", "file", "size", "sha256"}],
    "paths": [the catalogue's files on the box]}``.

    Answer: ``models``, each with ``name``, ``other`` (a name in case that one is taken), ``place`` (cache or
    folder), ``file`` (below that place), ``paths`` (of all shards), ``bytes``, ``projector`` (below the
    place, or ""), ``projector_bytes`` and ``header`` (as the lock keeps one); and ``passed``: ``name``,
    ``path``, ``bytes`` of that file and ``why`` of what cannot be served.
    """

    program = "found_models.py"


def found_on(host: Host, box: Desired) -> FoundOnBox:
    """What is found on ``host``; nothing, and no question, where the data names no place to look at."""
    question = found_question(box.data, box.catalogue, box.lock)
    if question is None:
        return FoundOnBox()
    answer: dict[str, Any] = host.get_fact(FoundModels, question=question)
    return read_found(answer, box.catalogue)
