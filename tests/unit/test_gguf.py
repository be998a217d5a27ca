"""Reading GGUF headers: what they say, by few requests, and one clear error for whatever is wrong."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import gguf as reference
import numpy as np
import pytest

from gb10.gguf import GgufError, Header, join_shards, read_file, read_header
from gb10.tensor_types import TENSOR_TYPES
from tests.unit.gguf_files import Bytes, gguf, text

METADATA = {
    "general.architecture": "llama",
    "general.name": "näme",
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.attention.head_count_kv": [2, 0],
    "llama.nextn_predict_layers": 0,
    "llama.rope.freq_base": 10000.0,
    "llama.use_x": True,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
TENSORS = [("x.weight", (256, 4), 12), ("y.weight", (32,), 8)]
DATA = gguf(METADATA, TENSORS)


def test_a_header() -> None:
    header = read_header(Bytes(DATA))
    assert header.architecture == "llama"
    assert header.metadata["general.name"] == "näme"
    assert header.get("block_count") == 2
    assert header.get("attention.head_count_kv") == [2, 0]
    assert header.get("nextn_predict_layers", "absent") == "absent"
    assert header.metadata["llama.use_x"] is True
    assert header.vocabulary == 3
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert [(t.name, t.shape, t.type, t.bytes) for t in header.tensors] == [
        ("x.weight", (256, 4), "Q4_K", 4 * 144),
        ("y.weight", (32,), "Q8_0", 34),
    ]
    assert header.weight_bytes == 4 * 144 + 34


def test_the_format_as_another_program_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = reference.GGUFWriter(path, "qwen3")
    writer.add_block_count(3)
    writer.add_head_count_kv([1, 2, 3])
    writer.add_token_list([f"token {n}" for n in range(5000)])
    writer.add_token_scores([0.5] * 5000)
    writer.add_float64("qwen3.double", 1.5)
    writer.add_int64("qwen3.negative", -3)
    writer.add_tensor("a.weight", np.zeros((4, 64), dtype=np.float16))
    writer.add_tensor(
        "b.weight", np.zeros((2, 36), dtype=np.uint8), raw_dtype=reference.GGMLQuantizationType.NVFP4
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_file(path)
    assert header.get("attention.head_count_kv") == [1, 2, 3]
    assert (header.get("double"), header.get("negative"), header.vocabulary) == (1.5, -3, 5000)
    assert [(t.shape, t.type, t.bytes) for t in header.tensors] == [
        ((64, 4), "F16", 512),
        ((64, 2), "NVFP4", 72),
    ]


def test_the_block_sizes_are_those_of_the_gguf_package() -> None:
    for kind, (block, size) in reference.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[kind.value] == (kind.name, block, size)


def test_a_hub_is_asked_few_times_and_never_for_weights() -> None:
    metadata = {**METADATA, "tokenizer.ggml.tokens": ["token" * 10] * 100_000}
    reader = Bytes(gguf(metadata, TENSORS) + bytes(50_000_000))
    read_header(reader)
    assert len(reader.asked) <= 4
    assert sum(size for _, size in reader.asked) < 16 * 1024**2


def test_long_arrays_are_not_kept() -> None:
    header = read_header(Bytes(gguf({**METADATA, "llama.long": [1] * 10_000})))
    assert header.lengths["llama.long"] == 10_000
    assert "llama.long" not in header.metadata


def test_there_and_back_through_the_lock() -> None:
    header = read_header(Bytes(DATA))
    again = Header.from_dict(json.loads(json.dumps(header.to_dict())))
    assert again.to_dict() == header.to_dict()
    assert (again.vocabulary, again.weight_bytes, again.get("block_count")) == (3, header.weight_bytes, 2)
    with pytest.raises(GgufError, match="not a header"):
        Header.from_dict({"architecture": "llama"})


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "cut off at byte 0"),
        (b"GGU", "cut off at byte 3"),
        (b"PK\x03\x04" + bytes(100), "no GGUF file: it begins with"),
        (gguf(METADATA, magic=b"FUGG"), "no GGUF file"),
        (gguf(METADATA, version=1), "version 1 of the format"),
        (gguf(METADATA, version=9), "version 9 of the format"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1) + bytes(64), "tensors cannot be in this file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60) + bytes(64), "metadata keys cannot be in this file"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62) + bytes(64),
            "bytes of text cannot",
        ),
        (gguf({"general.name": "x"}), "general.architecture is missing"),
        (gguf({"general.architecture": 3}), "general.architecture is missing"),
        (gguf(METADATA, [("x", (256, 4), 99)]), "has the type 99"),
        (gguf(METADATA, [("x", (255, 4), 12)]), "cannot have the shape [255, 4]"),
        (gguf(METADATA, [("x", (2**40, 2**40), 0)]), "cannot have the shape"),
        (gguf(METADATA, [("x", (0, 4), 0)]), "cannot have the shape"),
        (gguf(METADATA, [("x", (1, 1, 1, 1, 1), 0)]), "has 5 dimensions"),
        (gguf(METADATA, [("x", (2**30,), 0)]), "it is cut off"),
        (gguf({**METADATA, "split.count": -1 & 0xFFFFFFFF}), "split.count is"),
        (gguf({"general.architecture": "a"})[:-1] + b"\xff", "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_one_clear_error(data: bytes, part: str) -> None:
    with pytest.raises(GgufError) as caught:
        read_header(Bytes(data), file_size=len(data))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def entry(key: str, raw: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(key) + raw + bytes(32)


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (struct.pack("<I", 77), "has the type 77"),
        (struct.pack("<IIQ", 9, 9, 1), "an array of the type 9"),
        (struct.pack("<IIQ", 9, 4, 2**61), "values in 'k' cannot be in this file"),
        (struct.pack("<IIQ", 9, 8, 2**61), "texts in 'k' cannot be in this file"),
        (struct.pack("<IIQQ", 9, 8, 1, 2**61), "bytes of text cannot be in this file"),
    ],
)
def test_metadata_that_lies(raw: bytes, part: str) -> None:
    data = entry("k", raw)
    with pytest.raises(GgufError) as caught:
        read_header(Bytes(data), file_size=len(data))
    assert part in str(caught.value)


def test_a_key_that_stands_twice() -> None:
    one = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + one + one
    with pytest.raises(GgufError, match="stands twice"):
        read_header(Bytes(data))


def test_every_cut_is_an_error_and_never_anything_else() -> None:
    for size in range(len(DATA)):
        with pytest.raises(GgufError):
            read_header(Bytes(DATA[:size]), file_size=size)


def test_any_damage_is_a_header_or_an_error() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        data = bytearray(DATA)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            header = read_header(Bytes(bytes(data)), file_size=len(data))
        except GgufError:
            continue
        assert header.weight_bytes >= 0


def shard(number: int, count: int, tensors: int, total: int) -> bytes:
    split = {"split.no": number, "split.count": count, "split.tensors.count": total}
    metadata = {**METADATA, **split} if number == 0 else split
    return gguf(metadata, [(f"t{number}.{n}", (32,), 0) for n in range(tensors)])


def test_shards(tmp_path: Path) -> None:
    for number, tensors in enumerate((0, 2, 1)):
        (tmp_path / f"m-0000{number + 1}-of-00003.gguf").write_bytes(
            shard(number, 3, tensors, 3) + bytes(256)
        )
    header = read_file(tmp_path / "m-00001-of-00003.gguf")
    assert (header.shards, len(header.tensors), header.weight_bytes) == (3, 3, 3 * 128)
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(GgufError, match=r"m-00003-of-00003.gguf: No such file"):
        read_file(tmp_path / "m-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "no shard given"),
        ([shard(0, 2, 1, 2)], "2 shard.* and 1 are there"),
        ([shard(0, 2, 1, 2), shard(0, 2, 1, 2)], "shard 2 of 2 is another file"),
        ([shard(0, 2, 1, 5), shard(1, 2, 1, 5)], "hold 2 tensors and the first one says 5"),
    ],
)
def test_shards_that_do_not_belong_together(parts: list[bytes], why: str) -> None:
    with pytest.raises(GgufError, match=why):
        join_shards(read_header(Bytes(part)) for part in parts)


def test_an_embedding_that_is_the_output_matrix_too() -> None:
    embedding = ("token_embd.weight", (256, 4), 12)
    tied = read_header(Bytes(gguf(METADATA, [embedding, *TENSORS])))
    assert tied.tied_bytes == 4 * 144
    assert Header.from_dict(json.loads(json.dumps(tied.to_dict()))).tied_bytes == 4 * 144
    untied = read_header(Bytes(gguf(METADATA, [embedding, ("output.weight", (256, 4), 12)])))
    assert untied.tied_bytes == 0
