"""Reads the header of a GGUF file: its metadata and the list of its tensors, never a weight.

The file may be on the disk or on a hub: all that is needed is a reader of byte ranges, so a model of 50 GB
costs a few MB (most of it the token list). The input is not trusted: counts and lengths are checked against
the size of the file and against bounds before anything is read or allocated, and whatever is wrong is one
GgufError.
Format: ``ggml/include/gguf.h`` of llama.cpp.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gb10.tensor_types import TENSOR_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)

MAX_HEADER = 512 * 1024**2
"""Bytes. The largest headers in use hold some tens of MB of token lists."""

MAX_KEYS = 65_536
MAX_TENSORS = 1_048_576
MAX_DIMENSIONS = 4
MAX_KEY = 65_535
MAX_LISTED = 8_192
"""Longest array that is kept; of longer ones, and of arrays of texts, only the length is kept."""

_FIRST_READ, _MOST_AHEAD = 1024**2, 8 * 1024**2
"""Bytes read ahead: little at first, as most headers without a token list are small, then twice as much each
time, so that a hub is asked few times."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufError(ValueError):
    """The bytes are not the header of a GGUF file that can be read: one line saying what is wrong."""


class RangeReader(Protocol):
    """Gives bytes of a file by place. Fewer bytes than asked for mean the end of the file."""

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on."""
        ...


class FileReader:
    """A RangeReader for a file on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


@dataclass(frozen=True)
class Tensor:
    """One tensor: ``bytes`` is its size in the file, ``type`` the name of its type."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of its model.

    ``metadata`` holds scalars, texts and arrays of numbers; ``lengths`` the length of every array, of texts
    too (the token list, say). ``weight_bytes`` is the sum of the tensors, of all shards once they are joined.
    ``tied_bytes``: those of the token embedding where it is the output matrix too, else 0. llama.cpp then has
    one on the host and another on the device (``TENSOR_DUPLICATED`` in ``src/llama-model-loader.cpp``).
    """

    architecture: str
    metadata: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    weight_bytes: int
    shards: int = 1
    tied_bytes: int = 0

    def get(self, key: str, missing: Any = None) -> Any:
        """The value of ARCHITECTURE.key; ``missing`` where it is absent or 0, for llama.cpp writes 0 for
        absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return missing if value is None or (value == 0 and value is not False) else value

    @property
    def vocabulary(self) -> int:
        """Number of tokens; 0 if it is not said."""
        listed = self.lengths.get("tokenizer.ggml.tokens", 0)
        return listed or int(self.get("vocab_size", 0))

    def to_dict(self) -> dict[str, Any]:
        """What the lock keeps of a header: all that the plan reads, and no tensor names or tokenizer."""
        prefix = f"{self.architecture}."
        kept = {
            key: value
            for key, value in sorted(self.metadata.items())
            if key.startswith(prefix) or key in ("general.architecture", "general.name", "general.type")
        }
        return {
            "architecture": self.architecture,
            "metadata": kept,
            "vocabulary": self.vocabulary,
            "weight_bytes": self.weight_bytes,
            "shards": self.shards,
            **({"tied_bytes": self.tied_bytes} if self.tied_bytes else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Header:
        """A header from what ``to_dict`` gave. Raises GgufError when a part is missing or wrong."""
        try:
            return cls(
                architecture=str(data["architecture"]),
                metadata=dict(data["metadata"]),
                lengths={"tokenizer.ggml.tokens": int(data["vocabulary"])},
                tensors=(),
                weight_bytes=int(data["weight_bytes"]),
                shards=int(data.get("shards", 1)),
                tied_bytes=int(data.get("tied_bytes", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise GgufError(f"not a header as the lock keeps it ({error})") from error


def read_header(reader: RangeReader, *, file_size: int | None = None) -> Header:
    """Read a header. ``file_size`` in bytes, where it is known, bounds every count. Raises GgufError."""
    window = _Window(reader, file_size)
    if (magic := window.take(4)) != MAGIC:
        raise GgufError(f"no GGUF file: it begins with {magic!r} and not with {MAGIC!r}")
    version = window.number("I")
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise GgufError("a big-endian GGUF file, which llama.cpp on this hardware cannot read")
        raise GgufError(f"version {version} of the format, and {VERSIONS[0]} to {VERSIONS[-1]} can be read")
    tensor_count, key_count = window.number("Q"), window.number("Q")
    window.bound(tensor_count, MAX_TENSORS, 24, "tensors")
    window.bound(key_count, MAX_KEYS, 13, "metadata keys")
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(key_count):
        key = window.text(MAX_KEY)
        if key in metadata or key in lengths:
            raise GgufError(f"the metadata key {key!r} stands twice")
        kind = window.number("I")
        if kind == _ARRAY:
            lengths[key], values = window.array(key)
            if values is not None:
                metadata[key] = values
        else:
            metadata[key] = window.value(kind, key)
    tensors = tuple(_tensor(window) for _ in range(tensor_count))
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        if metadata.get("split.no", 0):
            architecture = ""  # only the first shard says what the model is
        else:
            raise GgufError("the metadata key general.architecture is missing")
    shards = metadata.get("split.count", 1)
    if not isinstance(shards, int) or not 0 <= shards <= MAX_KEYS:
        raise GgufError(f"split.count is {shards!r}")
    weights = sum(tensor.bytes for tensor in tensors)
    return Header(architecture, metadata, lengths, tensors, weights, max(1, shards), _tied(tensors))


def read_file(path: Path) -> Header:
    """The header of a file on the disk; for a first shard, of all its shards. Raises GgufError."""
    from gb10.model import shard_files

    headers = []
    for name in shard_files(path.name):
        part = path.with_name(name)
        try:
            headers.append(read_header(FileReader(part), file_size=part.stat().st_size))
        except OSError as error:
            raise GgufError(f"{part}: {error.strerror}") from error
        except GgufError as error:
            raise GgufError(f"{part}: {error}") from error
    return join_shards(headers)


def join_shards(headers: Iterable[Header]) -> Header:
    """One header for a model in several shards, given in order. Raises GgufError when one is missing or out
    of place."""
    parts = list(headers)
    if not parts:
        raise GgufError("no shard given")
    first = parts[0]
    if len(parts) != first.shards:
        raise GgufError(f"the model has {first.shards} shard(s) and {len(parts)} are there")
    for number, part in enumerate(parts):
        if first.shards > 1 and (part.metadata.get("split.no") != number or part.shards != first.shards):
            raise GgufError(f"shard {number + 1} of {first.shards} is another file by its own words")
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    total = first.metadata.get("split.tensors.count")
    if first.shards > 1 and total is not None and total != len(tensors):
        raise GgufError(f"the shards hold {len(tensors)} tensors and the first one says {total}")
    return Header(
        first.architecture,
        first.metadata,
        first.lengths,
        tensors,
        sum(part.weight_bytes for part in parts),
        first.shards,
        _tied(tensors),
    )


def _tied(tensors: Iterable[Tensor]) -> int:
    sizes = {tensor.name: tensor.bytes for tensor in tensors}
    return 0 if "output.weight" in sizes else sizes.get("token_embd.weight", 0)


def _tensor(window: _Window) -> Tensor:
    name = window.text(MAX_KEY)
    dimensions = window.number("I")
    if dimensions > MAX_DIMENSIONS:
        raise GgufError(f"the tensor {name!r} has {dimensions} dimensions and {MAX_DIMENSIONS} is the most")
    shape = tuple(window.number("Q") for _ in range(dimensions))
    kind = window.number("I")
    window.number("Q")  # its place in the file
    if kind not in TENSOR_TYPES:
        raise GgufError(f"the tensor {name!r} has the type {kind}, which is not known here")
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    elements = math.prod(shape)
    if any(size <= 0 for size in shape) or elements >= 2**63 or (shape and shape[0] % block):
        raise GgufError(f"the tensor {name!r} of type {type_name} cannot have the shape {list(shape)}")
    size = elements // block * block_bytes
    if window.file_size is not None and size > window.file_size:
        raise GgufError(
            f"the tensor {name!r} has {size} bytes and the file {window.file_size}: it is cut off"
        )
    return Tensor(name, shape, type_name, size)


class _Window:
    """Walks through the header, reading ahead."""

    def __init__(self, reader: RangeReader, file_size: int | None) -> None:
        self.reader = reader
        self.file_size = file_size
        self.start = 0
        self.data = b""
        self.offset = 0
        self.ahead = _FIRST_READ

    def bound(self, count: int, most: int, least_bytes: int, what: str) -> None:
        """Refuse a count that is beyond the bound, or cannot be in the file."""
        left = (self.file_size if self.file_size is not None else MAX_HEADER) - self.offset
        if count > most or count * least_bytes > left:
            raise GgufError(f"{count} {what} cannot be in this file: it is damaged")

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self.offset + size
        if end > MAX_HEADER:
            raise GgufError(f"the header has more than {MAX_HEADER // 1024**2} MiB")
        begin = self.offset - self.start
        if begin + size > len(self.data):
            self.data = self.data[begin:]
            self.start = self.offset
            need = max(self.ahead, size) - len(self.data)
            self.ahead = min(2 * self.ahead, _MOST_AHEAD)
            self.data += self.reader.read(self.start + len(self.data), need)
            begin = 0
            if len(self.data) < size:
                raise GgufError(
                    f"the file is cut off at byte {self.start + len(self.data)}, inside its header"
                )
        self.offset = end
        return self.data[begin : begin + size]

    def number(self, code: str) -> int:
        """The next whole number."""
        (number,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return int(number)

    def text(self, most: int) -> str:
        """The next text, of at most ``most`` bytes."""
        size = self.number("Q")
        self.bound(size, most, 1, "bytes of text")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise GgufError(f"a text before byte {self.offset} is not UTF-8") from error

    def skip_texts(self, count: int) -> None:
        """Pass over texts: a token list has hundreds of thousands of them, and none is needed."""
        for _ in range(count):
            begin = self.offset - self.start
            if begin + 8 <= len(self.data):  # the short way: both the length and the text are in hand
                end = begin + 8 + int.from_bytes(self.data[begin : begin + 8], "little")
                if end <= len(self.data):
                    self.offset = self.start + end
                    continue
            size = self.number("Q")
            self.bound(size, MAX_HEADER, 1, "bytes of text")
            self.take(size)

    def value(self, kind: int, key: str) -> Any:
        """The next single value."""
        if kind == _STRING:
            return self.text(MAX_HEADER)
        if kind not in _SCALARS:
            raise GgufError(f"the metadata key {key!r} has the type {kind}, which does not exist")
        code = f"<{_SCALARS[kind]}"
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def array(self, key: str) -> tuple[int, list[Any] | None]:
        """The length of the next array, and its values if they are numbers and not too many."""
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            self.bound(count, MAX_HEADER, 8, f"texts in {key!r}")
            self.skip_texts(count)
            return count, None
        if kind not in _SCALARS:
            raise GgufError(f"the metadata key {key!r} is an array of the type {kind}, which is not allowed")
        width = struct.calcsize(f"<{_SCALARS[kind]}")
        self.bound(count, MAX_HEADER, width, f"values in {key!r}")
        data = self.take(count * width)
        if count > MAX_LISTED:
            return count, None
        return count, list(struct.unpack(f"<{count}{_SCALARS[kind]}", data))
