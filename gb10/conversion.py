"""Models that are made at home: what the catalogue asks for against what the lock and a box have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gb10.faults import Fault
from gb10.lock import Lock, LockedFile
from gb10.model import Catalogue, Model

SOURCES = ".source"
"""Folder below the models folder for what was fetched to be converted; kept, and removed only by name."""

OUTTYPES = ("q8_0", "bf16", "f16", "f32", "auto")
"""What the converter can make of the tensors that are not NVFP4."""

DEFAULT_OUTTYPE = "q8_0"
WHY_Q8_0 = (
    "NVFP4 tensors are kept as they are, the outtype is for all others; left in 16 bits they made a file of"
    " 17 GB with 37 tok/s, as q8_0 one of 15.4 GB with 59 tok/s (noted on a box)"
)
OTHER_OUTTYPE = (
    "On a box the tensors left in 16 bits cost 10 % of the size and a third of the speed: prefer q8_0"
)


def make_command(model: Model) -> str:
    """The command that makes the file of a conversion."""
    return f"gb10 convert {model.name}"


def made_of(model: Model, lock: Lock) -> LockedFile | None:
    """What the lock knows of the file of a conversion; None for a model that is none."""
    if model.conversion is None or not model.weights:
        return None
    (place,) = model.weights
    return lock.files.get((place.repo, place.file))


def not_made(model: Model, lock: Lock) -> str:
    """Why the lock has no file for what the catalogue asks for, in words; empty when it has it.

    The revision is not looked at here: it is compared like that of any file (`gb10.fetch_manifest.missing`).
    """
    wanted, locked = model.conversion, made_of(model, lock)
    if wanted is None:
        return ""
    if locked is None or locked.recipe is None or locked.sha256 is None:
        return "made at home, and not made yet"
    if locked.recipe.repo != wanted.repo:
        return f"the lock has it made from {locked.recipe.repo}, not from {wanted.repo}"
    if locked.recipe.outtype != wanted.outtype:
        return f"the lock has it made as {locked.recipe.outtype}, not as {wanted.outtype}"
    return ""


def notes(catalogue: Catalogue) -> list[str]:
    """What a plan says of the models that are made at home: one line for each outtype, with the reason."""
    named: dict[str, list[str]] = {}
    for model in catalogue.models:
        if model.conversion:
            named.setdefault(model.conversion.outtype, []).append(model.name)
    return [
        f"Made by `gb10 convert` as {outtype}: {', '.join(names)}. "
        + (WHY_Q8_0 if outtype == DEFAULT_OUTTYPE else OTHER_OUTTYPE)
        for outtype, names in named.items()
    ]


def box_faults(
    host: str, catalogue: Catalogue, manifest: Mapping[str, Any], files: Iterable[Mapping[str, Any]]
) -> list[Fault]:
    """A fault for each file that is to be made at home and that ``host`` has not, or has another one of.

    ``manifest`` is what the downloader is given, ``files`` what it says of each (`gb10_fetch.py --check`).
    """
    made = {entry["path"]: entry["made"] for entry in manifest["files"] if "made" in entry}
    where = {make_command(model): model.where for model in catalogue.models}
    faults = []
    for entry in files:
        command = made.get(entry["path"])
        if command is None or entry["state"] in ("ok", "unverified"):
            continue
        place = f"{host}: {where.get(command, entry['path'])}"
        if entry["state"] == "wrong":
            what = f"{entry['path']} is another file than the one that was made"
            faults.append(Fault(place, what, f"`gb10 models rm {command.split()[-1]}`, then `{command}`"))
        else:
            faults.append(
                Fault(place, f"{entry['path']} is not there, and no hub has it", f"run `{command}`")
            )
    return faults
