"""The catalogue: which models the box serves and how, read from ``models.yaml`` and checked as a whole.

``load_catalogue`` gives frozen data, or raises BadInput with all faults at once. It looks at nothing but the
file and the option list of the pinned llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType

from gb10.catalogue_values import Reader, as_text
from gb10.faults import BadInput
from gb10.model import Catalogue, Clients, Conversion, FileRef, Model, shard_files, shard_number
from gb10.preset_options import FALSEY, PresetOptions
from gb10.preset_rules import QUANTIZED_CACHE_TYPES, refuse_name
from gb10.slots import Slots
from gb10.yaml_marks import Marked, load_marked

__all__ = [
    "Catalogue",
    "Clients",
    "Conversion",
    "FileRef",
    "Model",
    "load_catalogue",
    "shard_files",
    "shard_number",
]

REQUIRED_DEFAULTS = {
    "ctx-size": "32768",
    "parallel": "1",
    "kv-unified": "true",
    "cache-type": "f16",
    "cache-ram": "2048",
    "n-gpu-layers": "all",
    "load-mode": "none",
}
"""What `[*]` must say, because llama.cpp's own default is a trap: with an example of a value."""

DEFAULT_KEYS = (*REQUIRED_DEFAULTS, "sampling", "options")
MODEL_KEYS = (
    "enabled",
    "reason",
    "aliases",
    "tags",
    "repo",
    "revision",
    "file",
    "source",
    "projector",
    "draft",
    "chat-template",
    "clients",
    "load-on-startup",
    "kv-unified-per-slot",
    *DEFAULT_KEYS,
)


def load_catalogue(path: Path, options: PresetOptions) -> Catalogue:
    """Read and check a catalogue. Raises BadInput with every fault: a key that does not exist (with the near
    one), a value that llama.cpp would not take, a name used twice, and all that the router would die of."""
    reader = Reader(options)
    top = load_marked(path)
    if not isinstance(top.value, dict):
        reader.fault(top, "", "the file is not a mapping", "write `defaults:` and `models:`")
        raise BadInput(reader.faults)
    reader.known_keys(top, "", ("defaults", "models"))
    defaults = _defaults(reader, top.value.get("defaults") or Marked({}, top.file, 1))
    models = _models(reader, top.value.get("models") or Marked({}, top.file, 1), defaults)
    _unique_names(reader, models)
    if reader.faults:
        raise BadInput(reader.faults)
    return Catalogue(path, MappingProxyType(defaults), tuple(models))


def _defaults(reader: Reader, section: Marked) -> dict[str, str]:
    if not reader.is_mapping(section, "defaults"):
        return {}
    reader.known_keys(section, "defaults", DEFAULT_KEYS)
    entries = dict(section.items())
    for key, example in REQUIRED_DEFAULTS.items():
        if key not in entries:
            reader.fault(section, "defaults", f"`{key}` is missing", f"add for instance `{key}: {example}`")
    found = {
        "ctx-size": reader.count(entries.get("ctx-size"), "defaults.ctx-size"),
        "parallel": reader.count(entries.get("parallel"), "defaults.parallel"),
        "kv-unified": reader.truth(entries.get("kv-unified"), "defaults.kv-unified"),
        "cache-type-k": reader.cache_type(entries.get("cache-type"), "defaults.cache-type"),
        "cache-type-v": None,
        "cache-ram": reader.count(entries.get("cache-ram"), "defaults.cache-ram", least=0),
    }
    found["cache-type-v"] = found["cache-type-k"]
    values = {key: as_text(value) for key, value in found.items() if value is not None}
    values |= reader.options_of(entries, "defaults")
    return values | reader.sampling_of(entries, "defaults")


def _models(reader: Reader, section: Marked, defaults: dict[str, str]) -> list[Model]:
    if not reader.is_mapping(section, "models"):
        return []
    if not section.value:
        reader.fault(section, "models", "no model is named", "add one: docs/models.md shows how")
    reader.repeated(section, "models", "the last one would replace the first")
    models = []
    for name, entry in section.items():
        why = refuse_name(name)
        if why:
            reader.fault(entry, f"models.{name}", f"the name `{name}` {why}", "choose another name")
        if reader.is_mapping(entry, f"models.{name}"):
            models.append(_model(reader, name, entry, defaults))
    return models


def _model(reader: Reader, name: str, entry: Marked, defaults: dict[str, str]) -> Model:
    at = f"models.{name}"
    reader.known_keys(entry, at, MODEL_KEYS)
    own = dict(entry.items())

    def get(key: str) -> Marked | None:
        return own.get(key)

    repo = reader.repo(get("repo"), f"{at}.repo")
    revision = reader.text(get("revision"), f"{at}.revision")
    conversion = reader.conversion(get("source"), f"{at}.source")
    file = reader.gguf(get("file"), f"{at}.file")
    if conversion is not None and get("file") is None:
        file = f"{name}.gguf"
    template = get("chat-template")
    is_file = template is not None and (
        isinstance(template.value, dict) or str(template.value).endswith(".jinja")
    )
    parallel = reader.count(get("parallel"), f"{at}.parallel") or _number(defaults, "parallel", 1)
    per_slot = reader.count(get("kv-unified-per-slot"), f"{at}.kv-unified-per-slot")
    ctx_size = reader.count(get("ctx-size"), f"{at}.ctx-size")
    unified = reader.truth(get("kv-unified"), f"{at}.kv-unified")
    cache_ram = reader.count(get("cache-ram"), f"{at}.cache-ram", least=0)
    if ctx_size is None:
        ctx_size = parallel * per_slot if per_slot else _number(defaults, "ctx-size", 0)
    model = Model(
        name=name,
        where=entry.where(at),
        enabled=reader.truth(get("enabled"), f"{at}.enabled") is not False,
        reason=reader.text(get("reason"), f"{at}.reason", preset=False),
        aliases=tuple(reader.texts(get("aliases"), f"{at}.aliases")),
        tags=tuple(reader.texts(get("tags"), f"{at}.tags")),
        repo=repo,
        revision=revision,
        file=file,
        projector=reader.file_ref(get("projector"), f"{at}.projector", repo, revision, ".gguf"),
        draft=reader.file_ref(get("draft"), f"{at}.draft", repo, revision, ".gguf"),
        chat_template=None if is_file else reader.text(template, f"{at}.chat-template"),
        chat_template_file=reader.file_ref(
            template if is_file else None, f"{at}.chat-template", repo, revision, ".jinja"
        ),
        conversion=conversion,
        ctx_size=ctx_size,
        parallel=parallel,
        kv_unified=unified if unified is not None else defaults.get("kv-unified") == "true",
        kv_unified_per_slot=per_slot,
        cache_type=reader.cache_type(get("cache-type"), f"{at}.cache-type")
        or defaults.get("cache-type-k", "f16"),
        cache_ram_mib=cache_ram if cache_ram is not None else _number(defaults, "cache-ram", 0),
        load_on_startup=reader.truth(get("load-on-startup"), f"{at}.load-on-startup") is True,
        clients=reader.clients(get("clients"), f"{at}.clients"),
        sampling=MappingProxyType(reader.sampling_of(own, at)),
        options=MappingProxyType(reader.options_of(own, at)),
        own=frozenset(own),
    )
    _consistent(reader, model, entry, at, defaults)
    return model


def _consistent(reader: Reader, model: Model, entry: Marked, at: str, defaults: dict[str, str]) -> None:
    """What no single key shows."""

    def fault(what: str, do: str, key: str = "") -> None:
        place = dict(entry.items()).get(key, entry)
        reader.fault(place, f"{at}.{key}" if key else at, what, do)

    if not model.enabled:
        if not model.reason:
            fault("a model that is off says no reason", "add `reason:` with what is missing")
        if model.load_on_startup:
            fault("a model that is off cannot load on startup", "remove it", "load-on-startup")
        return
    if model.reason:
        fault("a reason stands beside a model that is on", "remove it, or add `enabled: false`", "reason")
    own = entry.plain()
    assert isinstance(own, dict)
    if own.get("repo") is None and own.get("source") is None:
        fault("no `repo`: nobody knows where the model comes from", "add `repo: OWNER/NAME`, or turn it off")
    if own.get("file") is None and model.conversion is None:
        fault("no `file`", "add `file: NAME.gguf` (of a split model: the first shard)")
    if model.repo is not None and model.conversion is not None:
        fault("`repo` and `source` together: is it downloaded or made at home?", "keep one of them", "source")
    if model.kv_unified_per_slot is not None:
        if not model.kv_unified:
            fault(
                "only a unified cache has a limit for each slot",
                "set `kv-unified: true`",
                "kv-unified-per-slot",
            )
        elif model.ctx_size < model.parallel * model.kv_unified_per_slot:
            fault(
                f"the pool of {model.ctx_size} is smaller than {model.parallel} slots of"
                f" {model.kv_unified_per_slot}: it can still overflow, and then every request in it fails",
                "remove `ctx-size`: the pool is then as large as the slots together",
                "kv-unified-per-slot",
            )
    flash_attention = model.options.get("flash-attn", defaults.get("flash-attn", "auto"))
    if model.cache_type in QUANTIZED_CACHE_TYPES and flash_attention in FALSEY:
        what = f"a {model.cache_type} cache needs flash attention, and `flash-attn` is off: the child dies"
        fault(what, "remove `flash-attn`, or set `cache-type: f16`")
    refused = model.clients and slots_of(model).refuse(model.clients)
    if refused:
        fault(*refused, "clients")


def slots_of(model: Model) -> Slots:
    """The slots that a model's preset asks for."""
    return Slots(model.ctx_size, model.parallel, model.kv_unified, model.kv_unified_per_slot)


def _unique_names(reader: Reader, models: Iterable[Model]) -> None:
    models = list(models)
    owner = {model.name: model.name for model in models}
    for model in models:
        for alias in model.aliases:
            place = Marked(None, *_place(model))
            why = refuse_name(alias)
            if why:
                reader.fault(
                    place, f"models.{model.name}.aliases", f"the alias `{alias}` {why}", "choose another"
                )
            elif alias in owner:
                what = f"`{alias}` already names {owner[alias]}; at a name used twice the router exits with 1"
                reader.fault(place, f"models.{model.name}.aliases", what, "choose another")
            owner.setdefault(alias, model.name)


def _place(model: Model) -> tuple[str, int]:
    file, _, line = model.where.removesuffix(f" models.{model.name}").rpartition(":")
    return file, int(line)


def _number(defaults: dict[str, str], key: str, missing: int) -> int:
    return int(defaults.get(key, missing))
