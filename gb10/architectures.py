"""Which architectures the memory plan knows, by how their layers keep a context.

Source: ``load_arch_hparams`` in llama.cpp's ``src/models/*.cpp``, ``create_memory`` in
``src/llama-model.cpp``. To add one: read both there, and put its name (``general.architecture``) into the set
that does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = frozenset(
    {
        "apertus",
        "arcee",
        "arctic",
        "baichuan",
        "bailingmoe",
        "bailingmoe2",
        "bitnet",
        "bloom",
        "chameleon",
        "chatglm",
        "codeshell",
        "cogvlm",
        "command-r",
        "dbrx",
        "deci",
        "deepseek",
        "dots1",
        "ernie4_5",
        "ernie4_5-moe",
        "exaone",
        "falcon",
        "gemma",
        "glm4",
        "glm4moe",
        "gpt2",
        "gptneox",
        "granite",
        "granitemoe",
        "grovemoe",
        "hunyuan-dense",
        "hunyuan-moe",
        "hunyuan_vl",
        "hy_v3",
        "internlm2",
        "jais",
        "jais2",
        "llama",
        "maincoder",
        "minicpm",
        "minicpm3",
        "minimax-m2",
        "mistral3",
        "mpt",
        "nemotron",
        "olmo",
        "olmoe",
        "openelm",
        "orion",
        "paddleocr",
        "pangu-embedded",
        "phi2",
        "phi3",
        "phimoe",
        "plamo",
        "plm",
        "qwen",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "qwen3",
        "qwen3moe",
        "qwen3vl",
        "qwen3vlmoe",
        "refact",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder",
        "starcoder2",
        "talkie",
        "xverse",
    }
)
"""Dense and MoE architectures in which every layer is full attention."""

MLA = frozenset({"deepseek2", "deepseek2-ocr", "mistral4"})
"""Architectures that keep one compressed K for each token, where `key_length_mla` is set."""

ATTENTION_INTERVAL = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Gated delta nets: recurrent but for every n-th layer."""

HEADLESS_IS_RECURRENT = frozenset(
    {"nemotron_h", "nemotron_h_moe", "jamba", "granitehybrid", "lfm2", "lfm2moe"}
)
"""Hybrids in which a layer without KV heads is recurrent."""

RECURRENT = frozenset({"mamba", "mamba2"})
BOTH = frozenset({"falcon-h1"})
"""Each layer holds a recurrent state and a KV cache."""


@dataclass(frozen=True)
class Sliding:
    """How an architecture with a sliding window is read.

    ``period``: one layer of so many is full attention, the last, or the first with ``first_is_full``. Without
    a period the metadata must list the layers. ``window`` is what counts when the metadata has none (None:
    then no layer slides), ``fixed`` a window that the metadata cannot change.
    """

    period: int | None = None
    window: int | None = None
    fixed: int | None = None
    first_is_full: bool = False


SLIDING_WINDOWS = {
    "gemma2": Sliding(2, window=4096),
    "gemma3": Sliding(6),
    "gemma3n": Sliding(5),
    "gemma4": Sliding(),
    "gpt-oss": Sliding(2),
    "cohere2": Sliding(4),
    "cohere2moe": Sliding(4, first_is_full=True),
    "llama4": Sliding(4, window=8192, fixed=8192),
    "exaone4": Sliding(4, window=4096),
    "exaone-moe": Sliding(4, window=128),
    "olmo2": Sliding(4),
    "plamo3": Sliding(8),
    "mellum": Sliding(4),
    "afmoe": Sliding(4),
    "muse-glimmer": Sliding(4),
    "smallthinker": Sliding(4, fixed=4096, first_is_full=True),
    "granite_swa": Sliding(),
    "maple": Sliding(),
    "mimo2": Sliding(),
    "step35": Sliding(),
    "spark2_5": Sliding(),
}

GEMMA3N_LAYERS_WITH_KV = 20
EXAONE4_LAYERS_WITH_WINDOW = 64
