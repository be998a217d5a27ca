"""An image as a file on the laptop: what is in it, and whether it is whole."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gb10.faults import BadInput, Fault

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ImageFile:
    """A file that ``docker save`` made: the images' names in it, its sha256, its size in bytes. ``compared``:
    that sha256 is the one written beside it; without one nobody knows whether the file was changed."""

    path: Path
    names: tuple[str, ...]
    sha256: str
    size: int
    compared: bool = False


def sum_path(path: Path) -> Path:
    """Where the sha256 of ``path`` is kept, as sha256sum writes it."""
    return path.with_name(path.name + ".sha256")


def write_sum(path: Path, sha256: str) -> None:
    sum_path(path).write_text(f"{sha256}  {path.name}\n", encoding="utf-8")


def read_image_file(path: Path, seen: Callable[[int], None] = lambda _: None) -> ImageFile:
    """Read all of it; ``seen`` gets the bytes of each step. Raises `BadInput` when it is not whole."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                seen(len(chunk))
            file.seek(0)
            names = _names(file)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise BadInput([Fault(str(path), what, "name a file of `gb10 image export`")]) from None
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
        what = f"not a whole image file ({error or type(error).__name__})"
        raise BadInput([Fault(str(path), what, "copy it again, or export it again")]) from None
    kept = sum_path(path)
    if kept.exists() and kept.read_text(encoding="utf-8").split()[:1] != [digest.hexdigest()]:
        what = f"its sha256 is {digest.hexdigest()[:12]}…, not the one in {kept.name}"
        raise BadInput([Fault(str(path), what, "copy it again")])
    return ImageFile(path, names, digest.hexdigest(), size, compared=kept.exists())


def _names(file: BinaryIO) -> tuple[str, ...]:
    # "r:*" takes a compressed one too. To its end: a file that is cut off is found here and not on the box.
    names: list[str] = []
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        found = False
        for member in archive:
            if member.name == "manifest.json":
                found = True
                content = archive.extractfile(member)
                assert content is not None
                for entry in json.load(content):
                    names += entry["RepoTags"] or []
    if not found:
        raise ValueError("it has no manifest.json")
    if not names:
        raise ValueError("no image in it has a name")
    return tuple(names)
