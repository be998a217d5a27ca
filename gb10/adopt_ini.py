"""A preset file as llama.cpp reads it, with its comments kept.

The grammar is `parse_ini_from_file` in llama.cpp's ``common/preset.cpp``. It does not backtrack, so the
patterns below are possessive: ``[ name ]`` is a section ``"name "``, with the blank. What it does not
accept, no router ever served, so it is refused here too: every faulty line at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gb10.faults import BadInput, Fault

BEFORE_ANY_SECTION = "default"
"""The section that llama.cpp makes of keys before the first header."""

_EOL = r"[ \t]*+(?P<comment>[;#][^\r\n]*+)?(?P<end>\r\n|\n|\r|\Z)"
_HEADER = re.compile(r"\[[ \t]*+(?P<name>[^\]]++)\]" + _EOL)
_KEY = re.compile(
    r"(?P<key>[a-zA-Z_][a-zA-Z0-9_.-]*+)[ \t]*+=[ \t]*+"
    r"(?P<value>(?:(?![ \t]*(?:[;#\r\n]|\Z)).)*+)(?P<gap>[ \t]*+)" + _EOL,
    re.DOTALL,
)
_BLANK = re.compile(_EOL)
_LINE = re.compile(r"(?P<text>[^\r\n]*)(?:\r\n|\n|\r|\Z)")
_PAIRS = (("{", "}"), ("[", "]"), ("(", ")"))


@dataclass(frozen=True)
class IniKey:
    """One ``key = value`` line. ``lost`` is what ``;`` or ``#`` cut off the value where it was hardly
    meant as a comment; ``comment`` is the comment behind the value, ``above`` the comment lines before it."""

    name: str
    value: str
    line: int
    lost: str = ""
    comment: str = ""
    above: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """False when the cut left an open quote or bracket: no reader can make sense of the value."""
        return not _open_ended(self.value)


@dataclass(frozen=True)
class IniSection:
    """One section. ``replaced`` are the lines of earlier headers of the same name: all their keys are
    gone."""

    name: str
    line: int
    keys: tuple[IniKey, ...] = ()
    comment: str = ""
    above: tuple[str, ...] = ()
    replaced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ini:
    """A whole file: ``head`` are the comments on its top, ``foot`` those after the last key."""

    file: str
    sections: tuple[IniSection, ...]
    head: tuple[str, ...] = ()
    foot: tuple[str, ...] = ()

    def section(self, name: str) -> IniSection | None:
        """The section with exactly this name, or None."""
        return next((section for section in self.sections if section.name == name), None)


@dataclass
class _Sections:
    """Sections as they are filled, in the order in which the last of a name begins."""

    found: dict[str, IniSection] = field(default_factory=dict)
    current: str = BEFORE_ANY_SECTION

    def begin(self, section: IniSection) -> None:
        old = self.found.pop(section.name, None)
        if old and (old.keys or old.replaced):
            section = replace(section, replaced=(*old.replaced, old.line))
        self.found[section.name] = section
        self.current = section.name

    def add(self, key: IniKey) -> None:
        section = self.found.get(self.current) or IniSection(self.current, key.line)
        self.found[self.current] = replace(section, keys=(*section.keys, key))


def read_ini(text: str, file: str) -> Ini:
    """Read a preset file. ``file`` is its name in faults.

    Raises BadInput with every line that llama.cpp cannot read; it would exit with 1 at the first.
    """
    sections, faults = _Sections(), []
    head: list[str] = []
    pending: list[str] = []
    position, line = 0, 1
    while position < len(text):
        rule = _HEADER.match(text, position) or _KEY.match(text, position) or _BLANK.match(text, position)
        if rule is None:
            bad = _LINE.match(text, position)
            assert bad is not None
            faults.append(_syntax_fault(f"{file}:{line}", bad["text"]))
            pending.clear()
            position, line = bad.end(), line + 1
            continue
        comment = _comment_text(rule["comment"])
        if rule.re is _HEADER:
            sections.begin(IniSection(rule["name"], line, comment=comment, above=tuple(pending)))
            pending.clear()
        elif rule.re is _KEY:
            sections.add(_key(rule, line, comment, tuple(pending)))
            pending.clear()
        elif rule["comment"]:
            pending.append(comment)
        elif not sections.found:
            # A comment that a blank line parts from the first section is the file's own.
            head += pending
            pending.clear()
        line += len(re.findall(r"\r\n|\n|\r", rule[0]))
        position = rule.end()
    if faults:
        raise BadInput(faults)
    return Ini(file, tuple(sections.found.values()), tuple(head), tuple(pending))


def _key(rule: re.Match[str], line: int, comment: str, above: tuple[str, ...]) -> IniKey:
    lost = ""
    # `a = b ; words` has a comment; `a = b#c` and `a = {"x": ";"}` have lost a part of their value.
    if rule["comment"] and (not rule["gap"] or _open_ended(rule["value"])):
        lost, comment = rule["comment"], ""
    return IniKey(rule["key"], rule["value"], line, lost, comment, above)


def _comment_text(comment: str | None) -> str:
    return (comment or "").lstrip(";#").strip()


def _open_ended(value: str) -> bool:
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', "", value)
    return '"' in plain or any(plain.count(start) != plain.count(end) for start, end in _PAIRS)


def _syntax_fault(where: str, text: str) -> Fault:
    bare = text.strip(" \t")
    if text.startswith("\ufeff"):
        return Fault(where, "a byte order mark: llama.cpp cannot read the file", "save it as plain UTF-8")
    if bare != text and (bare.startswith("[") or "=" in bare):
        what = "blanks before a header or a key: llama.cpp cannot read the file, and its router exits with 1"
        return Fault(where, what, "begin the line at its first column")
    if bare.startswith("["):
        return Fault(where, "not a section header", "write `[name]` and nothing behind it but a comment")
    if "=" not in bare:
        return Fault(where, f"`{bare.split(' ')[0]}` is neither a header nor `key = value`", "correct it")
    return Fault(
        where, "the key is not one: letters, digits, `_`, `.`, `-`, a letter first", "correct the key"
    )
