"""How the lab's models are written: hyperparameters and tensors of each architecture, as llama.cpp reads it.

Source: ``load_arch_hparams`` and ``load_arch_tensors`` in llama.cpp's ``src/models/*.cpp``. There are three
ways to keep a context: every layer keeps all of it (llama), most keep a window (gemma3), most keep a state
that does not grow (qwen35).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gguf

if TYPE_CHECKING:
    from tests.lab.models import ModelSpec

Layer = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Architecture:
    """How an architecture is written: its own hyperparameters, and the tensors of one layer.

    `layer(spec, index)` gives (name without "blk.N.", shape with the output dimension first). `tied`: the
    token embedding is the output matrix too, as in many models with a large vocabulary.
    """

    hyperparameters: Callable[[ModelSpec, gguf.GGUFWriter], None]
    layer: Callable[[ModelSpec, int], Layer]
    tied: bool = False


def _attention(spec: ModelSpec, index: int, *, gated: bool = False) -> Layer:
    query, kv = spec.heads * spec.head_size, spec.kv_heads(index) * spec.head_size
    yield "attn_q.weight", (2 * query if gated else query, spec.embedding)
    yield "attn_k.weight", (kv, spec.embedding)
    yield "attn_v.weight", (kv, spec.embedding)
    yield "attn_output.weight", (spec.embedding, query)


def _normed_heads(spec: ModelSpec) -> Layer:
    yield "attn_q_norm.weight", (spec.head_size,)
    yield "attn_k_norm.weight", (spec.head_size,)


def _feed_forward(spec: ModelSpec) -> Layer:
    yield "ffn_gate.weight", (spec.feed_forward, spec.embedding)
    yield "ffn_up.weight", (spec.feed_forward, spec.embedding)
    yield "ffn_down.weight", (spec.embedding, spec.feed_forward)


def _rope(spec: ModelSpec, writer: gguf.GGUFWriter) -> None:
    writer.add_rope_dimension_count(spec.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def _llama_layer(spec: ModelSpec, index: int) -> Layer:
    yield "attn_norm.weight", (spec.embedding,)
    yield from _attention(spec, index)
    yield "ffn_norm.weight", (spec.embedding,)
    yield from _feed_forward(spec)


def _gemma3_layer(spec: ModelSpec, index: int) -> Layer:
    yield "attn_norm.weight", (spec.embedding,)
    yield from _attention(spec, index)
    yield from _normed_heads(spec)
    yield "post_attention_norm.weight", (spec.embedding,)
    yield "ffn_norm.weight", (spec.embedding,)
    yield from _feed_forward(spec)
    yield "post_ffw_norm.weight", (spec.embedding,)


# qwen35: every fourth layer is attention, the others are gated delta nets.
_INTERVAL, _CONV, _STATE, _KEY_HEADS, _VALUE_HEADS = 4, 4, 32, 2, 4


def _qwen35_hyperparameters(spec: ModelSpec, writer: gguf.GGUFWriter) -> None:
    _rope(spec, writer)
    quarter = spec.head_size // 4
    writer.add_rope_dimension_sections([quarter, quarter, 0, 0])
    writer.add_full_attention_interval(_INTERVAL)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_group_count(_KEY_HEADS)
    writer.add_ssm_time_step_rank(_VALUE_HEADS)
    writer.add_ssm_inner_size(_VALUE_HEADS * _STATE)


def _qwen35_layer(spec: ModelSpec, index: int) -> Layer:
    width, value = spec.embedding, _VALUE_HEADS * _STATE
    mixed = 2 * _KEY_HEADS * _STATE + value
    yield "attn_norm.weight", (width,)
    if (index + 1) % _INTERVAL == 0:
        yield from _attention(spec, index, gated=True)
        yield from _normed_heads(spec)
    else:
        yield "attn_qkv.weight", (mixed, width)
        yield "attn_gate.weight", (value, width)
        yield "ssm_conv1d.weight", (mixed, _CONV)
        yield "ssm_dt.bias", (_VALUE_HEADS,)
        yield "ssm_a", (_VALUE_HEADS,)
        yield "ssm_beta.weight", (_VALUE_HEADS, width)
        yield "ssm_alpha.weight", (_VALUE_HEADS, width)
        yield "ssm_norm.weight", (_STATE,)
        yield "ssm_out.weight", (width, value)
    yield "post_attention_norm.weight", (width,)
    yield from _feed_forward(spec)


ARCHITECTURES = {
    "llama": Architecture(_rope, _llama_layer),
    "gemma3": Architecture(_rope, _gemma3_layer, tied=True),
    "qwen35": Architecture(_qwen35_hyperparameters, _qwen35_layer),
}
