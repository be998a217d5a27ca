"""The memory plan: everything that can be resident together, added up before anything is deployed.

The router counts models and never memory, so the plan takes the heaviest ``models-max`` models of the
catalogue together and holds them against what the box has for them. Pure: headers come from the lock or from
files, the budget from the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gb10.catalogue import slots_of
from gb10.conversion import make_command, notes
from gb10.gguf import GgufError, Header
from gb10.memory import DEFAULT_UBATCH, MIB, Child, Settings, child
from gb10.model import Catalogue, FileRef, Model
from gb10.preset_options import TRUTHY
from gb10.shape import Shape, shape_of
from gb10.slots import Slots, pad, ways


@dataclass(frozen=True)
class Budget:
    """What the models may take, in MiB: ``total`` less ``reserve`` (system, Docker, page cache). ``overhead``
    is that of one child beyond its buffers. ``models_max`` None: the largest number that fits."""

    total_mib: int
    reserve_mib: int
    overhead_mib: int
    models_max: int | None

    @property
    def bytes(self) -> int:
        """Bytes for all models together."""
        return (self.total_mib - self.reserve_mib) * MIB


@dataclass(frozen=True)
class Source:
    """What is known of one GGUF: its header, the bytes of all its shards, or neither."""

    header: Header | None = None
    size: int | None = None


@dataclass(frozen=True)
class Found:
    """A model on the box that is not in the catalogue: the router serves it with the defaults. ``projector``
    in bytes; ``place`` is its path on the box."""

    name: str
    source: Source
    projector: int = 0
    place: str = ""


@dataclass(frozen=True)
class Way:
    """One way to share the cells between the slots, with what the child then takes in bytes."""

    slots: Slots
    child: Child

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer that one request can have."""
        return self.slots.longest


@dataclass(frozen=True)
class PresetPlan:
    """One preset.

    ``child`` is None when ``unknown`` says why, and ``remedy`` what helps. ``tokens``: how long a request the
    number of clients is for. ``place`` is where a model lies that is not in the catalogue. ``sized`` gives
    the child for other slots.
    """

    name: str
    in_catalogue: bool
    slots: Slots
    unknown: str | None = None
    remedy: str = ""
    child: Child | None = None
    shape: Shape | None = None
    settings: Settings | None = None
    tokens: int = 0
    model: Model | None = None
    place: str = ""
    sized: Callable[[Slots], Child] | None = field(default=None, compare=False, repr=False)

    @property
    def ways(self) -> tuple[Way, ...]:
        """The same cells shared in the three ways; nothing while unknown."""
        if self.sized is None:
            return ()
        return tuple(Way(way, self.sized(way)) for way in ways(self.slots.ctx_size, self.slots.parallel))

    @property
    def total(self) -> int:
        """Bytes; 0 while unknown."""
        return self.child.total if self.child else 0

    @property
    def clients_fit(self) -> float:
        """How many clients of ``tokens`` each the cache holds at the same time."""
        return self.slots.cells * self.slots.streams / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Plan:
    """All presets against the budget; ``off`` has name and reason of the models that are not served.
    ``looked`` says whether models that are found on the box are among the presets; ``notes`` is for people.
    """

    budget: Budget
    presets: tuple[PresetPlan, ...]
    off: tuple[tuple[str, str], ...] = field(default=())
    looked: bool = False
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[PresetPlan, ...]:
        """The presets with figures, the heaviest first."""
        return tuple(sorted((p for p in self.presets if p.child), key=lambda preset: -preset.total))

    @property
    def unknown(self) -> tuple[PresetPlan, ...]:
        """The presets without figures."""
        return tuple(preset for preset in self.presets if preset.child is None)

    def worst(self, count: int) -> tuple[PresetPlan, ...]:
        """The heaviest set of ``count`` models."""
        return self.known[:count]

    @property
    def largest(self) -> int:
        """The largest models-max whose worst set fits: 0 when the heaviest model alone does not."""
        sums = itertools.accumulate(preset.total for preset in self.known)
        return sum(1 for total in sums if total <= self.budget.bytes)

    @property
    def models_max(self) -> int:
        """models-max as the router gets it: the number of the data, or the largest that fits."""
        return self.largest if self.budget.models_max is None else self.budget.models_max

    def sets(self, count: int) -> list[tuple[PresetPlan, ...]]:
        """Every set of ``count`` models, the heaviest first."""
        sets = itertools.combinations(self.known, min(count, len(self.known)))
        return sorted(sets, key=lambda chosen: -total_of(chosen))


def total_of(presets: Iterable[PresetPlan]) -> int:
    """Bytes of presets together."""
    return sum(preset.total for preset in presets)


def make_plan(
    catalogue: Catalogue,
    sources: Mapping[tuple[str, str], Source],
    budget: Budget,
    found: Iterable[Found] | None = None,
) -> Plan:
    """Add up a catalogue. ``sources`` is keyed by (repo, file), with the first shard for a split model;
    ``found`` are models on the box that are not in the catalogue, None when nobody has looked."""
    presets = [_preset(catalogue, model, sources, budget) for model in catalogue.enabled]
    presets += [_found(catalogue, extra, budget) for extra in found or ()]
    off = tuple((model.name, model.reason or "") for model in catalogue.off)
    return Plan(budget, tuple(presets), off, found is not None, tuple(notes(catalogue)))


def settings_of(keys: Mapping[str, str], slots: Slots) -> Settings:
    """The memory settings that preset keys ask for (``catalogue.defaults`` and the model's own options)."""
    return Settings(
        slots,
        cache_type_k=keys.get("cache-type-k", "f16"),
        cache_type_v=keys.get("cache-type-v", "f16"),
        ubatch=min(int(keys.get("ubatch-size", DEFAULT_UBATCH)), pad(slots.ctx_size)),
        swa_full=keys.get("swa-full", "false") in TRUTHY,
        flash_attention=keys.get("flash-attn", "auto") not in ("off", "false", "0", "disabled"),
    )


def _preset(
    catalogue: Catalogue, model: Model, sources: Mapping[tuple[str, str], Source], budget: Budget
) -> PresetPlan:
    slots = slots_of(model)
    tokens = model.clients.tokens if model.clients else slots.longest
    base = PresetPlan(model.name, True, slots, tokens=tokens, model=model)
    unknown, remedy = f"unknown until `gb10 pin {model.name}`", f"run `gb10 pin {model.name}`"
    main = _source(sources, ggufs_of(model)[:1])
    projector = _source(sources, (model.projector,) if model.projector else ())
    draft = _source(sources, (model.draft,) if model.draft else ())
    if main is None or main.header is None:
        if model.conversion:
            unknown, remedy = f"unknown until `{make_command(model)}`", f"run `{make_command(model)}`"
        return replace(base, unknown=unknown, remedy=remedy)
    if (model.projector and (projector is None or projector.size is None)) or (
        model.draft and (draft is None or draft.header is None)
    ):
        return replace(base, unknown=f"{unknown} (projector or draft)", remedy=remedy)
    keys = {**catalogue.defaults, **model.options}
    keys["cache-type-k"] = keys["cache-type-v"] = model.cache_type
    try:
        shape = shape_of(main.header)
        draft_part = None
        if draft and draft.header:
            draft_part = (shape_of(draft.header), draft.size or draft.header.weight_bytes)
    except GgufError as error:
        return replace(base, unknown=f"unknown: {error}", remedy="take another file")
    weights = main.size or main.header.weight_bytes

    def sized(slots: Slots) -> Child:
        return child(
            shape,
            settings_of(keys, slots),
            weights=weights,
            projector=(projector.size or 0) if projector else 0,
            draft=draft_part,
            cache_ram=model.cache_ram_mib * MIB,
            overhead=budget.overhead_mib * MIB,
        )

    return replace(base, child=sized(slots), shape=shape, settings=settings_of(keys, slots), sized=sized)


def _found(catalogue: Catalogue, extra: Found, budget: Budget) -> PresetPlan:
    keys = catalogue.defaults
    slots = Slots(int(keys["ctx-size"]), int(keys["parallel"]), keys["kv-unified"] == "true")
    base = PresetPlan(extra.name, False, slots, tokens=slots.longest, place=extra.place)
    header = extra.source.header
    move = "move it away, so that the router does not serve it"
    if header is None:
        return replace(base, unknown="unknown: its header could not be read", remedy=move)
    try:
        shape = shape_of(header)
    except GgufError as error:
        return replace(base, unknown=f"unknown: {error}", remedy=move)
    weights = extra.source.size or header.weight_bytes

    def sized(slots: Slots) -> Child:
        return child(
            shape,
            settings_of(keys, slots),
            weights=weights,
            projector=extra.projector,
            cache_ram=int(keys["cache-ram"]) * MIB,
            overhead=budget.overhead_mib * MIB,
        )

    return replace(base, child=sized(slots), shape=shape, settings=settings_of(keys, slots), sized=sized)


def ggufs_of(model: Model) -> list[FileRef]:
    """The GGUF files of a model, the model file (or first shard) first. A file that was made at home has the
    place below the models folder for its repository."""
    return [part for part in (*model.weights[:1], model.projector, model.draft) if part]


def _source(sources: Mapping[tuple[str, str], Source], files: Sequence[FileRef]) -> Source | None:
    return sources.get((files[0].repo, files[0].file)) if files else None


def mib(size: int) -> int:
    """Bytes as whole MiB, rounded up: a plan never rounds memory away."""
    return -(-size // MIB)
