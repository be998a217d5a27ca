"""A catalogue as it is being written: entries with their comments, and the text of ``models.yaml``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from gb10.adopt_ini import IniKey
from gb10.adopt_report import masked
from gb10.catalogue_values import as_text

_WIDTH = 100


@dataclass
class Field:
    """One key of an entry. ``value`` is what YAML can say; of ``sampling`` and ``options`` a list of
    fields."""

    key: str
    value: object
    above: tuple[str, ...] = ()
    comment: str = ""

    @classmethod
    def of(cls, key: str, value: object, *sources: IniKey | None) -> Field:
        """A field with the comments of the lines that it was made of."""
        found = [source for source in sources if source]
        above = tuple(line for source in found for line in source.above)
        return cls(key, value, above, "; ".join(source.comment for source in found if source.comment))


@dataclass
class Entry:
    """One model: its name, its fields in the order to write, and the comments before it."""

    name: str
    fields: list[Field] = field(default_factory=list)
    above: tuple[str, ...] = ()

    def add(self, key: str, value: object, *sources: IniKey | None) -> None:
        """Add a field, unless its value is None or empty."""
        if value is not None and value != [] and value != "":
            self.fields.append(Field.of(key, value, *sources))

    def get(self, key: str) -> object:
        """The value of a field, or None."""
        return next((part.value for part in self.fields if part.key == key), None)


def scalar(text: str) -> object:
    """A preset value as YAML should hold it: a number or a truth where that says exactly the same text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    exact = isinstance(value, bool | int | float) and as_text(value) == text
    return value if exact else text


def catalogue_text(
    defaults: Sequence[Field],
    entries: Sequence[Entry],
    *,
    source: str,
    head: Sequence[str] = (),
    foot: Sequence[str] = (),
) -> str:
    """The text of the catalogue. A comment that looks like a secret is left out."""
    lines = [f"# The catalogue, taken over from {source}. docs/models.md explains it.", *_comments(head, 0)]
    lines += ["", "defaults:", *_fields(defaults, 2), "", "models:" if entries else "models: {}"]
    for number, entry in enumerate(entries):
        lines += [""] if number else []
        lines += [*_comments(entry.above, 2), f"  {flow(entry.name)}:", *_fields(entry.fields, 4)]
    lines += ["", *_comments(foot, 0)] if foot else []
    return "\n".join(lines) + "\n"


def flow(value: object) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**31, explicit_end=False
    )
    return text.removesuffix("...\n").rstrip("\n")


def _fields(fields: Sequence[Field], indent: int) -> Iterator[str]:
    for part in fields:
        yield from _comments(part.above, indent)
        behind = f" # {part.comment}" if part.comment and masked(part.comment) == part.comment else ""
        if isinstance(part.value, list) and part.value and isinstance(part.value[0], Field):
            yield f"{' ' * indent}{part.key}:{behind}"
            yield from _fields(part.value, indent + 2)
        else:
            value = dict(part.value) if isinstance(part.value, Mapping) else part.value
            yield f"{' ' * indent}{flow(part.key)}: {flow(value)}{behind}"


def _comments(lines: Sequence[str], indent: int) -> Iterator[str]:
    for line in lines:
        if masked(line) != line:
            continue
        for part in textwrap.wrap(line, _WIDTH, break_long_words=False) or [""]:
            yield f"{' ' * indent}# {part}".rstrip()
