"""What a conversion should give, computed from the headers of the source, and is a result that? Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gb10.gguf import Header, Tensor
from gb10.safetensors import SourceTensor
from gb10.tensor_types import TENSOR_TYPES

NVFP4 = "NVFP4"
_BLOCKS = {name: (block, size) for name, block, size in TENSOR_TYPES.values()}
_OUTTYPES = {"q8_0": "Q8_0", "bf16": "BF16", "f16": "F16", "f32": "F32", "auto": "BF16"}
_WEIGHT_ENDINGS = (".weight_packed", ".weight")
# Numbers that belong to a quantized weight, or to the KV cache: none is a tensor of the result of any size.
_SCALES = (
    ".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".weight_global_scale", ".input_scale",
    ".input_global_scale", ".k_scale", ".v_scale", ".weight_shape", ".weight_zero_point",
)  # fmt: skip
# Of models that also see and hear: these go into a projector, which is a file of its own.
_SENSES = ("vision", "visual", "audio", "multi_modal_projector", "image_newline", "embed_vision")
# Predicts further tokens; whether it goes into the file depends on the architecture.
_AHEAD = ("mtp.", ".mtp", "nextn")

TOLERANCE = 0.05
"""Part of the size by which a result may differ: routers and convolutions stay F32, some are merged."""

SLACK = 1024**2
"""Bytes beside that; small models."""

MOST_HALF = 0.02
"""Part of the weights that may be left in 16 bits in a q8_0 result: what an architecture insists on."""

MOST_FLOAT = 0.1
"""Part of the weights that may be F32 in a q8_0 result: norms, routers, convolutions."""

HEADER_ROOM = 64 * 1024**2
"""Bytes that a file may have beyond its tensors: metadata, the token list."""


@dataclass(frozen=True)
class Expectation:
    """What the tensors of the result should be.

    ``nvfp4``: how many weights come as NVFP4 and stay so (of the text model). ``tensors`` is their number in
    the source, ``largest`` the most elements of one that is not NVFP4. ``least``, ``likely`` and ``most`` are
    bytes of all tensors of the result.
    """

    outtype: str
    nvfp4: int
    tensors: int
    largest: int
    least: int
    likely: int
    most: int

    @property
    def file_bytes(self) -> int:
        """Bytes to keep free for the file."""
        return self.most + HEADER_ROOM

    @property
    def memory_bytes(self) -> int:
        """Bytes that the converter needs at most: it holds the NVFP4 tensors until it writes, another in two
        copies of F32, and itself."""
        return _bytes(NVFP4, self.nvfp4) + 8 * self.largest + 2 * 1024**3


def expectation(tensors: Iterable[SourceTensor], outtype: str) -> Expectation:
    """What a conversion of ``tensors`` to ``outtype`` should give."""
    by_name = {tensor.name: tensor for tensor in tensors}
    nvfp4 = count = largest = likely = unsure = 0
    for name, tensor in by_name.items():
        if name.endswith(_SCALES) or any(word in name for word in _SENSES):
            continue
        count += 1
        weights = packed_weights(tensor, by_name)
        largest = largest if weights else max(largest, tensor.elements)
        size = _bytes(NVFP4, weights) if weights else _plain(tensor, outtype)
        if any(word in name for word in _AHEAD):
            unsure += size
            continue
        nvfp4 += weights
        likely += size
    least = int(likely * (1 - TOLERANCE)) - SLACK
    most = int((likely + unsure) * (1 + TOLERANCE)) + SLACK
    return Expectation(outtype, nvfp4, count, largest, max(0, least), likely, most)


def packed_weights(tensor: SourceTensor, by_name: dict[str, SourceTensor]) -> int:
    """How many NVFP4 weights are packed in a tensor; 0 for one of another kind."""
    for ending in _WEIGHT_ENDINGS:
        if tensor.name.endswith(ending):
            scale = by_name.get(tensor.name.removesuffix(ending) + ".weight_scale")
            # Two weights a byte, and a scale of eight bits for each sixteen of them.
            if (
                scale is not None
                and tensor.type == "U8"
                and scale.type == "F8_E4M3"
                and scale.elements * 16 == tensor.elements * 2
            ):
                return tensor.elements * 2
    return 0


def _plain(tensor: SourceTensor, outtype: str) -> int:
    if len(tensor.shape) <= 1:
        return tensor.elements * 4  # vectors are always F32
    kind = _OUTTYPES[outtype]
    if tensor.shape[-1] % _BLOCKS[kind][0]:
        kind = "F16"  # no row of whole blocks
    return _bytes(kind, tensor.elements)


def _bytes(kind: str, elements: int) -> int:
    block, size = _BLOCKS[kind]
    return elements // block * size


def judge(header: Header, size: int, expected: Expectation) -> list[str]:
    """What is wrong with a result of ``size`` bytes, one line each; nothing when it is what was expected."""
    faults = []
    total = sum(tensor.bytes for tensor in header.tensors)
    packed = sum(math.prod(tensor.shape) for tensor in header.tensors if tensor.type == NVFP4)
    if packed < expected.nvfp4:
        faults.append(f"{packed} weights are NVFP4, and {expected.nvfp4} of the source are")
    if expected.outtype == "q8_0":
        half = [tensor for tensor in header.tensors if tensor.type in ("BF16", "F16") and _blocks(tensor)]
        if sum(tensor.bytes for tensor in half) > MOST_HALF * total:
            faults.append(f"{len(half)} tensors are still in 16 bits ({half[0].name} is {half[0].type})")
        floats = sum(tensor.bytes for tensor in header.tensors if tensor.type == "F32")
        if floats > MOST_FLOAT * total + SLACK:
            faults.append(f"{floats} of {total} bytes are F32")
    if not expected.least <= total <= expected.most:
        faults.append(f"its tensors have {total} bytes, expected are {expected.least} to {expected.most}")
    if not total <= size <= total + HEADER_ROOM:
        faults.append(f"the file has {size} bytes, and its tensors {total}")
    return faults


def _blocks(tensor: Tensor) -> bool:
    """True for a matrix whose rows are whole blocks of Q8_0."""
    return len(tensor.shape) > 1 and tensor.shape[0] % 32 == 0


def kinds(header: Header) -> str:
    """How many tensors are of which type: ``28 NVFP4, 2 Q8_0, 65 F32``."""
    count: dict[str, int] = {}
    for tensor in header.tensors:
        count[tensor.type] = count.get(tensor.type, 0) + 1
    return ", ".join(f"{number} {kind}" for kind, number in sorted(count.items(), key=lambda one: -one[1]))
