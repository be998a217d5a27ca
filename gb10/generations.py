"""What is kept to go back to, and which images that leaves over."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from gb10.desired import Desired


def desired_digest(box: Desired) -> str:
    """sha256 over the files of a generation, as ``files/gb10_generations.py`` counts it on the box."""
    files = {
        "unit": box.unit_file.content,
        "models.ini": box.presets_file.content,
        "lane.json": box.lane_file.content,
    }
    whole = hashlib.sha256()
    for name in sorted(files):
        content = files[name].encode()
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()


def is_kept(box: Desired, known: Mapping[str, Any]) -> bool:
    """Whether the lane that should be is the one that answered last, and no rollback waits for its end.

    ``known``: see `Generations`.
    """
    digests = {entry["number"]: entry["digest"] for entry in known["generations"]}
    return not known["going_to"] and digests.get(known["current"]) == desired_digest(box)


def needed_images(box: Desired, known: Mapping[str, Any]) -> set[str]:
    """The wanted image, the one that answered last, the one that served before that, and where a rollback is
    going to."""
    images = {entry["number"]: entry["image"] for entry in known["generations"]}
    now = {
        box.image,
        *(images[number] for number in (known["current"], known["going_to"]) if number in images),
    }
    earlier = [images[number] for number in known["served"] if images.get(number, box.image) not in now]
    return now | set(earlier[-1:])


def superfluous(images: Sequence[Mapping[str, Any]], keep: int, needed: set[str]) -> list[str]:
    """Names of the images beyond the newest ``keep``, without the needed ones and those that are in use.

    ``images`` are newest first, as `Images` gives them. Two names of one image are one.
    """
    newest: list[str] = []
    for entry in images:
        if entry["id"] not in newest:
            newest.append(entry["id"])
    kept = set(newest[:keep]) | {entry["id"] for entry in images if entry["image"] in needed}
    return [entry["image"] for entry in images if entry["id"] not in kept and not entry["used_by"]]
