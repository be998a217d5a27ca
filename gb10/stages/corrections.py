"""What a stage's own files do not settle: a tag that was moved, a drop-in, a container that somebody has
altered.

The stages call these at the place where they belong.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.container import differences, preset_differences
from gb10.desired import Desired
from gb10.facts.docker import ImageState
from gb10.facts.drift import DriftState, question_of
from gb10.facts.shared import look
from gb10.operations import Commands
from gb10.operations.placed import set_aside
from gb10.record import readable

# Where an administrator's drop-ins lie; those of packages are not touched.
OURS_TO_REMOVE = ("/etc/systemd/", "/run/systemd/", "/usr/local/lib/systemd/")
# What systemd has been told anew; a socket or a timer, too, goes by what it was started with.
_AGAIN = 'systemctl daemon-reload; systemctl try-restart "$@"'


@operation()
def tag(box: Desired) -> Commands:
    """The image's tag names what the last deploy left under it, where that was the same tag.

    Another build of the same, as one that was imported, stays: the next operation lets it prove itself.
    """
    seen = look(host, DriftState, question=question_of(box))
    record, now = seen["record"], seen["facts"]["image: id"]
    if not now or not readable(record) or record["question"].get("image") != box.image:
        return
    before = record["facts"].get("image: id")
    if not before or before == now:
        return
    proof = {"image": box.image, "folder": box.image_folder, "expectation": box.image_expectation}
    if look(host, ImageState, **proof) != "proven":
        program, description = box.program_files["gb10_image.py"].path, box.image_file.path
        words = (QuoteString(word) for word in (program, description, "retag", before))
        yield StringCommand("python3", *words)


@operation()
def drop_ins(box: Desired, stage: str, units: Sequence[str]) -> Commands:
    """No drop-in alters the stage's units, also none that systemd would read only later; a copy of each is
    kept below state_dir. The lane is restarted by `container`, and only if it runs otherwise."""
    seen = look(host, DriftState, question=question_of(box))
    folders = {f"{unit}.d": unit for unit in units}
    found = {
        path: folders[path.split("/")[-2]]
        for path in seen["facts"][f"{stage}: drop-ins"]
        # A folder for a whole kind of units (service.d) serves others too.
        if path.startswith(OURS_TO_REMOVE) and path.split("/")[-2] in folders
    }
    if not found:
        return
    yield set_aside(f"{box.data.state_dir}/taken-over", sorted(found))
    if stage == "router":
        yield StringCommand("systemctl", "daemon-reload")
    else:
        yield StringCommand("sh", "-c", QuoteString(_AGAIN), "-", *sorted(set(found.values())))


@operation()
def container(box: Desired) -> Commands:
    """What runs is what the unit and the preset file say, whatever was done to it by hand since."""
    seen = look(host, DriftState, question=question_of(box))
    running = seen["facts"]["router: container"]
    if running is None:
        return  # the operation before this one starts it
    if differences(box, running, seen["facts"]["image: id"]):
        yield StringCommand("systemctl", "reset-failed", box.unit, "2>/dev/null", "||", "true")
        yield StringCommand("systemctl", "restart", box.unit)
    elif seen["models"] and preset_differences(box, seen["models"]):
        program = box.program_files["gb10_router.py"].path
        yield StringCommand("python3", QuoteString(program), QuoteString(box.lane_path), "reload")
