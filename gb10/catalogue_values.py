"""Reads one value of the catalogue at a time, and keeps a fault for each that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gb10.conversion import DEFAULT_OUTTYPE, OUTTYPES
from gb10.faults import Fault
from gb10.model import Clients, Conversion, FileRef, shard_number
from gb10.preset_options import PresetOption, PresetOptions, near_miss
from gb10.preset_rules import refuse_cache_type, refuse_gpu_layers, refuse_key, refuse_text
from gb10.yaml_marks import Marked

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r"[\w.+-]+(/[\w.+-]+)*")
_DRAFT_PREFIXES = ("mtp-", "dspark-", "dflash-")
"""File names that llama.cpp takes for a draft model (``draft_prefixes`` in common/preset.cpp)."""

PLAIN_KEYS = ("n-gpu-layers", "load-mode")
"""Preset options that the catalogue spells at its own level, because every preset must have them."""

OWN_KEYS = frozenset(
    {
        "ctx-size",
        "parallel",
        "kv-unified",
        "kv-unified-per-slot",
        "cache-ram",
        "chat-template",
        "load-on-startup",
    }
) | set(PLAIN_KEYS)
"""Options of llama.cpp that are keys of the catalogue itself, so they are refused under ``options``."""


def as_text(value: object) -> str:
    """A value as the preset file spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class Reader:
    """Value by value: a method gives the value, or None when it is absent or wrong (a fault is then kept)."""

    def __init__(self, options: PresetOptions) -> None:
        self.preset_options = options
        self.faults: list[Fault] = []

    def fault(self, place: Marked, key: str, what: str, do: str) -> None:
        """Keep one fault at a place of the file."""
        self.faults.append(Fault(place.where(key).rstrip(), what, do))

    def is_mapping(self, value: Marked, key: str) -> bool:
        """Whether the value is a mapping; a fault if not."""
        if isinstance(value.value, dict):
            return True
        self.fault(value, key, "is not a mapping", "write `key: value` lines below it")
        return False

    def repeated(self, section: Marked, key: str, result: str) -> None:
        """A fault for each key that stands twice in a mapping."""
        seen: set[str] = set()
        for name, line in section.keys:
            if name in seen:
                self.fault(
                    Marked(None, section.file, line),
                    f"{key}.{name}".lstrip("."),
                    f"repeated: {result}",
                    "keep one",
                )
            seen.add(name)

    def known_keys(self, section: Marked, at: str, allowed: tuple[str, ...]) -> None:
        """A fault for each key that is not allowed: the near one, or what llama.cpp has to say of it."""
        self.repeated(section, at, "the last one would win")
        for name, value in section.items():
            if name in allowed:
                continue
            what, do = f"no such key (allowed: {', '.join(allowed)})", near_miss(name, allowed)
            option = self.preset_options.find(name)
            if name in self.preset_options.removed:
                what, do = self.preset_options.why_unknown(name)
            elif option and at:
                refused = refuse_key(option)
                what, do = refused or ("a preset option stands under `options`", f"move `{name}` there")
                do = f"use `{option.key}`" if option.key in allowed else do
            self.fault(value, f"{at}.{name}".lstrip("."), what, do)

    def text(self, value: Marked | None, key: str, *, preset: bool = True) -> str | None:
        """A text; with ``preset`` it must be one that the preset file can hold."""
        if value is None or value.value is None:
            return None
        if not isinstance(value.value, str):
            self.fault(value, key, f"`{value.plain()}` is not a text", 'write it in quotes: "..."')
            return None
        why = refuse_text(value.value) if preset else None
        if why:
            self.fault(value, key, f"the value {why}", "write it otherwise")
            return None
        return value.value.strip()

    def texts(self, value: Marked | None, key: str) -> list[str]:
        """A list of texts without commas, by which llama.cpp splits such lists; one text counts as a list."""
        if value is None or value.value is None:
            return []
        items = value.value if isinstance(value.value, list) else [value]
        found = []
        for item in items:
            text = self.text(item, key)
            if text and "," in text:
                self.fault(item, key, f"`{text}` holds a comma", "write a list: [a, b]")
            elif text:
                found.append(text)
        return found

    def truth(self, value: Marked | None, key: str) -> bool | None:
        """true or false."""
        if value is None:
            return None
        if isinstance(value.value, bool):
            return value.value
        self.fault(value, key, f"`{value.plain()}` is neither true nor false", "write `true` or `false`")
        return None

    def count(self, value: Marked | None, key: str, least: int = 1) -> int | None:
        """A whole number, ``least`` or more."""
        if value is None:
            return None
        number = value.value
        if isinstance(number, int) and not isinstance(number, bool) and least <= number < 2**31:
            return number
        self.fault(value, key, f"`{value.plain()}` is not a whole number from {least} on", "write a number")
        return None

    def cache_type(self, value: Marked | None, key: str) -> str | None:
        """A KV cache type, for K and V alike."""
        text = self.text(value, key)
        why = refuse_cache_type(text) if text else None
        if why and value is not None:
            self.fault(value, key, f"`{text}` {why}", "take one of them")
            return None
        return text

    def repo(self, value: Marked | None, key: str) -> str | None:
        """``OWNER/NAME`` on the hub."""
        text = self.text(value, key)
        if text and value and not _REPO.fullmatch(text):
            self.fault(value, key, f"`{text}` is not a repository", "write it as OWNER/NAME")
            return None
        return text

    def path(self, value: Marked | None, key: str, ending: str) -> str | None:
        """The path of a file inside its repository, with its ending."""
        text = self.text(value, key)
        if text is None or value is None:
            return None
        if not _FILE.fullmatch(text) or ".." in text.split("/") or not text.endswith(ending):
            self.fault(
                value, key, f"`{text}` is not a path to a {ending} file", "write it as in the repository"
            )
            return None
        return text

    def gguf(self, value: Marked | None, key: str) -> str | None:
        """The model file. A projector or a draft by its name is refused: llama.cpp would not serve it."""
        text = self.path(value, key, ".gguf")
        if text is None or value is None:
            return None
        name = text.rsplit("/", 1)[-1]
        shard = shard_number(name)
        if "mmproj" in name:
            self.fault(value, key, f"`{name}` is a projector by its name", "name it under `projector`")
        elif name.startswith(_DRAFT_PREFIXES):
            self.fault(value, key, f"`{name}` is a draft model by its name", "name it under `draft`")
        elif shard and (shard[0] != 1 or shard[1] < 1):
            self.fault(value, key, f"`{name}` is not the first shard", "name the one with -00001-of-")
        else:
            return text
        return None

    def file_ref(
        self, value: Marked | None, key: str, repo: str | None, revision: str | None, ending: str
    ) -> FileRef | None:
        """A file beside the model: a path in the model's repository, or ``{repo, revision, file}``."""
        if value is None or value.value is None:
            return None
        if isinstance(value.value, dict):
            self.known_keys(value, key, ("repo", "revision", "file"))
            parts = value.value
            repo = self.repo(parts.get("repo"), f"{key}.repo") or repo
            revision = self.text(parts.get("revision"), f"{key}.revision") if "repo" in parts else revision
            file = self.path(parts.get("file"), f"{key}.file", ending)
            if "file" not in parts:
                self.fault(value, key, "no `file`", "add it")
        else:
            file = self.path(value, key, ending)
        if file and repo is None:
            self.fault(
                value,
                key,
                "the model has no repository to take the file from",
                "write {repo: ..., file: ...}",
            )
        return FileRef(repo, revision, file) if file and repo else None

    def conversion(self, value: Marked | None, key: str) -> Conversion | None:
        """``source: {repo, revision, outtype}`` of a GGUF that is made at home; without an outtype q8_0."""
        if value is None or not self.is_mapping(value, key):
            return None
        self.known_keys(value, key, ("repo", "revision", "outtype"))
        parts = dict(value.items())
        repo = self.repo(parts.get("repo"), f"{key}.repo")
        outtype = self.text(parts.get("outtype"), f"{key}.outtype") or DEFAULT_OUTTYPE
        if outtype not in OUTTYPES:
            self.fault(value, f"{key}.outtype", f"`{outtype}` is none of {', '.join(OUTTYPES)}", "set q8_0")
        if "repo" not in parts:
            self.fault(value, key, "a source needs `repo`", "add `repo: OWNER/NAME`")
        if repo is None:
            return None
        return Conversion(repo, self.text(parts.get("revision"), f"{key}.revision"), outtype)

    def clients(self, value: Marked | None, key: str) -> Clients | None:
        """``clients: {count, tokens}``."""
        if value is None or not self.is_mapping(value, key):
            return None
        self.known_keys(value, key, ("count", "tokens"))
        parts = dict(value.items())
        count = self.count(parts.get("count"), f"{key}.count")
        tokens = self.count(parts.get("tokens"), f"{key}.tokens")
        if not ({"count", "tokens"} <= set(parts)):
            self.fault(value, key, "needs `count` and `tokens`", "write {count: 4, tokens: 16000}")
        return Clients(count, tokens) if count and tokens else None

    def sampling_of(self, own: Mapping[str, Marked], at: str) -> dict[str, str]:
        """The ``sampling`` mapping as preset keys."""
        return self._preset_keys(own.get("sampling"), f"{at}.sampling", sampling=True)

    def options_of(self, own: Mapping[str, Marked], at: str) -> dict[str, str]:
        """The ``options`` mapping as preset keys, and the options spelled at the entry's own level."""
        values: dict[str, str] = {}
        for key in PLAIN_KEYS:
            if key not in own:
                continue
            option = self.preset_options.find(key)
            text = self._option_text(own[key], f"{at}.{key}", option) if option else None
            why = refuse_gpu_layers(text) if text and key == "n-gpu-layers" else None
            if why:
                self.fault(own[key], f"{at}.{key}", f"`{text}` {why}", "write `all`")
            elif text is not None:
                values[key] = text
        return values | self._preset_keys(own.get("options"), f"{at}.options", sampling=False)

    def _preset_keys(self, section: Marked | None, at: str, *, sampling: bool) -> dict[str, str]:
        if section is None or section.value is None or not self.is_mapping(section, at):
            return {}
        self.repeated(section, at, "the last one would win")
        values: dict[str, str] = {}
        for name, value in section.items():
            key = f"{at}.{name}"
            option = self.preset_options.find(name)
            refused = refuse_key(option) if option else self.preset_options.why_unknown(name)
            if option and not refused:
                refused = _misplaced(option, sampling=sampling)
            if option and not refused and option.key in values:
                refused = (f"the same option as another key here (`{option.key}`)", "keep one")
            if option is None or refused:
                self.fault(value, key, *(refused or ("no such option", "remove it")))
                continue
            text = self._option_text(value, key, option)
            if text is not None:
                negated = name in option.negated
                values[option.key] = (
                    text if not negated else as_text(text not in ("true", "1", "on", "enabled"))
                )
        return values

    def _option_text(self, value: Marked, key: str, option: PresetOption) -> str | None:
        plain = value.plain()
        if isinstance(plain, bool) and as_text(plain) not in option.allowed:
            # YAML reads a bare `on` as true, and 1 and 0 are how some options say it.
            words = ("on", "1") if plain else ("off", "0")
            plain = next((word for word in words if word in option.allowed), plain)
        if isinstance(plain, dict | list) and option.kind == "string" and not option.allowed:
            plain = json.dumps(plain)
        if not isinstance(plain, str | int | float):
            self.fault(value, key, f"`{plain}` is not a text or a number", 'write it in quotes: "..."')
            return None
        text = as_text(plain)
        why = refuse_text(text)
        if why:
            self.fault(value, key, f"the value {why}", "write it otherwise")
            return None
        why = option.refuse(text)
        if why:
            self.fault(value, key, f"`{text}`: the option {why}", "correct the value")
            return None
        return text


def _misplaced(option: PresetOption, *, sampling: bool) -> tuple[str, str] | None:
    if option.key in OWN_KEYS:
        return "the catalogue has a key of its own for it", f"write `{option.key}` one level up"
    if sampling and not option.sampling:
        return "not a sampling option", "move it to `options`"
    if option.sampling and not sampling:
        return "a sampling option", "move it to `sampling`"
    return None
