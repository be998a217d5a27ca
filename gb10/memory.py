"""Bytes that one child (one loaded model) takes, part by part.

Weights, KV cache and recurrent state are exact: the formulas are llama.cpp's own, and they are tested against
buffers that it really allocated. The compute buffers are an estimate, and ``overhead`` is a measured figure:
both are said beside the numbers. Sources: ``llama_kv_cache``, ``llama_kv_cache_iswa`` and
``llama_memory_recurrent`` in llama.cpp's ``src``, ``n_ctx_seq`` in ``src/llama-context.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from gb10.shape import FULL, SLIDING, Shape
from gb10.slots import Slots, pad

MIB = 1024**2

CACHE_TYPE_BYTES = {
    "f32": Fraction(4),
    "f16": Fraction(2),
    "bf16": Fraction(2),
    "q8_0": Fraction(34, 32),
    "q4_0": Fraction(18, 32),
}
"""Bytes for each element of a KV cache."""

QUANTIZED_BLOCKS = {"q8_0": 32, "q4_0": 32}
"""Elements that a quantized type packs together."""

RECURRENT_BYTES = 4
"""Recurrent state is always f32."""

DEFAULT_UBATCH = 512

CUDA_OVERHEAD_MIB = 700
"""MiB of a CUDA child beyond its buffers (context, kernels, graphs): 600 to 700 measured on one GPU, an H200,
not on a GB10. The plan takes it from the data; this is for a single file."""

COMPUTE_SOURCE = "estimate from the sizes of the graph, with flash attention"
OVERHEAD_SOURCE = "measured on one GPU that was not a GB10: 600 to 700 MiB"


@dataclass(frozen=True)
class Settings:
    """How a child is started, as far as memory goes. ``ubatch`` in tokens."""

    slots: Slots
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    ubatch: int = DEFAULT_UBATCH
    swa_full: bool = False
    flash_attention: bool = True


@dataclass(frozen=True)
class Part:
    """One figure of a child: its ``bytes``, and where the figure comes from."""

    name: str
    bytes: int
    source: str = "exact"


@dataclass(frozen=True)
class Child:
    """All parts of one child. ``kv_bytes_per_token``: what one more token of context takes; ``notes``: what
    is to be known of the figures (an upper bound, an estimate)."""

    parts: tuple[Part, ...]
    kv_bytes_per_token: int
    notes: tuple[str, ...] = field(default=())

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    def bytes_of(self, name: str) -> int:
        """Bytes of the parts with this name."""
        return sum(part.bytes for part in self.parts if part.name == name)


def refuse_cache(shape: Shape, settings: Settings) -> str | None:
    """Why llama.cpp would not load the model with this cache type, or None.

    Source: ``llama_init_from_model`` in ``src/llama-context.cpp``: a block must divide a head.
    """
    for kind in (settings.cache_type_k, settings.cache_type_v):
        block = QUANTIZED_BLOCKS.get(kind, 1)
        for length in shape.head_lengths:
            if length % block:
                return f"cache type {kind} packs {block} elements, which do not divide a head of {length}"
    return None


def kv_cache(shape: Shape, settings: Settings) -> int:
    """Bytes of the KV cache. A full layer holds every cell, a sliding one its window and one ubatch."""
    slots = settings.slots
    b_k, b_v = CACHE_TYPE_BYTES[settings.cache_type_k], CACHE_TYPE_BYTES[settings.cache_type_v]
    # Without flash attention V is stored transposed, and all layers get the row of the widest one.
    widest = max((layer.v for layer in shape.layers), default=0)
    total = Fraction(0)
    for layer in shape.layers:
        if layer.attention not in (FULL, SLIDING):
            continue
        cells = sliding_cells(shape, settings) if layer.attention == SLIDING else slots.cells
        v = layer.v if settings.flash_attention or not layer.v else widest
        total += cells * slots.streams * (layer.k * b_k + v * b_v)
    return int(total)


def sliding_cells(shape: Shape, settings: Settings) -> int:
    """Cells of each stream in a layer with a sliding window."""
    slots = settings.slots
    if settings.swa_full:
        return slots.cells
    windows = shape.window * (slots.parallel if slots.unified else 1)
    return pad(min(slots.cells, windows + settings.ubatch))


def recurrent_state(shape: Shape, settings: Settings) -> int:
    """Bytes of the recurrent state. It depends on the slots and not on the context."""
    layers = sum(layer.recurrent for layer in shape.layers)
    return RECURRENT_BYTES * settings.slots.parallel * layers * shape.recurrent


def kv_bytes_per_token(shape: Shape, settings: Settings) -> int:
    """Bytes that one more token of context takes: the layers of full attention alone, for the others do not
    grow (with ``swa_full`` the sliding ones do)."""
    b_k, b_v = CACHE_TYPE_BYTES[settings.cache_type_k], CACHE_TYPE_BYTES[settings.cache_type_v]
    growing = (FULL, SLIDING) if settings.swa_full else (FULL,)
    rows = (layer.k * b_k + layer.v * b_v for layer in shape.layers if layer.attention in growing)
    return int(sum(rows, Fraction(0)))


def compute(shape: Shape, settings: Settings) -> int:
    """Bytes of the compute buffers, an estimate.

    The attention mask of one ubatch over all cells (f16 with flash attention, else f32), once on the device
    and once on the host, for full and for sliding layers; the widest activations of one ubatch; the
    embeddings of one ubatch, which go from the host to the device; and the logits of one token for each slot.
    The part of the mask was confirmed on a CUDA GPU: at 32768 cells, 4 and 8 split slots took 24 and 28 MiB
    less than a unified pool. For no known architecture did llama.cpp allocate more on a CPU, and for no model
    of the lab on an accelerator over RPC.
    """
    slots, ubatch = settings.slots, settings.ubatch
    mask_bytes = 2 if settings.flash_attention else 4
    mask_cells = slots.cells if shape.growing else 0
    if any(layer.attention == SLIDING for layer in shape.layers):
        mask_cells += sliding_cells(shape, settings)
    mask = mask_cells * ubatch * mask_bytes
    activations = 4 * ubatch * (2 * shape.feed_forward + 6 * shape.embedding)
    host = 2 * 4 * ubatch * shape.embedding
    logits = 4 * slots.parallel * shape.vocabulary
    return 2 * mask + activations + host + logits


def child(
    shape: Shape,
    settings: Settings,
    *,
    weights: int,
    projector: int = 0,
    draft: tuple[Shape, int] | None = None,
    cache_ram: int = 0,
    overhead: int = 0,
) -> Child:
    """Everything that a child takes, in bytes.

    ``weights`` and ``projector`` are the bytes of the files, of all shards. ``draft`` is the shape and the
    file bytes of a draft model: it has a KV cache of its own over the same context, of type f16.
    ``cache_ram`` is the limit of the prompt cache, counted as if it were full. ``overhead`` is that of the
    process and of CUDA. Weights that llama.cpp keeps twice are counted twice.
    """
    parts = [
        Part("weights", weights + shape.kept_twice, "bytes of the files"),
        Part("KV cache", kv_cache(shape, settings), _exact(shape)),
        Part("recurrent state", recurrent_state(shape, settings), _exact(shape)),
        Part("compute", compute(shape, settings), COMPUTE_SOURCE),
        Part("prompt cache", cache_ram, "its limit (cache-ram)"),
        Part("overhead", overhead, OVERHEAD_SOURCE),
    ]
    notes = [shape.note] if shape.note else []
    if shape.kept_twice:
        size = -(-shape.kept_twice // MIB)
        notes.append(
            f"the token embedding is the output matrix too: {size} MiB are kept twice, host and device"
        )
    if refused := refuse_cache(shape, settings):
        notes.append(f"llama.cpp does not load it: {refused}")
    if projector:
        parts.append(Part("projector", projector, "bytes of the file"))
        notes.append("the projector counts with its file; what it takes while it works is not known")
    if draft:
        draft_shape, draft_bytes = draft
        draft_settings = Settings(settings.slots, ubatch=settings.ubatch)
        state = kv_cache(draft_shape, draft_settings) + recurrent_state(draft_shape, draft_settings)
        size = draft_bytes + draft_shape.kept_twice + state + compute(draft_shape, draft_settings)
        parts.append(Part("draft", size, "file, cache, compute"))
        if draft_shape.note:
            notes.append(draft_shape.note)
    return Child(tuple(parts), kv_bytes_per_token(shape, settings), tuple(notes))


def _exact(shape: Shape) -> str:
    return "exact" if shape.known else "upper bound"
