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
# Other names the downloader does not take, and in .part lies what it is fetching.
_BESIDE = re.compile(r"(?!.*\.part\.)[\w.-]+\.(json|jinja|model|txt|tiktoken)", re.ASCII)
_PLAIN = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_WEIGHTS = re.compile(r"model[^/]*\.safetensors")


@dataclass(frozen=True)
class Source:
    """A repository at one commit, as far as it is converted: ``files`` to the byte, ``tensors`` of all parts.

    ``config`` is the text of config.json without what it says of the quantization, which can be long.
    """

    repo: str
    commit: str
    files: tuple[LockedFile, ...]
    tensors: tuple[SourceTensor, ...]
    config: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size or 0 for file in self.files)


def source_names(revision: Revision, indexed: Iterable[str] = ()) -> list[str]:
    """The files that are fetched; in subfolders and under other names lie other formats of the same weights.

    ``indexed`` are the weights' files that the repository's own index names, where it has one. Raises
    `HubError` when the repository is nothing that can be converted.
    """
    names = sorted(revision.files)
    weights = sorted(set(indexed)) or [name for name in names if _WEIGHTS.fullmatch(name)]
    if not weights:
        do = "name another"
        if any(name.endswith(".gguf") for name in names):
            do = "its GGUF files are served as they are, by `repo` and `file` in the catalogue"
        raise HubError(f"{revision.repo}: no model*.safetensors in it: {do}")
    odd = [name for name in weights if not _PLAIN.fullmatch(name)]
    if odd:
        raise HubError(f"{revision.repo}: {odd[0]!r} is no plain file name: name another revision")
    lacking = [name for name in weights if name not in revision.files]
    if lacking:
        what = f"{lacking[0]} is missing, and {INDEX} names it"
        raise HubError(f"{revision.repo}: {what}: name another revision")
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
    index: Mapping[str, str] = {}
    if INDEX in found.files:
        index = _index(repo, _json(hub, hub.locked(repo, found.commit, INDEX)))
    files = []
    tensors: list[SourceTensor] = []
    for name in source_names(found, index.values()):
        file = hub.locked(repo, found.commit, name)
        files.append(file)
        if name.endswith(".safetensors"):
            say(name)
            try:
                tensors += read_tensors(HubReader(hub, file), file.size or 0)
            except SafetensorsError as error:
                what = f"{repo}: {name}: {error}"
                raise HubError(f"{what}: nothing was fetched, name another revision") from None
    unknown = sorted(set(index) - {tensor.name for tensor in tensors})
    if unknown:
        what = f"the tensor {unknown[0]} is in no file, and {INDEX} names it"
        raise HubError(f"{repo}: {what}: name another revision")
    config = _json(hub, next(file for file in files if file.file == CONFIG))
    kept = {key: value for key, value in config.items() if key != "quantization_config"}
    return Source(repo, found.commit, tuple(files), tuple(tensors), json.dumps(kept))


def _json(hub: HubClient, file: LockedFile) -> Mapping[str, object]:
    try:
        data = json.loads(hub.read(file, 0, file.size or 0))
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise HubError(f"{file.repo}: {file.file} is no JSON object: name another revision")
    return data


def _index(repo: str, index: Mapping[str, object]) -> Mapping[str, str]:
    """Tensor to file. Raises `HubError`."""
    named = index.get("weight_map")
    if not isinstance(named, dict) or not all(_PLAIN.fullmatch(str(file)) for file in named.values()):
        raise HubError(f"{repo}: {INDEX} has no weight_map of safetensors files: name another revision")
    return {str(tensor): str(file) for tensor, file in named.items()}
