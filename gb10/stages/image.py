"""The image: llama.cpp at one commit, built on the box, named by the hash of all that goes into it."""

from __future__ import annotations

from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.build_progress import BuildProgress
from gb10.desired import Desired
from gb10.facts.docker import ImageState
from gb10.facts.shared import look
from gb10.operations import Commands, detached, placed
from gb10.stages import corrections, stage


@stage("image")
def build(box: Desired) -> None:
    """Nothing where the image is there and proven already."""
    for program in ("gb10_gate.py", "gb10_image.py"):
        placed.file(name=f"image: {program}", placed=box.program_files[program])
    placed.file(name="image: Dockerfile", placed=box.dockerfile_file)
    placed.file(name="image: description", placed=box.image_file)
    corrections.tag(name="image: the tag is the deploy's", box=box)
    built(name=f"image: {box.image}", box=box)


def image_job(box: Desired, verb: str) -> detached.Job:
    """``build`` or ``prove`` as a job that outlives the connection. One job a tag: a second run joins it."""
    tag = box.image.rpartition(":")[2]
    return detached.Job(
        title=f"build of {box.image}" if verb == "build" else f"proof of {box.image}",
        unit=f"gb10-image-{tag}.service",
        folder=box.image_folder,
        command=("python3", box.program_files["gb10_image.py"].path, box.image_file.path, verb),
    )


@operation()
def built(box: Desired) -> Commands:
    """Docker has the image and every proof of it holds. The tag is the last thing that a build makes."""
    state = look(
        host, ImageState, image=box.image, folder=box.image_folder, expectation=box.image_expectation
    )
    if state != "proven":
        # One that came from a file only has to prove itself; one that is no build of ours is built then.
        verb = "build" if state == "absent" else "prove"
        yield from detached.commands(image_job(box, verb), BuildProgress())
