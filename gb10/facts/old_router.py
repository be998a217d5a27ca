"""A router that was set up by hand, as it is on a host."""

from __future__ import annotations

from gb10.facts.probe import ProbeFact


class OldRouter(ProbeFact):
    """The unit and the container of whoever serves on a port, or a file of the host.

    Question: ``{"port": 10103, "unit": name or ""}``. Answer: ``unit`` (name or empty), ``text`` (the unit
    with its drop-ins, or empty) and ``inspect`` (null, or ``container``, Docker's answer, and
    ``image_environment``). Question: ``{"read": path}``. Answer: ``content``, the text of that file or null.
    """

    program = "old_router.py"
