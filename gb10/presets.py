"""The router's preset file, made from the catalogue: the text of ``presets.ini`` and nothing else.

Pure. The same input gives the same bytes, so a deploy without a change changes nothing, and a reload of the
router leaves every model alone whose section is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from gb10.faults import BadInput, Fault
from gb10.model import OWN_FOLDER, Catalogue, FileRef, Model
from gb10.preset_rules import refuse_name, refuse_startup, refuse_text
from gb10.rendering import shown

HEAD = "; Generated from models.yaml. Do not edit: the next deploy writes it again.\n"


def file_path(models_dir: PurePosixPath, file: FileRef) -> PurePosixPath:
    """Where a file of the hub lies: MODELS_DIR/OWNER/NAME/FILE."""
    return models_dir / file.repo / file.file


def model_path(models_dir: PurePosixPath, model: Model) -> PurePosixPath:
    """The path that ``model =`` gets: the model file, or its first shard; MODELS_DIR/own/NAME/FILE for a
    conversion. Raises ValueError for a model without a file."""
    if model.file is None:
        raise ValueError(f"{model.name} has no file")
    if model.repo is None:
        return models_dir / OWN_FOLDER / model.name / model.file
    return file_path(models_dir, FileRef(model.repo, model.revision, model.file))


def shared_keys(catalogue: Catalogue, device: str) -> dict[str, str]:
    """The ``[*]`` section. ``device`` makes a child die where the GPU is gone, instead of serving from the
    CPU; ``fit = off`` forbids llama.cpp to move layers or shrink the context by itself."""
    return {"device": device, "fit": "off", **catalogue.defaults}


def model_keys(model: Model, models_dir: PurePosixPath) -> dict[str, str]:
    """A model's own section: its files and names, its slots, and what differs from the defaults.

    The slots stand together always: ``parallel`` alone would split the context.
    """
    keys = {"model": str(model_path(models_dir, model))}
    if model.projector:
        keys["mmproj"] = str(file_path(models_dir, model.projector))
    if model.draft:
        keys["model-draft"] = str(file_path(models_dir, model.draft))
    if model.aliases:
        keys["alias"] = ",".join(model.aliases)
    if model.tags:
        keys["tags"] = ",".join(model.tags)
    if model.chat_template:
        keys["chat-template"] = model.chat_template
    if model.chat_template_file:
        keys["chat-template-file"] = str(file_path(models_dir, model.chat_template_file))
    keys["ctx-size"] = str(model.ctx_size)
    keys["parallel"] = str(model.parallel)
    keys["kv-unified"] = "true" if model.kv_unified else "false"
    if model.kv_unified_per_slot is not None:
        keys["kv-unified-per-slot"] = str(model.kv_unified_per_slot)
    if "cache-type" in model.own:
        keys["cache-type-k"] = keys["cache-type-v"] = model.cache_type
    if "cache-ram" in model.own:
        keys["cache-ram"] = str(model.cache_ram_mib)
    keys |= model.options
    keys |= model.sampling
    if model.load_on_startup:
        keys["load-on-startup"] = "true"
    return keys


def effective_keys(
    catalogue: Catalogue, model: Model, *, device: str, models_dir: PurePosixPath
) -> dict[str, str]:
    """What a child of this model really gets from the file: its section over ``[*]``."""
    return shared_keys(catalogue, device) | model_keys(model, models_dir)


def render_presets(
    catalogue: Catalogue,
    *,
    device: str,
    models_dir: PurePosixPath,
    extra: Mapping[str, str] | None = None,
    found: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The text of the preset file. ``extra`` holds more keys for ``[*]`` (``threads`` in the lab, say),
    ``found`` the sections of models that are not in the catalogue: what they do not say comes from ``[*]``.

    Models that are off are not in it. Raises BadInput when a value cannot stand in the file, which for a
    loaded catalogue only ``device``, ``models_dir`` and ``extra`` can cause.
    """
    sections = {"*": shared_keys(catalogue, device) | dict(extra or {})}
    sections |= {model.name: model_keys(model, models_dir) for model in catalogue.enabled}
    sections |= {name: dict(keys) for name, keys in (found or {}).items()}
    faults = section_faults(sections, frozenset(found or {}))
    if faults:
        raise BadInput(faults)
    blocks = [
        "".join([f"[{name}]\n", *(f"{key} = {value}\n" for key, value in keys.items())])
        for name, keys in sections.items()
    ]
    return HEAD + "\n" + "\n".join(blocks)


def section_faults(
    sections: Mapping[str, Mapping[str, str]], found: frozenset[str] = frozenset()
) -> list[Fault]:
    """Everything for which the router would leave, or serve something else than the file seems to say.

    ``found`` are sections whose name was not chosen by anybody here and has been checked before.
    """
    faults = []
    names: dict[str, str] = {name: name for name in sections}
    for section, keys in sections.items():
        where = f"presets [{section}]"
        why = refuse_name(section) if section != "*" and section not in found else None
        if why:
            faults.append(Fault(where, f"the name {why}", "choose another name"))
        if section != "*" and "model" not in keys:
            faults.append(
                Fault(where, "no model: llama.cpp would start a second router in it", "add `model`")
            )
        for key, value in keys.items():
            why = refuse_text(value)
            if why:
                faults.append(Fault(f"{where} {key}", f"the value {why}", "write it otherwise"))
        effective = {**sections.get("*", {}), **keys}
        for key in ("device", "n-gpu-layers", "ctx-size", "fit", "load-mode"):
            if key not in effective:
                faults.append(Fault(where, f"`{key}` is not set", "set it in [*]"))
        if "parallel" in effective and "kv-unified" not in effective:
            faults.append(Fault(where, "`parallel` without `kv-unified` splits the context", "set both"))
        for alias in keys.get("alias", "").split(",") if "alias" in keys else []:
            if alias in names:
                faults.append(
                    Fault(f"{where} alias", f"`{alias}` already names {names[alias]}", "choose another")
                )
            names.setdefault(alias, section)
    return faults


def startup_faults(catalogue: Catalogue, models_max: int) -> list[Fault]:
    """Whether the router would leave because more models load on startup than it may hold."""
    why = refuse_startup(len(catalogue.on_startup), models_max)
    if why is None:
        return []
    names = ", ".join(model.name for model in catalogue.on_startup)
    return [
        Fault(shown(catalogue.path), why, f"raise models-max, or take `load-on-startup` off one of: {names}")
    ]


def sections_of(text: str) -> list[tuple[str, dict[str, str]]]:
    """The sections of a file that `render_presets` made, in order: name and keys."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if line.startswith("["):
            found.append((line[1:-1], {}))
        elif " = " in line and not line.startswith(";"):
            key, _, value = line.partition(" = ")
            found[-1][1][key] = value
    return found
