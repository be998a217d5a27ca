"""Refuse before any change: everything that is wrong with the box, in one go."""

from __future__ import annotations

from dataclasses import replace

from pyinfra.context import host

from gb10 import conversion
from gb10.desired import Desired
from gb10.facts.docker import ImageState
from gb10.facts.drift import foresee
from gb10.facts.found import found_on
from gb10.facts.host_report import HostReport
from gb10.facts.models import ModelFiles
from gb10.facts.probe import BoxReport
from gb10.facts.shared import look
from gb10.faults import BadInput, Fault
from gb10.operations import deploy_lock
from gb10.requirements import box_faults, description_faults, host_faults, watched_ports


def check(box: Desired) -> Desired:
    """``box`` with the models that are found on this host. Raises `BadInput` unless the host may become it.

    Reads only.
    """
    report = host.get_fact(HostReport, _sudo=False)
    faults: list[Fault] = list(host_faults(host.name, report, box))
    # Without root or python3 there is no second look; what the first one found says how to get there.
    if report.sudo and report.python:
        box = replace(box, found=found_on(host, box).models)
        question = {"ports": watched_ports(box), "calendar": box.data.drift_calendar}
        deeper = host.get_fact(BoxReport, question=question)
        # A Docker that hangs would not answer this either, and the reason be never said.
        image_is_there = (
            bool(deeper["docker"])
            and look(
                host, ImageState, image=box.image, folder=box.image_folder, expectation=box.image_expectation
            )
            != "absent"
        )
        faults += box_faults(host.name, deeper, box, image_is_there)
        program = box.program_files["gb10_fetch.py"].content
        files = look(host, ModelFiles, program=program, manifest=box.fetch_manifest)
        if files["shortage"]:
            faults.append(
                Fault(host.name, files["shortage"], "make room, or take a model out of the catalogue")
            )
        faults += conversion.box_faults(host.name, box.catalogue, box.fetch_manifest, files["files"])
    faults = description_faults(box) + faults
    if faults:
        raise BadInput(faults)
    return box


def hold(box: Desired) -> None:
    """The box is this deploy's alone until it ends, or its connection does."""
    foresee(host, box)
    deploy_lock.held(name="preflight: no other deploy", box=box)
