"""Reads the header of a safetensors file: names, types, shapes and places of its tensors, never a weight.

The file may lie on a hub or on a disk: a reader of byte ranges is needed (`gb10.gguf.RangeReader`).
The input is not trusted, and a file that is shorter than its header says is refused here, before anything is
fetched. Format: eight bytes with the header's length, the header as JSON, then the tensors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gb10.gguf import RangeReader

MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""

TYPES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of one element."""


class SafetensorsError(ValueError):
    """The bytes are not a whole safetensors file: one line saying what is wrong."""


@dataclass(frozen=True)
class SourceTensor:
    """One tensor: ``type`` as the format names it, ``bytes`` its size in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """Number of elements as the file has them; of packed weights these are not the weights."""
        product = 1
        for size in self.shape:
            product *= size
        return product


def read_tensors(reader: RangeReader, size: int) -> tuple[SourceTensor, ...]:
    """The tensors of a file of ``size`` bytes. Raises SafetensorsError, and what the reader raises."""
    length = int.from_bytes(reader.read(0, 8), "little")
    if size < 8 or not 2 <= length <= MAX_HEADER or 8 + length > size:
        raise SafetensorsError(f"no safetensors file, or cut off inside its header ({size} bytes)")
    try:
        header = json.loads(reader.read(8, length))
    except (ValueError, RecursionError):
        raise SafetensorsError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise SafetensorsError("its header is not a JSON object")
    tensors, end = [], 0
    for name, entry in header.items():
        if name != "__metadata__":
            tensor, last = _tensor(name, entry)
            tensors.append(tensor)
            end = max(end, last)
    promised = 8 + length + end
    if promised != size:
        word = "cut off" if promised > size else "too long"
        raise SafetensorsError(f"{word}: its header says {promised} bytes, it has {size}")
    return tuple(tensors)


def _tensor(name: str, entry: Any) -> tuple[SourceTensor, int]:
    try:
        kind, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        first, last = (int(place) for place in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise SafetensorsError(f"the tensor {name!r} is described in another way") from None
    tensor = SourceTensor(name, kind, shape, last - first)
    if min((first, last - first, *shape), default=0) < 0 or tensor.bytes != tensor.elements * TYPES.get(
        kind, -1
    ):
        raise SafetensorsError(f"the tensor {name!r} ({kind} {list(shape)}) cannot have {tensor.bytes} bytes")
    return tensor, last
