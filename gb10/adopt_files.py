"""The files that a section names, as keys of its entry: model, projector, draft, chat template.

A model whose repository or file cannot be told is written down all the same, but off, with what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from gb10.adopt_entry import Entry
from gb10.adopt_ini import IniSection
from gb10.adopt_paths import Place
from gb10.adopt_reading import Reading
from gb10.adopt_report import Note
from gb10.adopt_settings import Setting
from gb10.model import OWN_FOLDER, FileRef

_FILE = re.compile(r"[\w.+-]+(/[\w.+-]+)*\.gguf")


def model_files(
    reading: Reading, section: IniSection, own: Mapping[str, Setting], entry: Entry
) -> list[Place]:
    """Add the file keys of one section to its entry. The places of all its files."""
    places: list[Place] = []
    main, ref = own.get("model"), None
    if main:
        place = reading.places.find(main.value)
        places.append(place)
        ref = place.ref if place.ref and _FILE.fullmatch(place.ref.file) else None
        if ref:
            _repository(entry, ref, main)
            if place.how:
                why = f"{place.how}; `gb10 pin {entry.name}` and the file's hash prove or refute it"
                reading.notes.append(Note("to do", main.where, main.what, why))
        else:
            _unknown(reading, entry, main, place)
    else:
        ref = _hub(reading, section, own, entry)
    for key, name in (
        ("mmproj", "projector"),
        ("model-draft", "draft"),
        ("chat-template-file", "chat-template"),
    ):
        if key in own:
            places += _beside(reading, own[key], name, ref, entry)
    if "hf-repo-draft" in own:
        setting = own["hf-repo-draft"]
        why = "write `draft: {repo: ..., file: ...}`: files are pinned, not looked up at the start"
        reading.notes.append(Note("to do", setting.where, setting.what, why))
    template = own.get("chat-template")
    if template and "chat-template-file" not in own:
        entry.add("chat-template", template.value, template.source)
    return places


def _repository(entry: Entry, ref: FileRef, setting: Setting) -> None:
    entry.add("repo", ref.repo, setting.source)
    entry.add("revision", ref.revision)
    entry.add("file", ref.file)


def _off(reading: Reading, entry: Entry, setting: Setting, reason: str, more: str = "") -> None:
    entry.add("enabled", False, setting.source)
    entry.add("reason", reason)
    reading.notes.append(Note("to do", setting.where, setting.what, f"the model is off: {reason}{more}"))


def _unknown(reading: Reading, entry: Entry, setting: Setting, place: Place) -> None:
    name = PurePosixPath(place.path).name
    conversion = reading.conversions.get(entry.name)
    if place.own is not None or conversion is not None:
        target = f"{OWN_FOLDER}/{entry.name}/{name} of the models folder"
        in_place = place.own == entry.name
        if conversion and in_place:
            parts = {"repo": conversion.repo, "revision": conversion.revision, "outtype": conversion.outtype}
            entry.add("source", {key: value for key, value in parts.items() if value}, setting.source)
            entry.add("file", name)
            return
        todo = [] if in_place else [f"put the file at {target}"]
        todo += [] if conversion else ["write `source` with repo and outtype of the conversion"]
        _off(reading, entry, setting, f"made at home: {', '.join(todo)}, and remove `enabled` and `reason`")
        if conversion:
            entry.add("source", {"repo": conversion.repo, "outtype": conversion.outtype})
    else:
        reason = f"the repository of {place.path} is not known:"
        reason += f" write `repo` and `file`, then `gb10 pin {entry.name}`"
        folder = PurePosixPath(place.path).parent
        more = f"; or remove the entry and serve it with the defaults: models_found_folder = {folder}"
        _off(reading, entry, setting, reason, more)
    if _FILE.fullmatch(name):
        entry.add("file", name)


def _hub(reading: Reading, section: IniSection, own: Mapping[str, Setting], entry: Entry) -> FileRef | None:
    """``hf-repo`` and ``hf-file``, or the name of the section as the router names models of its cache."""
    setting = own.get("hf-repo")
    repo, _, quant = (setting.value if setting else section.name.strip()).partition(":")
    file = own.get("hf-file")
    if setting and file and _FILE.fullmatch(file.value):
        ref = FileRef(repo, None, file.value)
        _repository(entry, ref, setting)
        return ref
    what = f"[{section.name}]" if setting is None else setting.what
    wanted = f", the one for {quant}," if quant else ""
    reason = f"no file is named: write `file`{wanted} as in {repo}, then `gb10 pin {entry.name}`"
    entry.add("enabled", False, setting.source if setting else None)
    entry.add("reason", reason)
    entry.add("repo", repo)
    where = setting.where if setting else f"{reading.ini.file}:{section.line}"
    reading.notes.append(Note("to do", where, what, f"the model is off: {reason}"))
    return FileRef(repo, None, "")


def _beside(reading: Reading, setting: Setting, key: str, main: FileRef | None, entry: Entry) -> list[Place]:
    place = reading.places.find(setting.value)
    ref = place.ref
    if ref is None:
        name = PurePosixPath(place.path).name
        why = f"its repository is not known: write `{key}` in models.{entry.name} if it is in one ({name})"
        reading.notes.append(Note("to do", setting.where, setting.what, why))
        return [place]
    same = main is not None and (ref.repo, ref.revision) == (main.repo, main.revision)
    parts = {"repo": ref.repo, "revision": ref.revision, "file": ref.file}
    entry.add(key, ref.file if same else {name: part for name, part in parts.items() if part}, setting.source)
    return [place]
