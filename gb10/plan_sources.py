"""Where the plan gets its headers from: the lock, or files on this machine; else they stay unknown."""

from __future__ import annotations

from pathlib import Path

from gb10.faults import BadInput, Fault
from gb10.gguf import GgufError, Header, read_file
from gb10.lock import Lock
from gb10.model import Catalogue, FileRef, shard_files
from gb10.plan import Source, ggufs_of


def sources_of(
    catalogue: Catalogue, lock: Lock, models_dir: Path | None = None
) -> dict[tuple[str, str], Source]:
    """Headers and sizes of all models, keyed by (repo, file).

    ``models_dir`` is a folder with the files laid out as on the box, for what the lock does not have. Raises
    BadInput for a file there that is no GGUF.
    """
    sources: dict[tuple[str, str], Source] = {}
    faults: list[Fault] = []
    for model in catalogue.enabled:
        for part in ggufs_of(model):
            key = (part.repo, part.file)
            try:
                sources[key] = _from_lock(lock, part)
                if sources[key].header is None and models_dir is not None:
                    sources[key] = _from_files(models_dir / part.repo / part.file) or sources[key]
            except GgufError as error:
                faults.append(
                    Fault(model.where, str(error), f"`gb10 pin {model.name}`, or fetch the file again")
                )
    if faults:
        raise BadInput(faults)
    return sources


def _from_lock(lock: Lock, part: FileRef) -> Source:
    entries = [lock.files.get((part.repo, name)) for name in shard_files(part.file)]
    sizes = [entry.size for entry in entries if entry and entry.size is not None]
    header = entries[0].header if entries[0] else None
    return Source(
        Header.from_dict(header) if header is not None else None,
        sum(sizes) if len(sizes) == len(entries) else None,
    )


def _from_files(path: Path) -> Source | None:
    if not path.is_file():
        return None
    return Source(read_file(path), file_bytes(path))


def file_bytes(path: Path) -> int:
    """Bytes of a model on this machine, all its shards."""
    return sum(path.with_name(name).stat().st_size for name in shard_files(path.name))
