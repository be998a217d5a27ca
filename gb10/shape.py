"""What each layer of a model keeps in memory for a context, read from its metadata as llama.cpp reads it.

Source: ``load_hparams`` and ``create_memory`` in llama.cpp's ``src/llama-model.cpp``, ``load_arch_hparams``
in ``src/models/*.cpp``, ``n_embd_r`` and ``n_embd_s`` in ``src/llama-hparams.cpp``. An architecture that is
not in the tables below gets an upper bound, and ``Shape.known`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gb10.architectures import (
    ATTENTION_INTERVAL,
    BOTH,
    EXAONE4_LAYERS_WITH_WINDOW,
    GEMMA3N_LAYERS_WITH_KV,
    HEADLESS_IS_RECURRENT,
    MLA,
    PLAIN,
    RECURRENT,
    SLIDING_WINDOWS,
)
from gb10.gguf import GgufError, Header

MAX_LAYERS = 1024
"""More than any model has; llama.cpp's own limit is lower."""

FULL, SLIDING, NOTHING = "full", "sliding", "nothing"


@dataclass(frozen=True)
class Layer:
    """One layer: ``attention`` is FULL, SLIDING or NOTHING; ``k`` and ``v`` are elements for each cell."""

    attention: str
    k: int
    v: int
    recurrent: bool = False


@dataclass(frozen=True)
class Shape:
    """A model as the memory plan sees it. ``window`` in tokens; ``recurrent`` in elements of 4 bytes for each
    recurrent layer and slot; ``note`` says what an unknown architecture's figures are."""

    architecture: str
    known: bool
    note: str
    layers: tuple[Layer, ...]
    window: int
    recurrent: int
    context_length: int
    embedding: int
    feed_forward: int
    vocabulary: int
    head_lengths: tuple[int, ...] = ()
    """Elements of one head's key and of its value, of sliding layers too."""
    kept_twice: int = 0
    """Bytes of weights that llama.cpp keeps on the host and on the device."""

    @property
    def growing(self) -> int:
        """Layers whose cache grows with the context."""
        return sum(layer.attention == FULL for layer in self.layers)


def shape_of(header: Header) -> Shape:
    """Read a header. Raises GgufError when it does not say how many layers there are, or holds sizes that no
    model has."""
    arch = header.architecture
    count = _size(header, "block_count", most=MAX_LAYERS)
    if count is None:
        raise GgufError(f"the metadata of {arch or 'the model'} does not say how many layers it has")
    nextn = min(_size(header, "nextn_predict_layers", most=MAX_LAYERS) or 0, count - 1)
    trunk = count - nextn
    heads = _listed(header, "attention.head_count", count) or [0] * count
    heads_kv = _listed(header, "attention.head_count_kv", count) or heads
    embedding = _size(header, "embedding_length") or 0
    default = embedding // max(heads) if max(heads) else 0
    key = _size(header, "attention.key_length") or default
    value = _size(header, "attention.value_length") or default
    key_sliding = _size(header, "attention.key_length_swa") or key
    value_sliding = _size(header, "attention.value_length_swa") or value
    known = _is_known(header)
    sliding, window = _sliding_layers(header, count, trunk) if known else ([False] * count, 0)
    recurrent = _recurrent_layers(header, count, trunk, heads_kv) if known else [True] * count
    with_kv = _layers_with_kv(header, count) if known else count
    mla = known and _is_mla(header)
    layers = []
    for index in range(count):
        slides = sliding[index]
        k = heads_kv[index] * (key_sliding if slides else key)
        v = heads_kv[index] * (value_sliding if slides else value)
        if mla:
            k, v = _mla_key(header, key), 0
        if not known:  # sparse attention keeps the keys of an indexer as well
            k += max(heads_kv[index], 1) * (_size(header, "attention.indexer.key_length") or 0)
        holds = index < with_kv and (index < trunk or not known)
        if arch not in BOTH and recurrent[index] and known:
            holds = False
        if arch in ("nemotron_h", "nemotron_h_moe") and _has_feed_forward(header, index, count):
            holds = False
        kind = (SLIDING if slides else FULL) if holds and k + v else NOTHING
        layers.append(Layer(kind, k if holds else 0, v if holds else 0, recurrent[index]))
    return Shape(
        architecture=arch,
        known=known,
        note=""
        if known
        else f"{arch}: not known here: cache and state are an upper bound, and compute can be more",
        layers=tuple(layers),
        window=window,
        recurrent=_recurrent_elements(header) if known else _bound_elements(header, max(heads), key),
        context_length=_size(header, "context_length") or 0,
        embedding=embedding,
        feed_forward=_feed_forward(header, count),
        vocabulary=header.vocabulary,
        head_lengths=tuple(
            sorted({key, value, *((key_sliding, value_sliding) if any(sliding) else ())} - {0})
        ),
        kept_twice=header.tied_bytes,
    )


def _is_known(header: Header) -> bool:
    arch = header.architecture
    if arch in SLIDING_WINDOWS:
        needs_list = SLIDING_WINDOWS[arch].period is None
        return not needs_list or header.get("attention.sliding_window_pattern") is not None
    return arch in PLAIN | MLA | ATTENTION_INTERVAL | HEADLESS_IS_RECURRENT | RECURRENT | BOTH


def _sliding_layers(header: Header, count: int, trunk: int) -> tuple[list[bool], int]:
    """Which layers have a sliding window, and its size; none and 0 where the architecture has no window."""
    arch = header.architecture
    rule = SLIDING_WINDOWS.get(arch)
    none = [False] * count, 0
    if arch == "lfm2" and (window := _size(header, "attention.sliding_window")):
        return [True] * count, window  # every layer that is not recurrent
    if rule is None or (arch == "exaone4" and trunk != EXAONE4_LAYERS_WITH_WINDOW):
        return none
    said = header.metadata.get(f"{arch}.attention.sliding_window")
    window = _size(header, "attention.sliding_window") or (None if said == 0 else rule.window)
    if window is None:
        return none
    window = rule.fixed or window
    pattern = header.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [bool(pattern[i]) if i < len(pattern) else False for i in range(count)], window
    period = pattern if isinstance(pattern, int) and pattern > 0 else rule.period or 1
    full = 0 if rule.first_is_full else period - 1
    return [index < trunk and index % period != full for index in range(count)], window


def _recurrent_layers(header: Header, count: int, trunk: int, heads_kv: list[int]) -> list[bool]:
    arch = header.architecture
    if arch in RECURRENT | BOTH:
        return [index < trunk for index in range(count)]
    if arch in ATTENTION_INTERVAL:
        said = header.get("attention.recurrent_layers")
        if isinstance(said, list):
            return [index < trunk and index < len(said) and bool(said[index]) for index in range(count)]
        interval = _size(header, "full_attention_interval") or 4
        return [index < trunk and (index + 1) % interval != 0 for index in range(count)]
    if arch in HEADLESS_IS_RECURRENT:
        feed_forward = arch.startswith("nemotron_h")
        return [
            index < trunk
            and not heads_kv[index]
            and not (feed_forward and _has_feed_forward(header, index, count))
            for index in range(count)
        ]
    return [False] * count


def _recurrent_elements(header: Header) -> int:
    """Elements of the state of one recurrent layer for one slot: the convolution's and the layer's own."""
    short = _size(header, "shortconv.l_cache")
    if short:
        return (_size(header, "embedding_length") or 0) * (short - 1)
    kernel, inner = _size(header, "ssm.conv_kernel") or 0, _size(header, "ssm.inner_size") or 0
    state, groups = _size(header, "ssm.state_size") or 0, _size(header, "ssm.group_count") or 0
    return max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner


def _bound_elements(header: Header, heads: int, key: int) -> int:
    """The largest state that the sizes of an unknown architecture can mean, for each layer; 0 without any."""
    embedding = _size(header, "embedding_length") or 0
    kernel = _size(header, "ssm.conv_kernel") or 4
    delta = _size(header, "kda.head_dim") or 0
    linear = key if header.get("attention.recurrent_layers") is not None else 0
    wkv = _size(header, "wkv.head_size") or 0
    shift = _size(header, "token_shift_count") or 2
    return max(
        _recurrent_elements(header),
        3 * (kernel - 1) * heads * delta + heads * delta**2,
        heads * linear**2,
        embedding * (wkv + shift) if wkv else 0,
    )


def _layers_with_kv(header: Header, count: int) -> int:
    """The last layers of some models read the cache of an earlier one and have none themselves."""
    if header.architecture == "gemma3n":
        return min(count, GEMMA3N_LAYERS_WITH_KV)
    return count - min(_size(header, "attention.shared_kv_layers") or 0, count)


def _is_mla(header: Header) -> bool:
    return header.architecture in MLA and header.get("attention.key_length_mla") is not None


def _mla_key(header: Header, key: int) -> int:
    """One compressed K for all heads: the low-rank part and the part that carries the position."""
    rank, rope = _size(header, "attention.kv_lora_rank"), _size(header, "rope.dimension_count")
    return rank + rope if rank and rope else key


def _has_feed_forward(header: Header, index: int, count: int) -> bool:
    sizes = _listed(header, "feed_forward_length", count)
    return bool(sizes and sizes[index])


def _feed_forward(header: Header, count: int) -> int:
    """The widest layer inside a token's way: dense, or all experts in use together."""
    dense = max(_listed(header, "feed_forward_length", count) or [0])
    expert = max(_listed(header, "expert_feed_forward_length", count) or [0])
    used = max(_listed(header, "expert_used_count", count) or [0])
    shared = _size(header, "expert_shared_feed_forward_length") or 0
    return max(dense, expert * used + shared, 5 * (_size(header, "ssm.inner_size") or 0))


def _size(header: Header, key: str, most: int = 2**40) -> int | None:
    """A size of the metadata; None where it is absent or 0. Raises GgufError when it is no size."""
    value = header.get(key)
    if value is None:
        return None
    if isinstance(value, list):  # a size for each layer where one is meant: the largest bounds them all
        value = max(value, default=0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise GgufError(f"{header.architecture}.{key} is {value!r}, which is no size")
    return value or None


def _listed(header: Header, key: str, count: int) -> list[int] | None:
    """A size for each layer; one number counts for all. None where it is absent or 0."""
    value = header.get(key)
    if not isinstance(value, list):
        size = _size(header, key)
        return None if size is None else [size] * count
    check: Callable[[object], bool] = lambda item: isinstance(item, int) and 0 <= item <= 2**40  # noqa: E731
    if not value or not all(check(item) for item in value):
        raise GgufError(f"{header.architecture}.{key} holds a value that is no size")
    return [int(value[index]) if index < len(value) else 0 for index in range(count)]
