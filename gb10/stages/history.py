"""What was: lanes that answered are kept to go back to, images that nobody needs any more go."""

from __future__ import annotations

from typing import Any

from pyinfra import logger
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.desired import Desired
from gb10.facts.docker import Generations, Images
from gb10.facts.shared import look
from gb10.generations import is_kept, needed_images, superfluous
from gb10.operations import Commands


def keep(box: Desired) -> None:
    """After verify: what is kept here has answered."""
    kept(name="history: this lane answered", box=box)
    pruned(name=f"history: at most {box.data.image_keep} images", box=box)


def _known(box: Desired) -> dict[str, Any] | None:
    program = box.program_files["gb10_generations.py"].path
    return look(host, Generations, program=program, lane=box.lane_path)


@operation()
def kept(box: Desired) -> Commands:
    """`gb10 rollback` can come back to this lane."""
    known = _known(box)
    if known is None or not is_kept(box, known):
        program = box.program_files["gb10_generations.py"].path
        yield StringCommand("python3", QuoteString(program), QuoteString(box.lane_path), "keep")


@operation()
def pruned(box: Desired) -> Commands:
    """Never the running image, the previous one, or one that a container uses; none where nobody knows."""
    program, description = box.program_files["gb10_image.py"].path, box.image_file.path
    images = look(host, Images, program=program, description=description)
    known = _known(box)
    if images is None or known is None:
        host.log("no image is removed: the box does not say which are needed", logger.warning)
        return
    over = superfluous(images, box.data.image_keep, needed_images(box, known))
    if over:
        names = (QuoteString(name) for name in over)
        yield StringCommand("python3", QuoteString(program), QuoteString(description), "prune", *names)
