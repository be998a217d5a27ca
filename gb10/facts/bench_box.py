"""What a bench was run on: the fact behind the head of a result file."""

from __future__ import annotations

from gb10.facts.probe import ProbeFact


class BenchBox(ProbeFact):
    """The lane's image, the presets on the box and the driver.

    Question: ``{"lane": container, "presets": path}``. Answer: ``image`` (name and tag) and ``image_id`` of
    the running container, ``presets`` (sha256 of the file), ``driver`` (the GPU driver's version); each an
    empty text where the box does not say.
    """

    program = "bench_box.py"
