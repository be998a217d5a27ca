"""The image: llama.cpp at one commit, built on the box, named by the hash of all that goes into it."""

from __future__ import annotations

from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.build_progress import BuildProgress
from gb10.desired import Desired
from gb10.facts.docker import ImagePresent
from gb10.facts.shared import look
from gb10.operations import Commands, detached, placed
from gb10.stages import corrections, stage


@stage("image")
def build(box: Desired) -> None:
    """Nothing where the tag is there already."""
    placed.file(name="image: Dockerfile", placed=box.dockerfile_file)
    corrections.tag(name="image: the tag is the deploy's", box=box)
    built(name=f"image: {box.image}", box=box)


def build_job(box: Desired) -> detached.Job:
    """The build as a job that outlives the connection. One job a tag: a second run joins it."""
    tag = box.image.rpartition(":")[2]
    context = f"{box.image_folder}/context"
    return detached.Job(
        title=f"build of {box.image}",
        unit=f"gb10-image-{tag}.service",
        folder=box.image_folder,
        command=("docker", "build", "--progress=plain", "--tag", box.image, context),
    )


@operation()
def built(box: Desired) -> Commands:
    """Docker has the image. The tag is the last thing that a build makes: a present one is whole."""
    if not look(host, ImagePresent, image=box.image):
        yield from detached.commands(build_job(box), BuildProgress())
