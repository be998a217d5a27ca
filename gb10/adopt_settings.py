"""What a preset file, a command line and an environment set, by llama.cpp's own name of each option.

The layers in llama.cpp's order: the router's command line, over a section, over ``[*]``, over the
environment. What no layer can carry on (unknown, removed, cut, not a value) becomes a note and is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gb10.adopt_ini import IniKey, IniSection
from gb10.adopt_report import HIDDEN, Note, is_secret_name, is_secret_value, shown
from gb10.preset_options import TRUTHY, PresetOption, PresetOptions
from gb10.preset_rules import refuse_text

SECRETS = frozenset({"api-key", "hf-token"})
"""Options whose value is a secret: named in the report, and never shown or written."""

LLAMA_DEFAULTS: Mapping[str, str] = {
    "batch-size": "2048",
    "cache-prompt": "true",
    "cache-reuse": "0",
    "cont-batching": "true",
    "context-shift": "false",
    "embeddings": "false",
    "flash-attn": "auto",
    "jinja": "true",
    "keep": "0",
    "kv-offload": "true",
    "log-verbosity": "3",
    "main-gpu": "0",
    "mmproj-offload": "true",
    "n-predict": "-1",
    "op-offload": "true",
    "props": "false",
    "repack": "true",
    "reranking": "false",
    "slots": "true",
    "split-mode": "layer",
    "stop-timeout": "10",
    "swa-full": "false",
    "threads": "-1",
    "ubatch-size": "512",
    "warmup": "true",
}
"""Defaults of llama.cpp (``common_params`` in common/common.h). No sampling: a model file may bring its
own, and then the same value said in a preset is not the same."""


@dataclass(frozen=True)
class Setting:
    """One option as somebody set it. ``value`` is as the option's own (not its negated) name has it."""

    option: PresetOption
    value: str
    where: str
    what: str
    source: IniKey | None = None

    @property
    def truthy(self) -> bool:
        """Whether llama.cpp takes the value for yes."""
        return self.value in TRUTHY


@dataclass(frozen=True)
class Layers:
    """All settings that are not of one model; ``command`` wins over every section, the others do not."""

    command: Mapping[str, Setting] = field(default_factory=dict)
    shared: Mapping[str, Setting] = field(default_factory=dict)
    environment: Mapping[str, Setting] = field(default_factory=dict)

    def get(self, key: str, section: Mapping[str, Setting] | None = None) -> Setting | None:
        """What is in force for a model with this section, or for one without any."""
        for layer in (self.command, section or {}, self.shared, self.environment):
            if key in layer:
                return layer[key]
        return None


def section_settings(
    section: IniSection, file: str, options: PresetOptions, notes: list[Note]
) -> dict[str, Setting]:
    """The options of one section, in the order of the file."""
    by_name: dict[str, IniKey] = {}
    for key in section.keys:
        if key.name in by_name:
            notes.append(_dropped(section, file, by_name[key.name], f"repeated: line {key.line} counts"))
        by_name[key.name] = key
    found: dict[str, Setting] = {}
    # llama.cpp goes through the keys by their bytes: of two names of one option the later in that order wins.
    for name in sorted(by_name, key=str.encode):
        key = by_name[name]
        setting = _setting(section, file, key, options, notes) if name != "version" else None
        if setting is None:
            continue
        loser = found.get(setting.option.key)
        if loser is not None and loser.source is not None:
            why = f"the same option as `{name}`, which llama.cpp lets win"
            notes.append(_dropped(section, file, loser.source, why))
        found[setting.option.key] = setting
    return dict(sorted(found.items(), key=lambda item: item[1].source.line if item[1].source else 0))


def _dropped(section: IniSection, file: str, key: IniKey, why: str) -> Note:
    return Note("dropped", f"{file}:{key.line}", f"[{section.name}] {shown(key.name, key.value)}", why)


def _setting(
    section: IniSection, file: str, key: IniKey, options: PresetOptions, notes: list[Note]
) -> Setting | None:
    option = options.find(key.name)
    if option is None:
        what, do = options.why_unknown(key.name)
        notes.append(_dropped(section, file, key, f"{what}: {do}"))
        return None
    if option.key in SECRETS or is_secret_value(key.value):
        notes.append(
            Note("dropped", f"{file}:{key.line}", f"[{section.name}] {key.name} = {HIDDEN}", _SECRET)
        )
        return None
    if not key.whole:
        left = f"llama.cpp cuts a value at `{key.lost[:1]}`, and what is left is no whole value"
        notes.append(_dropped(section, file, key, left))
        return None
    key = _with_cut(section, file, key, option, notes)
    value = key.value
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        why = "for llama.cpp the quotes are a part of the value; taken without them"
        notes.append(Note("changed", f"{file}:{key.line}", f"[{section.name}] {key.name} = {value}", why))
        value = value[1:-1]
    bad_text = refuse_text(value)
    refused = f"the value {bad_text}" if bad_text else option.refuse(value)
    if refused:
        notes.append(_dropped(section, file, key, f"{refused}: no model could start with it"))
        return None
    if key.name in option.negated:
        value = "false" if value in TRUTHY else "true"
    return Setting(option, value, f"{file}:{key.line}", f"[{section.name}] {shown(key.name, key.value)}", key)


_SECRET = "a secret: the box has its own key file, a token goes into models_token_file"  # noqa: S105


def _with_cut(section: IniSection, file: str, key: IniKey, option: PresetOption, notes: list[Note]) -> IniKey:
    """The key, with what ``;`` or ``#`` took from its value told, or given back as the comment that it is."""
    free_text = option.kind == "string" and not option.allowed
    if key.lost and not free_text:
        return IniKey(key.name, key.value, key.line, "", key.lost.lstrip(";#").strip(), key.above)
    if key.lost:
        why = f"llama.cpp cuts a value at `{key.lost[0]}`: only `{key.value}` was in force"
        notes.append(Note("dropped", f"{file}:{key.line}", f"[{section.name}] {key.name}: `{key.lost}`", why))
    elif key.comment and free_text and " " in key.value:
        why = f"llama.cpp cuts it off as a comment: only `{key.value}` was in force"
        what = f"[{section.name}] {key.name}: `{key.comment}`"
        notes.append(Note("dropped", f"{file}:{key.line}", what, why))
    return key


def argument_settings(
    arguments: Sequence[str], where: str, options: PresetOptions, notes: list[Note]
) -> dict[str, Setting]:
    """The options on the command line of llama-server."""
    found: dict[str, Setting] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        name = word.lstrip("-")
        # llama.cpp takes underscores in long names.
        name = name.replace("_", "-") if word.startswith("--") else name
        option = options.find(name) if word.startswith("-") else None
        takes_value = option is None or option.kind not in ("flag", "bool")
        value = words.pop(0) if takes_value and words and not _is_option(words[0], options) else ""
        if option is None:
            what, do = options.why_unknown(name)
            hidden = HIDDEN if value and is_secret_name(word) else value
            notes.append(Note("dropped", where, f"{word} {hidden}".strip(), f"{what}: {do}"))
            continue
        hidden = HIDDEN if option.key in SECRETS else value
        if option.kind in ("flag", "bool"):
            value = "false" if name in option.negated else "true"
        found[option.key] = Setting(option, value, where, f"{word} {hidden}".strip())
    return found


def _is_option(word: str, options: PresetOptions) -> bool:
    # A value may begin with a dash (`-1`); the name of an option is none.
    return word.startswith("--") or (word.startswith("-") and options.find(word.lstrip("-")) is not None)


def environment_settings(
    environment: Mapping[str, str], where: str, options: PresetOptions
) -> dict[str, Setting]:
    """The options that the environment sets (``LLAMA_ARG_...``)."""
    found: dict[str, Setting] = {}
    for name, value in environment.items():
        option = options.find(name) if name.isupper() else None
        if option is None:
            continue
        hidden = HIDDEN if option.key in SECRETS else value
        # The mere presence of LLAMA_ARG_NO_X says no.
        real = "false" if name in option.negated else value
        found[option.key] = Setting(option, real, where, f"{name}={hidden}")
    return found


def whole_number(setting: Setting | None, least: int) -> int | None:
    """The setting as a number, or None where it is not set, not a number, or below ``least``."""
    if setting is None:
        return None
    try:
        number = int(setting.value)
    except ValueError:
        return None
    return number if number >= least else None


def without(settings: Mapping[str, Setting], keys: Iterable[str]) -> Iterator[Setting]:
    """The settings whose key is not among ``keys``."""
    left_out = frozenset(keys)
    return (setting for key, setting in settings.items() if key not in left_out)
