"""The memory of one child: what llama.cpp allocated, to the MiB, and each architecture by its rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gb10.gguf import GgufError, Header
from gb10.memory import (
    MIB,
    Settings,
    child,
    compute,
    kv_bytes_per_token,
    kv_cache,
    recurrent_state,
    refuse_cache,
)
from gb10.shape import FULL, NOTHING, SLIDING, Shape, shape_of
from gb10.slots import Slots

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "kv-cache-measured.json").read_text())
ARCHITECTURES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "kv-cache-of-architectures.json").read_text()
)
"""Models of random weights that the test of llama.cpp b11312 writes for its architectures, and what its
llama-server allocated for them at ctx-size 16384: (parallel, unified, type, KV, recurrent, compute), in
MiB."""
CASES = [(name, case) for name, model in GOLDEN.items() for case in model["cases"]]


def header(architecture: str, **values: Any) -> Header:
    """A header; `_` in a key stands for `.` where it is written `__`."""
    metadata = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    return Header(architecture, metadata, {}, (), 0)


def dense(architecture: str = "llama", layers: int = 4, **values: Any) -> Shape:
    base = {
        "block_count": layers,
        "embedding_length": 1024,
        "attention__head_count": 8,
        "attention__head_count_kv": 2,
    }
    return shape_of(header(architecture, **{**base, **values}))


def settings(ctx: int = 4096, parallel: int = 1, unified: bool = True, **more: Any) -> Settings:
    return Settings(Slots(ctx, parallel, unified), **more)


ROW = 2 * (1024 // 8)  # elements of K (and of V) for each cell of a layer of `dense`


@pytest.mark.parametrize(("name", "case"), CASES)
def test_golden_buffers(name: str, case: dict[str, Any]) -> None:
    metadata = GOLDEN[name]["metadata"]
    shape = shape_of(Header(metadata["general.architecture"], metadata, {}, (), 0))
    chosen = Settings(
        Slots(case["ctx_size"], case["parallel"], case["kv_unified"]), case["cache_type"], case["cache_type"]
    )
    assert shape.known
    # llama.cpp prints two decimals.
    assert kv_cache(shape, chosen) / MIB == pytest.approx(case["measured_kv_mib"], abs=0.005)
    assert recurrent_state(shape, chosen) / MIB == pytest.approx(case["measured_recurrent_mib"], abs=0.005)


@pytest.mark.parametrize("model", ARCHITECTURES, ids=[model["model"] for model in ARCHITECTURES])
def test_every_architecture_is_exact_or_a_bound(model: dict[str, Any]) -> None:
    name = model["architecture"]
    shape = shape_of(
        Header(name, {f"{name}.{key}": value for key, value in model["metadata"].items()}, {}, (), 0)
    )
    assert model["cases"]
    for parallel, unified, kind, kv, recurrent, computing in model["cases"]:
        chosen = Settings(Slots(16384, parallel, unified), kind, kind)
        found = kv_cache(shape, chosen) / MIB, recurrent_state(shape, chosen) / MIB
        if shape.known:
            assert found == pytest.approx((kv, recurrent), abs=0.0051)
            assert compute(shape, chosen) / MIB >= computing
        else:
            assert sum(found) >= kv + recurrent - 0.01


@pytest.mark.parametrize(
    ("shared", "pattern", "measured"),
    [(0, [1, 0, 1, 1, 0], (28.0, 14.88, 28.0)), (1, [1, 1, 1, 0, 0], (20.0, 10.63, 20.0))],
)
def test_gemma4_as_llama_cpp_allocated_it(
    shared: int, pattern: list[int], measured: tuple[float, ...]
) -> None:
    """With a full cache in the sliding layers (`swa-full`), in b11312, at ctx-size 16384."""
    shape = dense(
        "gemma4",
        layers=5,
        embedding_length=128,
        attention__head_count=2,
        attention__head_count_kv=1,
        attention__key_length=128,
        attention__value_length=128,
        attention__key_length_swa=64,
        attention__value_length_swa=64,
        attention__sliding_window=32,
        attention__sliding_window_pattern=pattern,
        attention__shared_kv_layers=shared,
    )
    ways = ((1, False, "f16"), (4, False, "q8_0"), (4, True, "f16"))
    for (parallel, unified, kind), mebibytes in zip(ways, measured, strict=True):
        chosen = Settings(Slots(16384, parallel, unified), kind, kind, swa_full=True)
        assert kv_cache(shape, chosen) / MIB == pytest.approx(mebibytes, abs=0.011)


def test_cells_are_padded_to_256() -> None:
    assert kv_cache(dense(), settings(4097)) == 4 * 4352 * 2 * ROW * 2
    assert Slots(4096, 3, unified=False).cells == 1536
    assert Slots(4096, 3, unified=True).cells == 4096


def test_split_slots_hold_as_much_as_a_pool_of_their_padded_sizes() -> None:
    assert kv_cache(dense(), settings(4096, 3, unified=False)) == 4 * 3 * 1536 * 2 * ROW * 2


@pytest.mark.parametrize(
    ("kind", "each"), [("f16", 2), ("bf16", 2), ("q8_0", 34 / 32), ("q4_0", 18 / 32), ("f32", 4)]
)
def test_cache_types(kind: str, each: float) -> None:
    chosen = settings(cache_type_k=kind, cache_type_v=kind)
    assert kv_cache(dense(), chosen) == 4 * 4096 * 2 * ROW * each
    assert kv_bytes_per_token(dense(), chosen) == 4 * 2 * ROW * each


def test_key_and_value_lengths_of_the_metadata_come_first() -> None:
    shape = dense(attention__key_length=192, attention__value_length=64)
    assert {(layer.k, layer.v) for layer in shape.layers} == {(2 * 192, 2 * 64)}


def test_zero_is_absent() -> None:
    shape = dense(attention__key_length=0, attention__head_count_kv=0, nextn_predict_layers=0)
    assert {layer.k for layer in shape.layers} == {1024}


def test_heads_for_each_layer() -> None:
    shape = dense(layers=3, attention__head_count_kv=[2, 0, 4])
    assert [layer.attention for layer in shape.layers] == [FULL, NOTHING, FULL]
    assert [layer.k for layer in shape.layers] == [256, 0, 512]


def test_layers_that_predict_further_tokens_hold_nothing() -> None:
    shape = dense("glm4moe", layers=5, nextn_predict_layers=2)
    assert [layer.attention for layer in shape.layers] == [FULL, FULL, FULL, NOTHING, NOTHING]


@pytest.mark.parametrize(
    ("architecture", "more", "kinds"),
    [
        ("gemma3", {}, "SSSSSF"),
        ("gpt-oss", {}, "SFSFSF"),
        ("gemma2", {}, "SFSFSF"),
        ("cohere2", {}, "SSSFSS"),
        ("cohere2moe", {}, "FSSSFS"),
        ("gemma3", {"attention__sliding_window_pattern": 3}, "SSFSSF"),
        ("gemma3", {"attention__sliding_window_pattern": [0, 1, 0, 1, 1, 1]}, "FSFSSS"),
        ("gemma4", {"attention__sliding_window_pattern": [True, True, True, True, True, False]}, "SSSSSF"),
        (
            "gemma4",
            {"attention__sliding_window_pattern": [1, 0] * 3, "attention__shared_kv_layers": 2},
            "SFSF--",
        ),
        ("phi3", {}, "FFFFFF"),
        ("llama", {}, "FFFFFF"),
    ],
)
def test_which_layers_slide(architecture: str, more: dict[str, Any], kinds: str) -> None:
    shape = dense(architecture, layers=6, attention__sliding_window=512, **more)
    assert (
        "".join({FULL: "F", SLIDING: "S", NOTHING: "-"}[layer.attention] for layer in shape.layers) == kinds
    )
    assert shape.known


def test_gemma3_without_a_window_does_not_slide() -> None:
    assert {layer.attention for layer in dense("gemma3", layers=6).layers} == {FULL}
    assert dense("gemma2").window == 4096


def test_gemma3n_keeps_the_first_twenty_layers() -> None:
    shape = dense("gemma3n", layers=30, attention__sliding_window=512)
    assert [layer.attention == NOTHING for layer in shape.layers] == [False] * 20 + [True] * 10


def test_sliding_layers_have_heads_of_their_own_size() -> None:
    shape = dense(
        "gemma4",
        layers=2,
        attention__sliding_window=512,
        attention__sliding_window_pattern=[1, 0],
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=128,
    )
    assert [(layer.k, layer.v) for layer in shape.layers] == [(512, 256), (1024, 1024)]


def sliding_cells_of(chosen: Settings) -> float:
    shape = dense("gpt-oss", layers=2, attention__sliding_window=128)
    full = chosen.slots.cells * chosen.slots.streams
    return kv_cache(shape, chosen) / (2 * ROW * 2) - full


def test_the_cells_of_a_window() -> None:
    assert sliding_cells_of(settings(32768)) == 768  # 128 + 512, padded
    assert sliding_cells_of(settings(32768, 8)) == 1536  # 8 windows in one pool, and one ubatch
    assert sliding_cells_of(settings(32768, 8, unified=False)) == 8 * 768
    assert sliding_cells_of(settings(256)) == 256  # never more than there is
    assert sliding_cells_of(settings(32768, swa_full=True)) == 32768
    assert sliding_cells_of(settings(32768, ubatch=2048)) == 2304


def test_the_bytes_of_a_token_are_those_of_the_layers_that_grow() -> None:
    shape = dense("gpt-oss", layers=2, attention__sliding_window=128)
    assert kv_bytes_per_token(shape, settings()) == 2 * ROW * 2
    assert kv_bytes_per_token(shape, settings(swa_full=True)) == 2 * 2 * ROW * 2


DELTA = {
    "ssm__inner_size": 4096,
    "ssm__state_size": 128,
    "ssm__group_count": 16,
    "ssm__conv_kernel": 4,
    "attention__key_length": 256,
    "attention__value_length": 256,
}


@pytest.mark.parametrize("architecture", ["qwen3next", "qwen35", "qwen35moe"])
def test_gated_delta_nets(architecture: str) -> None:
    shape = dense(architecture, layers=48, **DELTA)
    assert shape.growing == 12
    assert sum(layer.recurrent for layer in shape.layers) == 36
    state = 4 * 36 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)
    assert recurrent_state(shape, settings(parallel=8)) == 8 * state
    assert recurrent_state(shape, settings(1 << 20, parallel=8)) == 8 * state
    assert kv_bytes_per_token(shape, settings()) == 12 * 2 * 2 * 256 * 2


def test_gated_delta_nets_by_other_metadata() -> None:
    assert dense("qwen35", layers=6, full_attention_interval=3, **DELTA).growing == 2
    listed = dense("qwen35moe", layers=4, attention__recurrent_layers=[True, False, True, False], **DELTA)
    assert [layer.recurrent for layer in listed.layers] == [True, False, True, False]
    nextn = dense("qwen35moe", layers=5, nextn_predict_layers=1, **DELTA)
    assert [layer.attention for layer in nextn.layers] == [NOTHING, NOTHING, NOTHING, FULL, NOTHING]
    assert not nextn.layers[4].recurrent


@pytest.mark.parametrize("architecture", ["nemotron_h", "nemotron_h_moe"])
def test_nemotron_h(architecture: str) -> None:
    shape = dense(
        architecture,
        layers=5,
        attention__head_count_kv=[0, 0, 2, 0, 0],
        feed_forward_length=[0, 1856, 0, 0, 1856],
        **DELTA,
    )
    assert [layer.attention for layer in shape.layers] == [NOTHING, NOTHING, FULL, NOTHING, NOTHING]
    assert [layer.recurrent for layer in shape.layers] == [True, False, False, True, False]


def test_other_hybrids() -> None:
    jamba = dense("jamba", layers=3, attention__head_count_kv=[0, 2, 0], **DELTA)
    assert [layer.recurrent for layer in jamba.layers] == [True, False, True]
    falcon = dense("falcon-h1", layers=3, **DELTA)
    assert all(layer.recurrent and layer.attention == FULL for layer in falcon.layers)
    mamba = dense("mamba2", layers=3, **DELTA)
    assert kv_cache(mamba, settings()) == 0
    assert recurrent_state(mamba, settings()) > 0
    short = dense("lfm2", layers=2, attention__head_count_kv=[0, 2], shortconv__l_cache=3)
    assert recurrent_state(short, settings()) == 4 * 1024 * 2


def test_mla_keeps_one_compressed_key() -> None:
    more = {"attention__kv_lora_rank": 512, "rope__dimension_count": 64, "attention__value_length": 512}
    shape = dense("deepseek2", attention__key_length=576, attention__key_length_mla=192, **more)
    assert {(layer.k, layer.v) for layer in shape.layers} == {(576, 0)}
    old = dense("deepseek2", attention__key_length=192, attention__key_length_mla=0, **more)
    assert {(layer.k, layer.v) for layer in old.layers} == {(384, 1024)}


@pytest.mark.parametrize(
    ("length", "kind", "good"), [(16, "f16", True), (16, "q8_0", False), (64, "q4_0", True)]
)
def test_a_quantized_block_must_divide_a_head(length: int, kind: str, good: bool) -> None:
    shape = dense(attention__key_length=length)
    chosen = settings(cache_type_k=kind, cache_type_v=kind)
    assert (refuse_cache(shape, chosen) is None) == good
    assert bool(child(shape, chosen, weights=1).notes) != good


def test_an_unknown_architecture_is_an_upper_bound_and_says_so() -> None:
    more: dict[str, Any] = {
        **DELTA,
        "attention__sliding_window": 128,
        "attention__sliding_window_pattern": [1, 1, 1, 0],
    }
    shape = dense("brandnew", attention__shared_kv_layers=1, **more)
    assert not shape.known
    assert "upper bound" in shape.note
    assert all(layer.attention == FULL and layer.recurrent for layer in shape.layers)
    figures = child(shape, settings(), weights=1)
    assert figures.notes == (shape.note,)
    assert {part.source for part in figures.parts if part.name == "KV cache"} == {"upper bound"}


def test_gemma4_without_its_list_of_layers_is_an_upper_bound() -> None:
    assert not dense("gemma4", attention__sliding_window=512).known


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, "does not say how many layers"),
        ({"block_count": 10**6}, "is 1000000, which is no size"),
        ({"block_count": "two"}, "is 'two', which is no size"),
        ({"block_count": 2, "attention__head_count": [1, -1]}, "holds a value that is no size"),
        ({"block_count": 2, "embedding_length": 2.5}, "is 2.5, which is no size"),
    ],
)
def test_metadata_that_cannot_be(values: dict[str, Any], part: str) -> None:
    with pytest.raises(GgufError) as caught:
        shape_of(header("llama", **values))
    assert part in str(caught.value)


def test_the_estimate_follows_what_was_measured_on_a_gpu() -> None:
    """MiB of a CUDA child at ctx 32768, as nvidia-smi counts it: unified, then 4 and 8 split slots."""
    shape = dense(layers=16)
    pool = compute(shape, settings(32768, 8))
    # The estimate counts the mask on the host too, which nvidia-smi does not.
    assert pool - compute(shape, settings(32768, 4, unified=False)) == 2 * (3070 - 3046) * MIB
    assert pool - compute(shape, settings(32768, 8, unified=False)) == 2 * (3070 - 3042) * MIB


def test_all_parts_of_a_child() -> None:
    shape = dense()
    figures = child(
        shape,
        settings(),
        weights=1000,
        projector=100,
        draft=(dense(layers=1), 10),
        cache_ram=2048 * MIB,
        overhead=700 * MIB,
    )
    assert figures.bytes_of("weights") == 1000
    assert figures.bytes_of("projector") == 100
    assert figures.bytes_of("prompt cache") == 2048 * MIB
    assert figures.bytes_of("overhead") == 700 * MIB
    assert figures.bytes_of("draft") == 10 + 4096 * 2 * ROW * 2 + compute(dense(layers=1), settings())
    assert figures.total == sum(part.bytes for part in figures.parts)
    assert any("projector" in note for note in figures.notes)


def test_weights_that_are_kept_twice_count_twice() -> None:
    twice = replace(dense(), kept_twice=3 * MIB)
    figures = child(twice, settings(), weights=1000, draft=(twice, 10))
    assert figures.bytes_of("weights") == 1000 + 3 * MIB
    assert figures.bytes_of("draft") == 3 * MIB + child(
        dense(), settings(), weights=0, draft=(dense(), 10)
    ).bytes_of("draft")
    assert any("3 MiB are kept twice" in note for note in figures.notes)


def test_without_flash_attention_v_rows_are_as_wide_as_the_widest() -> None:
    shape = dense(layers=2, attention__head_count_kv=[1, 4])
    assert kv_cache(shape, settings()) == 4096 * 2 * (128 + 512) * 2
    assert kv_cache(shape, settings(flash_attention=False)) == 4096 * (128 + 512 + 512 + 512) * 2
