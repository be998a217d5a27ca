"""What a conversion should give, and results that are not that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gb10.convert_expect import Expectation, expectation, judge, kinds
from gb10.gguf import FileReader, Header, Tensor
from gb10.safetensors import SourceTensor, read_tensors
from tests.lab import nvfp4

SPEC = nvfp4.Nvfp4Spec("x", layers=2)


def tensor(name: str, kind: str, *shape: int) -> SourceTensor:
    return SourceTensor(name, kind, shape, 0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[SourceTensor, ...]:
    """The tensors of the model that the lab converts."""
    folder = tmp_path_factory.mktemp("model")
    nvfp4.write(SPEC, folder)
    path = folder / "model.safetensors"
    return read_tensors(FileReader(path), path.stat().st_size)


def result(expected: Expectation) -> Header:
    """The header of a right result of `expected`, as large as is likely."""
    packed = expected.nvfp4 // 64 * 36
    tensors = (
        Tensor("blk.0.ffn_up.weight", (64, expected.nvfp4 // 64), "NVFP4", packed),
        Tensor("token_embd.weight", (128, 384), "Q8_0", expected.likely - packed),
        Tensor("output_norm.weight", (128,), "F32", 512),
    )
    return Header("llama", {}, {}, tensors, sum(one.bytes for one in tensors))


def test_the_lab_model(source: tuple[SourceTensor, ...]) -> None:
    expected = expectation(source, "q8_0")
    matrices = 2 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128)
    assert expected.nvfp4 == matrices
    embeddings = 2 * 384 * 128
    assert expected.likely == matrices // 64 * 36 + embeddings // 32 * 34 + 5 * 128 * 4
    assert expected.largest == embeddings // 2
    assert expected.tensors == 2 * (7 + 2) + 3
    assert expected.least <= expected.likely <= expected.most


def test_sixteen_bits_are_larger(source: tuple[SourceTensor, ...]) -> None:
    q8_0, auto, f32 = (expectation(source, kind) for kind in ("q8_0", "auto", "f32"))
    assert auto.likely - q8_0.likely == 2 * 384 * 128 * 2 - 2 * 384 * 128 // 32 * 34
    assert f32.likely > auto.likely
    assert q8_0.nvfp4 == auto.nvfp4 == f32.nvfp4


def test_compressed_tensors_are_packed_too() -> None:
    packed = [tensor("a.weight_packed", "U8", 8, 64), tensor("a.weight_scale", "F8_E4M3", 8, 8)]
    assert expectation(packed, "q8_0").nvfp4 == 8 * 128


@pytest.mark.parametrize(
    "tensors",
    [
        [tensor("a.weight", "U8", 8, 64)],
        [tensor("a.weight", "F8_E4M3", 8, 64), tensor("a.weight_scale", "F32", 8)],
        [tensor("a.weight", "U8", 8, 64), tensor("a.weight_scale", "F8_E4M3", 8, 4)],
        [
            tensor("vision_tower.a.weight", "U8", 8, 64),
            tensor("vision_tower.a.weight_scale", "F8_E4M3", 8, 8),
        ],
    ],
    ids=["no scale", "fp8", "scales of another group", "of the eyes"],
)
def test_what_is_not_packed(tensors: list[SourceTensor]) -> None:
    assert expectation(tensors, "q8_0").nvfp4 == 0


def test_what_predicts_ahead_may_be_there_or_not() -> None:
    one = tensor("model.a.weight", "BF16", 1024, 4096)
    both = expectation([one, tensor("mtp.a.weight", "BF16", 1024, 4096)], "q8_0")
    alone = expectation([one], "q8_0")
    assert (both.least, both.likely) == (alone.least, alone.likely)
    assert both.most > alone.most + alone.likely


def test_a_right_result(source: tuple[SourceTensor, ...]) -> None:
    expected = expectation(source, "q8_0")
    header = result(expected)
    assert judge(header, header.weight_bytes + 10_000, expected) == []
    assert kinds(header) == "1 NVFP4, 1 Q8_0, 1 F32"


def test_results_that_are_not_what_was_expected(source: tuple[SourceTensor, ...]) -> None:
    expected = expectation(source, "q8_0")
    good = result(expected)
    packed, embedding, norm = good.tensors
    size = good.weight_bytes + 10_000

    def faults(*tensors: Tensor, size: int = size) -> str:
        return "; ".join(judge(replace(good, tensors=tensors), size, expected))

    assert "0 weights are NVFP4, and" in faults(replace(packed, type="Q8_0"), embedding, norm)
    half = faults(packed, replace(embedding, type="BF16"), norm)
    assert half == "1 tensors are still in 16 bits (token_embd.weight is BF16)"
    # Some architectures insist on 16 bits for a small matrix.
    assert faults(*good.tensors, Tensor("x.weight", (32, 8), "F16", 512)) == ""
    assert "its tensors have" in faults(packed, replace(embedding, bytes=2 * expected.most), norm)
    assert "the file has" in faults(*good.tensors, size=good.weight_bytes - 1)
    large = replace(embedding, type="F32", bytes=expected.likely + 3 * 1024**2)
    assert "bytes are F32" in faults(packed, large, norm)
