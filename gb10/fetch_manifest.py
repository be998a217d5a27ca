"""What the downloader on the box is told to fetch: the catalogue's files, as the lock knows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from gb10.catalogue import Catalogue, FileRef, Model
from gb10.conversion import make_command, not_made
from gb10.faults import Fault
from gb10.lock import COMMIT, Lock
from gb10.presets import file_path


def unresolved(catalogue: Catalogue, lock: Lock) -> list[Fault]:
    """A fault for each enabled model with a file that the lock does not know to the byte."""
    faults = []
    for model in catalogue.enabled:
        if model.conversion is not None and (why := not_made(model, lock) or missing(model.weights[0], lock)):
            faults.append(Fault(model.where, why, f"`{make_command(model)}`, and commit the lock"))
        reasons = [reason for file in model.hub_files if (reason := missing(file, lock))]
        if reasons:
            faults.append(
                Fault(model.where, "; ".join(reasons), f"`gb10 pin {model.name}`, and commit the lock")
            )
    return faults


def missing(file: FileRef, lock: Lock) -> str:
    """What the lock does not say of a file, in words; empty when it says all."""
    locked = lock.files.get((file.repo, file.file))
    if locked is None:
        return f"{file.repo} {file.file} is not in the lock"
    if file.revision and COMMIT.fullmatch(file.revision) and file.revision != locked.revision:
        return f"the lock has {file.file} at revision {locked.revision[:12]}, not {file.revision[:12]}"
    lacking = [key for key, value in (("size", locked.size), ("sha256", locked.sha256)) if value is None]
    return f"the lock has no {' and no '.join(lacking)} of {file.file}" if lacking else ""


def model_files(model: Model, models_dir: PurePosixPath) -> list[PurePosixPath]:
    """Where the files of a model are on the box: every shard, projector, draft and template."""
    return list(dict.fromkeys(file_path(models_dir, file) for file in model.files))


def fetch_manifest(
    catalogue: Catalogue,
    lock: Lock,
    *,
    models_dir: str,
    hub: str,
    token_file: str | None,
    parallel: int,
    reserve_bytes: int,
    search: Sequence[str],
) -> dict[str, Any]:
    """The manifest of ``files/gb10_fetch.py`` (its docstring says what each key is): a file that two models
    share is in it once, one that `unresolved` names is not in it."""
    files: dict[PurePosixPath, dict[str, Any]] = {}
    for model in catalogue.enabled:
        for file in model.files:
            locked = lock.files.get((file.repo, file.file))
            if locked is None or missing(file, lock):
                continue
            path = file_path(PurePosixPath(models_dir), file)
            files[path] = {
                "repo": locked.repo,
                "revision": locked.revision,
                "file": locked.file,
                "size": locked.size,
                "sha256": locked.sha256,
                "path": str(path),
                **({"made": make_command(model)} if locked.recipe else {}),
            }
    return {
        "models_dir": models_dir,
        "hub": hub.rstrip("/"),
        "token_file": token_file,
        "parallel": parallel,
        "reserve_bytes": reserve_bytes,
        "search": list(search),
        "files": list(files.values()),
    }
