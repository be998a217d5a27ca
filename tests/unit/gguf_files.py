"""GGUF files for the tests, written byte by byte and not by the code under test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """One value with its type before it."""
    if isinstance(item, bool):
        return struct.pack("<IB", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", UINT32, item)
    if isinstance(item, float):
        return struct.pack("<If", FLOAT32, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + text(item)
    kind = STRING if item and isinstance(item[0], str) else UINT32
    packed = b"".join(text(part) if kind == STRING else struct.pack("<I", part) for part in item)
    return struct.pack("<IIQ", ARRAY, kind, len(item)) + packed


def tensor(name: str, shape: Sequence[int], kind: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)


def gguf(
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, Sequence[int], int]] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> bytes:
    """The header of a file with this metadata and these tensors (name, shape, number of the type)."""
    head = magic + struct.pack("<IQQ", version, len(tensors), len(metadata))
    body = b"".join(text(key) + value(item) for key, item in metadata.items())
    return head + body + b"".join(tensor(*one) for one in tensors)


class Bytes:
    """A reader of ranges over bytes, which counts how it is asked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def read(self, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return self.data[offset : offset + size]
