"""A small llama model of random weights as ModelOpt leaves one in NVFP4: safetensors, configs, tokenizer.

What a hub has of such a model, byte for byte in its layout, so that llama.cpp's own converter takes it:
packed weights (two 4-bit values a byte, the even one low), a float8_e4m3 scale for each 16 of them, one
float32 scale for the tensor and one for its input. Embedding, output and norms stay bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.lab import paths, recipe
from tests.lab.hub import HubFile, HubRepo
from tests.lab.models import CHAT_TEMPLATE
from tests.lab.models import _vocabulary as vocabulary

Bytes = npt.NDArray[np.uint8]

GROUP = 16  # weights that share a scale
_FP4_STD = 2.93  # standard deviation of the sixteen values that four bits can say
_SCALE = 0x38  # 1.0 as float8_e4m3
_BF16_ONE = 0x3F80
_STEPS_STD = 73.9  # standard deviation of a uniform int8


@dataclass(frozen=True)
class Nvfp4Spec:
    """Shape of the model; `embedding` and `feed_forward` are multiples of 64, as llama.cpp's blocks want.

    `parts` is the number of safetensors files; `architecture` is the name in config.json.
    """

    name: str
    embedding: int = 128
    layers: int = 4
    heads: int = 4
    heads_kv: int = 2
    feed_forward: int = 256
    context: int = 2048
    parts: int = 1
    architecture: str = "LlamaForCausalLM"
    seed: int = 11

    @property
    def repo(self) -> str:
        """Its repository on the stand-in hub."""
        return f"standin/{self.name}"


def ensure(spec: Nvfp4Spec) -> tuple[Path, ...]:
    """The model's files in the cache, made when absent."""
    key = recipe.content_key(vars(spec), Path(__file__))
    folder = paths.cache() / "models" / f"{spec.name}-{key}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        write(spec, part)
        part.replace(folder)
    return tuple(sorted(folder.iterdir()))


def repo(spec: Nvfp4Spec, *, instead: Mapping[str, Path] | None = None) -> HubRepo:
    """The hub's repository of the model; `instead` has other bytes for files of it, by their names."""
    places = {path.name: path for path in ensure(spec)} | dict(instead or {})
    files = tuple(HubFile(name, path) for name, path in sorted(places.items()))
    named = "".join(f"{file.name} {file.sha256}\n" for file in files)
    return HubRepo(spec.repo, hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest(), files)


def write(spec: Nvfp4Spec, folder: Path) -> None:
    """Write all files of the model to an existing folder."""
    tensors = dict(_tensors(spec))
    names = list(tensors)
    size = -(-len(names) // spec.parts)
    weight_map = {}
    for number in range(spec.parts):
        own = names[number * size : (number + 1) * size]
        count = f"-{number + 1:05d}-of-{spec.parts:05d}" if spec.parts > 1 else ""
        file = f"model{count}.safetensors"
        weight_map |= dict.fromkeys(own, file)
        (folder / file).write_bytes(safetensors({name: tensors[name] for name in own}))
    if spec.parts > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, content in _configs(spec).items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "tokenizer.model").write_bytes(_tokenizer())
    (folder / "README.md").write_text("---\nlicense: mit\n---\nRandom weights.\n")
    (folder / "pytorch_model.bin").write_bytes(b"not wanted by a converter that has safetensors")


def weights(spec: Nvfp4Spec) -> dict[str, bytes]:
    """The bytes of each tensor of the model."""
    return {name: data for name, (_, _, data) in _tensors(spec)}


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file: name to type, shape and bytes of each tensor."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def _tensors(spec: Nvfp4Spec) -> Iterator[tuple[str, tuple[str, tuple[int, ...], bytes]]]:
    stream = np.random.PCG64(spec.seed)
    tokens, size = len(vocabulary()[0]), spec.embedding
    keys = spec.heads_kv * size // spec.heads
    matrices = {
        "self_attn.q_proj": (size, size), "self_attn.k_proj": (keys, size), "self_attn.v_proj": (keys, size),
        "self_attn.o_proj": (size, size), "mlp.gate_proj": (spec.feed_forward, size),
        "mlp.up_proj": (spec.feed_forward, size), "mlp.down_proj": (size, spec.feed_forward),
    }  # fmt: skip
    yield "model.embed_tokens.weight", _bf16(stream, (tokens, size))
    for layer in range(spec.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{norm}.weight", _ones(size)
        for name, (rows, columns) in matrices.items():
            for ending, tensor in _quantized(stream, rows, columns).items():
                yield f"model.layers.{layer}.{name}.{ending}", tensor
    yield "model.norm.weight", _ones(size)
    yield "lm_head.weight", _bf16(stream, (tokens, size))


def _quantized(
    stream: np.random.PCG64, rows: int, columns: int
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    groups = columns // GROUP
    return {
        "weight": ("U8", (rows, columns // 2), _random(stream, rows * columns // 2).tobytes()),
        "weight_scale": ("F8_E4M3", (rows, groups), bytes([_SCALE]) * (rows * groups)),
        "weight_scale_2": ("F32", (), struct.pack("<f", 1 / (_FP4_STD * columns**0.5))),
        "input_scale": ("F32", (), struct.pack("<f", 0.01)),
    }


def _random(stream: np.random.PCG64, count: int) -> Bytes:
    return stream.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count]


def _bf16(stream: np.random.PCG64, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], bytes]:
    steps = _random(stream, int(np.prod(shape))).view(np.int8).astype(np.float32)
    values = (steps / np.float32(_STEPS_STD * shape[-1] ** 0.5)).astype("<f4")
    return "BF16", shape, (values.view("<u4") >> 16).astype("<u2").tobytes()


def _ones(size: int) -> tuple[str, tuple[int, ...], bytes]:
    return "BF16", (size,), struct.pack("<H", _BF16_ONE) * size


def _configs(spec: Nvfp4Spec) -> dict[str, object]:
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": GROUP}
    tokens = len(vocabulary()[0])
    return {
        "config.json": {
            "architectures": [spec.architecture], "model_type": "llama", "hidden_size": spec.embedding,
            "intermediate_size": spec.feed_forward, "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads, "num_key_value_heads": spec.heads_kv,
            "max_position_embeddings": spec.context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "vocab_size": tokens, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
            "tie_word_embeddings": False,
            "quantization_config": {
                "quant_algo": "NVFP4", "quant_method": "modelopt", "ignore": ["lm_head"],
                "producer": {"name": "modelopt", "version": "0.35.0"},
            },
        },
        "hf_quant_config.json": {
            "producer": {"name": "modelopt", "version": "0.35.0"},
            "quantization": {**quantization, "exclude_modules": ["lm_head"]},
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
            "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": CHAT_TEMPLATE,
        },
    }  # fmt: skip


# -- tokenizer.model: sentencepiece's ModelProto, written by hand ---------------------------------------

# Kinds of a piece in the file are those of GGUF, but for the numbers of the last two.
_PIECE_KINDS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}
_BPE = 2


def _tokenizer() -> bytes:
    pieces = b""
    for piece, kind in zip(*vocabulary(), strict=True):
        body = _field(1, piece.encode()) + b"\x15" + struct.pack("<f", 0.0) + _number(3, _PIECE_KINDS[kind])
        pieces += _field(1, body)
    trainer = _number(3, _BPE) + _number(35, 1)  # byte_fallback: any text can be said
    normalizer = _field(1, b"identity") + _number(3, 1) + _number(4, 0) + _number(5, 1)
    return pieces + _field(2, trainer) + _field(3, normalizer)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
