"""Context, slots, cache and layers: what llama.cpp makes of a preset that does not say them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gb10.adopt_entry import Entry, Field, scalar
from gb10.adopt_ini import IniKey
from gb10.adopt_report import Note
from gb10.adopt_settings import Layers, Setting, whole_number
from gb10.catalogue import REQUIRED_DEFAULTS
from gb10.preset_rules import SAFE_CACHE_TYPES, refuse_gpu_layers

REQUIRED = frozenset(
    {"ctx-size", "parallel", "kv-unified", "kv-unified-per-slot", "cache-type-k", "cache-type-v", "cache-ram"}
    | {"n-gpu-layers", "load-mode"}
)
"""Options that the catalogue spells at its own level."""

AUTO_SLOTS = 4
"""Slots of a server whose ``parallel`` is not set; its cache is unified then (tools/server/server.cpp)."""

_NEAREST = {"f32": "f16", "q5_0": "q8_0", "q5_1": "q8_0", "q4_1": "q8_0", "iq4_nl": "q4_0"}
_WIDTH = ("q4_0", "q8_0", "bf16", "f16")

_WHY = {
    "ctx-size": "{value} tokens: unset, it was what the model was trained for, or what `fit` left of it;"
    " `gb10 plan` shows what fits",
    "cache-ram": "{value} MiB: llama.cpp takes 8192 for each loaded model, from the pool of the models",
    "n-gpu-layers": "`{value}`: else `fit` or the value leaves layers on the CPU, unseen",
    "load-mode": "`{value}`: llama.cpp chooses by itself, and mmap is ten times slower on this machine",
}


@dataclass(frozen=True)
class Resolved:
    """What is in force for one model; None where the catalogue needs a value and there is none."""

    ctx_size: int | None
    parallel: int
    unified: bool
    per_slot: int | None
    cache_type: str
    cache_ram: int | None
    gpu_layers: str | None
    load_mode: str | None


@dataclass
class Shared:
    """The ``defaults`` of the catalogue: as fields to write, and as values to compare with."""

    fields: list[Field]
    values: Resolved = field(default_factory=lambda: resolve(Layers(), {}))


def resolve(layers: Layers, own: Mapping[str, Setting]) -> Resolved:
    """What llama.cpp does with these settings. Sources: tools/server/server.cpp, common/arg.cpp."""

    def get(key: str) -> Setting | None:
        return layers.get(key, own)

    parallel, unified = whole_number(get("parallel"), 1), get("kv-unified")
    layers_set = get("n-gpu-layers")
    mode = get("load-mode")
    types = [get(key) for key in ("cache-type-k", "cache-type-v")]
    names = [setting.value if setting else "f16" for setting in types]
    return Resolved(
        ctx_size=whole_number(get("ctx-size"), 1),
        parallel=parallel or AUTO_SLOTS,
        unified=(bool(unified and unified.truthy)) if parallel else True,
        per_slot=whole_number(get("kv-unified-per-slot"), 1),
        cache_type=max((_NEAREST.get(name, name) for name in names), key=_width),
        cache_ram=whole_number(get("cache-ram"), 0),
        gpu_layers=layers_set.value if layers_set and refuse_gpu_layers(layers_set.value) is None else None,
        load_mode=mode.value if mode else None,
    )


def _width(name: str) -> int:
    return _WIDTH.index(name) if name in _WIDTH else len(_WIDTH)


def shared_fields(
    layers: Layers, sections: Sequence[Mapping[str, Setting]], file: str, notes: list[Note]
) -> Shared:
    """The fields that `defaults` must have, from ``[*]``, the command line and the environment."""
    found = resolve(layers, {})
    values: dict[str, object] = {
        "ctx-size": found.ctx_size,
        "parallel": found.parallel,
        "kv-unified": found.unified,
        "cache-type": found.cache_type,
        "cache-ram": found.cache_ram,
        "n-gpu-layers": found.gpu_layers,
        "load-mode": found.load_mode,
    }
    for key, value in values.items():
        if value is not None:
            continue
        values[key] = (
            int(REQUIRED_DEFAULTS[key]) if REQUIRED_DEFAULTS[key].isdigit() else REQUIRED_DEFAULTS[key]
        )
        setting = layers.get(key)
        if setting or not sections or any(key not in own for own in sections):
            what = setting.what if setting else f"{key} is not set"
            why = _WHY[key].format(value=values[key])
            notes.append(Note("changed", setting.where if setting else file, what, why))
    _cache_note(layers, {}, found.cache_type, notes)
    if layers.get("kv-unified-per-slot"):
        setting = layers.get("kv-unified-per-slot")
        assert setting
        notes.append(Note("taken", setting.where, setting.what, "kv-unified-per-slot of every model"))
    fields = [_field(key, value, layers) for key, value in values.items()]
    resolved = Resolved(
        ctx_size=whole(values["ctx-size"]),
        parallel=found.parallel,
        unified=found.unified,
        per_slot=None,
        cache_type=found.cache_type,
        cache_ram=whole(values["cache-ram"]),
        gpu_layers=str(values["n-gpu-layers"]),
        load_mode=str(values["load-mode"]),
    )
    return Shared(fields, resolved)


def whole(value: object) -> int | None:
    """A number as it is, anything else as None."""
    return value if isinstance(value, int) else None


def _field(key: str, value: object, layers: Layers) -> Field:
    names = ("cache-type-k", "cache-type-v") if key == "cache-type" else (key,)
    sources = [setting.source for name in names if (setting := layers.shared.get(name))]
    return Field.of(key, scalar(value) if isinstance(value, str) else value, *sources)


def own_slots(
    entry: Entry, own: Mapping[str, Setting], layers: Layers, shared: Shared, notes: list[Note]
) -> None:
    """Add to an entry what differs from the defaults, and note what the router's command line overrules."""
    for key in REQUIRED & set(own) & set(layers.command):
        why = f"the router's command line has `{layers.command[key].what}`, which wins over every section"
        notes.append(Note("dropped", own[key].where, own[key].what, why))
    found, base = resolve(layers, own), shared.values

    def source(*keys: str) -> list[IniKey | None]:
        return [own[key].source for key in keys if key in own]

    def add(key: str, value: object, default: object, *keys: str) -> None:
        if value is not None and value != default:
            entry.add(key, scalar(value) if isinstance(value, str) else value, *source(*(keys or (key,))))

    for key, value in (
        ("ctx-size", found.ctx_size),
        ("cache-ram", found.cache_ram),
        ("n-gpu-layers", found.gpu_layers),
    ):
        if key in own and value is None:
            why = "not a value that the catalogue takes; the model has the default"
            notes.append(Note("changed", own[key].where, own[key].what, why))
    # Without ctx-size the pool is as large as the slots together, for llama.cpp and for the catalogue.
    pooled = found.per_slot is not None and layers.get("ctx-size", own) is None
    add("ctx-size", None if pooled else found.ctx_size, base.ctx_size if found.per_slot is None else None)
    add("parallel", found.parallel, base.parallel)
    add("kv-unified", found.unified, base.unified)
    if "parallel" in own and "kv-unified" not in own and found.unified != base.unified:
        why = "`kv-unified: false` is written out: `parallel` alone splits the context between the slots"
        notes.append(Note("taken", own["parallel"].where, own["parallel"].what, why))
    add("kv-unified-per-slot", found.per_slot, None)
    add("cache-type", found.cache_type, base.cache_type, "cache-type-k", "cache-type-v")
    if "cache-type-k" in own or "cache-type-v" in own:
        _cache_note(layers, own, found.cache_type, notes)
    add("cache-ram", found.cache_ram, base.cache_ram)
    add("n-gpu-layers", found.gpu_layers, base.gpu_layers)
    add("load-mode", found.load_mode, base.load_mode)


def _cache_note(layers: Layers, own: Mapping[str, Setting], taken: str, notes: list[Note]) -> None:
    pair = [layers.get(key, own) for key in ("cache-type-k", "cache-type-v")]
    for setting in pair:
        if setting and setting.value not in SAFE_CACHE_TYPES:
            why = f"`cache-type: {taken}`: with {setting.value} attention can run on the CPU"
            notes.append(Note("changed", setting.where, setting.what, why))
    values = [setting.value if setting else "f16" for setting in pair]
    first = next((setting for setting in pair if setting), None)
    if first and values[0] != values[1] and all(value in SAFE_CACHE_TYPES for value in values):
        why = f"`cache-type: {taken}`: K and V alike, in the wider of the two"
        notes.append(Note("changed", first.where, f"K {values[0]}, V {values[1]}", why))
