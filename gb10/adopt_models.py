"""The sections of a preset file as entries of the catalogue.

What a section says is written down as it was in force. Where the catalogue forbids it (no number for the
context, layers on the CPU, an unsafe cache type), the safe value stands in its place and the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gb10.adopt_entry import Entry, Field, scalar
from gb10.adopt_files import model_files
from gb10.adopt_ini import BEFORE_ANY_SECTION, IniSection
from gb10.adopt_paths import Place
from gb10.adopt_reading import Reading
from gb10.adopt_report import Note
from gb10.adopt_settings import LLAMA_DEFAULTS, Setting, section_settings
from gb10.adopt_slots import REQUIRED, Shared, own_slots, shared_fields
from gb10.found import MOUNTS
from gb10.preset_rules import refuse_key, refuse_name

SET_BY_THE_ROUTER = frozenset({"metrics", "offline", "webui"})
"""Options that the deploy gives to the router, and so to every child."""

_MODEL = frozenset(
    {"model", "hf-repo", "hf-file", "mmproj", "model-draft", "hf-repo-draft", "chat-template-file"}
    | {"alias", "tags", "chat-template", "load-on-startup"}
)


@dataclass
class Models:
    """The catalogue's parts, and what data needs to know of the files: their places and the device."""

    defaults: list[Field]
    entries: list[Entry] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    device: Setting | None = None


def read_models(reading: Reading) -> Models:
    """All models of the file, in its order."""
    layers, ini = reading.layers, reading.ini
    sections = [section for section in ini.sections if section.name != "*"]
    settings = {
        section.name: section_settings(section, ini.file, reading.options, reading.notes)
        for section in sections
    }
    shared = shared_fields(layers, list(settings.values()), ini.file, reading.notes)
    models = Models([*shared.fields, *_generic(reading, layers.shared, None)], device=layers.get("device"))
    _shared_notes(reading)
    names: set[str] = set()
    for section in sections:
        for line in section.replaced:
            why = f"llama.cpp forgets it: [{section.name}] stands again in line {section.line}"
            reading.note("dropped", line, f"[{section.name}]", why)
        own = settings[section.name]
        if _is_found(own):
            why = "a model that is found on the box: served without an entry"
            reading.note("taken", section.line, f"[{section.name}]", why)
            continue
        if not _has_model(section, own):
            _no_model(reading, section, own)
            continue
        entry = _entry(reading, models, section, own, shared)
        if entry.name in names:
            reading.note(
                "to do", section.line, f"[{section.name}]", f"`{entry.name}` names two models: rename one"
            )
        names.add(entry.name)
        models.entries.append(entry)
    return models


def _has_model(section: IniSection, own: Mapping[str, Setting]) -> bool:
    return "model" in own or "hf-repo" in own or bool(re.fullmatch(r"[\w.-]+/[\w.-]+(:.*)?", section.name))


def _is_found(own: Mapping[str, Setting]) -> bool:
    """Whether a section is one of those that a deploy writes for models beside the catalogue."""
    path = own["model"].value if "model" in own else ""
    return own.keys() <= {"model", "mmproj"} and path.startswith(tuple(f"{top}/" for top in MOUNTS.values()))


def _no_model(reading: Reading, section: IniSection, own: Mapping[str, Setting]) -> None:
    if section.name == BEFORE_ANY_SECTION:
        if not own:
            return
        keys = ", ".join(own)
        why = (
            "keys before any section make a model called `default`; are they for all? add them to `defaults`"
        )
        reading.note("dropped", section.line, keys, why)
        return
    why = "no model in it: llama.cpp starts a second router there, stuck in `loading`"
    reading.note("dropped", section.line, f"[{section.name}]", why)


def _entry(
    reading: Reading, models: Models, section: IniSection, own: dict[str, Setting], shared: Shared
) -> Entry:
    above = (*section.above, *([section.comment] if section.comment else ()))
    entry = Entry(_name(reading, section, own), above=above)
    found = model_files(reading, section, own, entry)
    models.places += found
    _names_of(reading, section, own, entry)
    _startup(reading, own, entry)
    own_slots(entry, own, reading.layers, shared, reading.notes)
    entry.fields += _generic(reading, own, section)
    if "device" in own:
        _device(reading, models, own["device"])
    keys = ", ".join(part.key for part in entry.fields)
    reading.note("taken", section.line, f"[{section.name}]", f"models.{entry.name}: {keys}")
    return entry


def _name(reading: Reading, section: IniSection, own: Mapping[str, Setting]) -> str:
    name = section.name
    if refuse_name(name) is None:
        return name
    base = name.strip()
    if base == BEFORE_ANY_SECTION and "model" in own:
        base = own["model"].value.rsplit("/", 1)[-1].removesuffix(".gguf")
    new = re.sub(r"[^A-Za-z0-9._-]+", "-", base.rsplit("/", 1)[-1]).strip("-._") or "model"
    if name != name.strip() and new == name.strip():
        why = f"llama.cpp keeps the blank before `]` in the name; the model is called `{new}` now"
    else:
        why = f"the name {refuse_name(name)}; clients must ask for `{new}` now"
    reading.note("changed", section.line, f"[{name}]", why)
    return new


def _names_of(reading: Reading, section: IniSection, own: Mapping[str, Setting], entry: Entry) -> None:
    aliases, setting = [], own.get("alias")
    for alias in dict.fromkeys(part.strip() for part in setting.value.split(",")) if setting else ():
        why = refuse_name(alias)
        if why and alias:
            what = f"[{section.name}] alias {alias}"
            reading.note("changed", section.line, what, f"it {why}; clients must use `{entry.name}`")
        elif alias and alias != entry.name:
            aliases.append(alias)
    entry.add("aliases", aliases, setting.source if setting else None)
    tags = own.get("tags") or reading.layers.shared.get("tags")
    if tags:
        entry.add("tags", [part.strip() for part in tags.value.split(",") if part.strip()], tags.source)


def _startup(reading: Reading, own: Mapping[str, Setting], entry: Entry) -> None:
    setting = own.get("load-on-startup") or reading.layers.shared.get("load-on-startup")
    if setting is None or not setting.truthy:
        return
    if entry.get("enabled") is False:
        why = "the model is off until its file is known; set it then"
        reading.notes.append(Note("dropped", setting.where, setting.what, why))
        return
    entry.add("load-on-startup", True, setting.source)


def _device(reading: Reading, models: Models, setting: Setting) -> None:
    if models.device is None:
        models.device = setting
    elif models.device.value != setting.value:
        why = f"one device for all: {models.device.value} (accelerator_device)"
        reading.notes.append(Note("changed", setting.where, setting.what, why))


def _shared_notes(reading: Reading) -> None:
    """What ``[*]`` holds that has no place in `defaults`, and `fit`, which nobody may leave on."""
    for key in _MODEL - {"tags", "load-on-startup", "chat-template"}:
        setting = reading.layers.shared.get(key)
        if setting:
            why = "it is of one model, and [*] gives it to all"
            reading.notes.append(Note("dropped", setting.where, setting.what, why))
    fit = reading.layers.get("fit")
    if fit is None or fit.value != "off":
        where = fit.where if fit else reading.ini.file
        why = "`fit = off`: on, it moves layers to the CPU or shrinks the context, unseen"
        reading.notes.append(Note("changed", where, fit.what if fit else "fit is on by default", why))


def _generic(reading: Reading, settings: Mapping[str, Setting], section: IniSection | None) -> list[Field]:
    """``sampling`` and ``options``: of one section, or (``section`` None) of ``[*]`` and the command line."""
    layers = reading.layers
    if section is None:
        settings = {**settings, **layers.command}
    parts: dict[str, list[Field]] = {"sampling": [], "options": []}
    for key, setting in settings.items():
        if key in _MODEL or key in REQUIRED or key == "fit" or key == "device":
            continue
        why = _no_place(reading, key, setting, section)
        if why:
            reading.notes.append(Note("dropped", setting.where, setting.what, why))
            continue
        group = "sampling" if setting.option.sampling else "options"
        parts[group].append(Field.of(key, scalar(setting.value), setting.source))
    return [Field(group, fields) for group, fields in parts.items() if fields]


def _no_place(reading: Reading, key: str, setting: Setting, section: IniSection | None) -> str:
    """Why an option is not carried on; empty when it is."""
    layers = reading.layers
    refused = refuse_key(setting.option)
    if key in SET_BY_THE_ROUTER:
        return "the deploy sets it for the router and all models"
    if refused:
        return ": ".join(refused)
    if key in layers.command and section is not None:
        return f"the router's command line has `{layers.command[key].what}`, which wins over every section"
    if section is not None:
        below = layers.shared.get(key)
        if below and below.value == setting.value:
            return "the same as in [*]"
    hidden = (layers.shared if section is not None else {}, layers.environment)
    if LLAMA_DEFAULTS.get(key) == setting.value and not any(key in layer for layer in hidden):
        return "llama.cpp's own default"
    return ""
