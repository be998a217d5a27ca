"""Refuse before any change: everything that is wrong with the box, in one go."""

from __future__ import annotations

from pyinfra.context import host

from gb10.desired import Desired
from gb10.facts.docker import ImagePresent
from gb10.facts.host_report import HostReport
from gb10.facts.probe import BoxReport
from gb10.faults import BadInput, Fault
from gb10.requirements import box_faults, description_faults, host_faults, watched_ports


def check(box: Desired) -> None:
    """Raise `BadInput` unless this host may become ``box``. Reads only."""
    faults: list[Fault] = description_faults(box)
    report = host.get_fact(HostReport, _sudo=False)
    faults += host_faults(host.name, report, box)
    # Without root or python3 there is no second look; what the first one found says how to get there.
    if report.sudo and report.python:
        deeper = host.get_fact(BoxReport, question={"ports": watched_ports(box)})
        image_is_there = host.get_fact(ImagePresent, image=box.image)
        faults += box_faults(host.name, deeper, box, image_is_there)
    if faults:
        raise BadInput(faults)
