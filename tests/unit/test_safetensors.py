"""Headers of safetensors files: read as they are, and refused in one line when the file is not whole."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from gb10.gguf import FileReader
from gb10.safetensors import SafetensorsError, SourceTensor, read_tensors
from tests.lab.nvfp4 import safetensors

WHOLE = safetensors({"a": ("BF16", (2, 3), bytes(12)), "b": ("F32", (), bytes(4)), "c": ("U8", (0,), b"")})


def read(folder: Path, content: bytes) -> tuple[SourceTensor, ...]:
    path = folder / "x.safetensors"
    path.write_bytes(content)
    return read_tensors(FileReader(path), len(content))


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_a_whole_file(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == (
        SourceTensor("a", "BF16", (2, 3), 12),
        SourceTensor("b", "F32", (), 4),
        SourceTensor("c", "U8", (0,), 0),
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no safetensors file"),
        (WHOLE[:5], "no safetensors file"),
        (WHOLE[:40], "cut off inside its header"),
        (WHOLE[:-1], "cut off: its header says"),
        (WHOLE + b"x", "too long: its header says"),
        (b"<html>no such file</html>", "no safetensors file"),
        (struct.pack("<Q", 1 << 62) + bytes(100), "cut off inside its header"),
        (header("{]"), "not JSON"),
        (header("[1]"), "not a JSON object"),
        (header(json.dumps({"a": {"dtype": "F32", "shape": [2]}})), "'a' is described in another way"),
        (header(json.dumps({"a": 3})), "described in another way"),
        (
            header(json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})) + bytes(4),
            "cannot have 4 bytes",
        ),
        (
            header(json.dumps({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}})),
            "cannot have -4 bytes",
        ),
        (
            header(json.dumps({"a": {"dtype": "X9", "shape": [4], "data_offsets": [0, 4]}})) + bytes(4),
            "X9",
        ),
    ],
)
def test_what_is_not_whole(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(SafetensorsError, match=r"^[^\n]*$") as caught:
        read(tmp_path, content)
    assert words in str(caught.value)
