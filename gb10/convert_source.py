"""What of a repository is the source of a conversion: which files, and whether they can be one at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gb10.hub import HubClient, HubError, HubReader, Revision
from gb10.lock import LockedFile
from gb10.safetensors import SafetensorsError, SourceTensor, read_tensors

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SMALL = 64 * 1024**2
"""Bytes. A config or tokenizer file that is larger is none."""

# What the converter reads beside the weights: configs, tokenizers, chat templates. No code, no pictures.
_BESIDE = re.compile(r"[^/]+\.(json|jinja|model|txt|tiktoken)")
_WEIGHTS = re.compile(r"model[^/]*\.safetensors")


@dataclass(frozen=True)
class Source:
    """A repository at one commit, as far as it is converted: ``files`` to the byte, ``tensors`` of all parts.

    ``architecture`` is the first one that config.json names, or empty.
    """

    repo: str
    commit: str
    files: tuple[LockedFile, ...]
    tensors: tuple[SourceTensor, ...]
    architecture: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size or 0 for file in self.files)


def source_names(revision: Revision) -> list[str]:
    """The files that are fetched; in subfolders and under other names lie other formats of the same weights.

    Raises `HubError` when the repository is nothing that can be converted.
    """
    names = sorted(revision.files)
    weights = [name for name in names if _WEIGHTS.fullmatch(name)]
    if not weights:
        do = "name another"
        if any(name.endswith(".gguf") for name in names):
            do = "its GGUF files are served as they are, by `repo` and `file` in the catalogue"
        raise HubError(f"{revision.repo}: no model*.safetensors in it: {do}")
    if CONFIG not in revision.files:
        raise HubError(f"{revision.repo}: no {CONFIG} in it, so nobody knows what model it is: name another")
    empty = [name for name in weights if revision.files[name].size <= 0]
    if empty:
        raise HubError(f"{revision.repo}: {empty[0]} is empty: name another revision")
    beside = [name for name in names if _BESIDE.fullmatch(name) and 0 < revision.files[name].size <= SMALL]
    return weights + beside


def read_source(hub: HubClient, repo: str, revision: str, say: Callable[[str], None]) -> Source:
    """Resolve and look through a repository by range requests; nothing is fetched as a whole but small files.

    Raises `HubError`, in one line: gated, missing, not convertible, a file that is cut off.
    """
    found = hub.revision(repo, revision)
    files = []
    tensors: list[SourceTensor] = []
    for name in source_names(found):
        file = hub.locked(repo, found.commit, name)
        files.append(file)
        if name.endswith(".safetensors"):
            say(name)
            try:
                tensors += read_tensors(HubReader(hub, file), file.size or 0)
            except SafetensorsError as error:
                raise HubError(
                    f"{repo}: {name}: {error}: nothing was fetched, name another revision"
                ) from None
    indexed = next((file for file in files if file.file == INDEX), None)
    if indexed is not None:
        _complete(repo, _json(hub, indexed), tensors, files)
    config = _json(hub, next(file for file in files if file.file == CONFIG))
    named = config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    return Source(repo, found.commit, tuple(files), tuple(tensors), architecture)


def _json(hub: HubClient, file: LockedFile) -> Mapping[str, object]:
    try:
        data = json.loads(hub.read(file, 0, file.size or 0))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise HubError(f"{file.repo}: {file.file} is no JSON object: name another revision")
    return data


def _complete(
    repo: str, index: Mapping[str, object], tensors: Iterable[SourceTensor], files: Iterable[LockedFile]
) -> None:
    """Every part that the index names is there, with its tensors. Raises `HubError`."""
    named = index.get("weight_map")
    if not isinstance(named, dict):
        raise HubError(f"{repo}: {INDEX} has no weight_map: name another revision")
    lacking = sorted(set(map(str, named.values())) - {file.file for file in files})
    if lacking:
        raise HubError(f"{repo}: {lacking[0]} is missing, and {INDEX} names it: name another revision")
    unknown = sorted(set(named) - {tensor.name for tensor in tensors})
    if unknown:
        raise HubError(
            f"{repo}: the tensor {unknown[0]} is in no file, and {INDEX} names it: name another revision"
        )
