"""A systemd unit, or a shell script with a command, down to the command line that starts the router.

Of systemd's syntax: continued lines, comments between them, quotes and escapes, specifiers, ``$NAME`` and
``${NAME}`` from ``Environment=``, empty assignments that clear a list. See systemd.syntax(7),
systemd.service(5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gb10.faults import BadInput, Fault

_UNIT = re.compile(r"(?m)^\s*(\[(Unit|Service|Install)\]|ExecStart\s*=)")
_ENGINES = ("docker", "podman")
_SHELLS = ("sh", "bash", "dash")
SERVER = "llama-server"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "\\": "\\", '"': '"', "'": "'", "a": "\a", "b": "\b"}
_FOLDERS = {
    "t": "/run",
    "S": "/var/lib",
    "C": "/var/cache",
    "L": "/var/log",
    "E": "/etc",
    "T": "/tmp",  # noqa: S108
    "h": "/root",
}
_TO_THE_SERVER = (
    "give a unit or a script that holds `docker run ...` or `llama-server ...`, or read it with --host"
)


@dataclass(frozen=True)
class Directive:
    """One assignment of a unit, continued lines joined by a blank; ``line`` is its first."""

    key: str
    value: str
    line: int


@dataclass(frozen=True)
class Launch:
    """How the router is started: ``argv`` from the program on, ``environment`` of that process, and the
    unit's directives (none for a script). ``line`` is where the command begins. ``open`` are variables and
    specifiers that the text alone does not tell."""

    file: str
    name: str
    line: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directives: tuple[Directive, ...] = ()
    open: tuple[str, ...] = ()

    def values(self, key: str) -> list[Directive]:
        """All assignments of one key that count: an empty one clears those before it."""
        found: list[Directive] = []
        for directive in self.directives:
            if directive.key == key:
                found = [*found, directive] if directive.value else []
        return found


def read_launch(text: str, file: str) -> Launch:
    """The command of a unit or a script. Raises BadInput when there is none that starts llama-server."""
    if _UNIT.search(text):
        return _from_unit(text, file)
    return _from_script(text, file)


def read_directives(text: str) -> tuple[Directive, ...]:
    """All assignments of a unit, in the order of the file; of ``systemctl cat`` that is drop-ins last."""
    found: list[Directive] = []
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        if raw.lstrip().startswith(("#", ";")):
            continue  # also between continued lines
        first = first if parts else number
        if raw.endswith("\\"):
            parts.append(raw[:-1])
            continue
        joined = " ".join([*parts, raw]).strip()
        parts.clear()
        key, equals, value = joined.partition("=")
        if equals and not joined.startswith("["):
            found.append(Directive(key.strip(), value.strip(), first))
    return tuple(found)


def _from_unit(text: str, file: str) -> Launch:
    name = PurePosixPath(file).name.removesuffix(".service")
    launch = Launch(file, name, 1, (), {}, read_directives(text))
    missing: list[str] = []
    environment: dict[str, str] = {}
    for directive in launch.values("Environment"):
        for word in split_words(directive.value):
            key, _, value = _specifiers(word, name, missing).partition("=")
            environment[key] = value
    for directive in launch.values("ExecStart"):
        words = split_words(directive.value.lstrip("-@:+!|"))
        words = [_specifiers(word, name, missing) for word in words]
        words = list(_variables(words, environment, missing))
        argv, own = _server_command(words)
        if argv:
            opened = tuple(dict.fromkeys(missing))
            return Launch(file, name, directive.line, argv, {**environment, **own}, launch.directives, opened)
    raise BadInput([Fault(file, "no ExecStart that runs llama-server", _TO_THE_SERVER)])


def _from_script(text: str, file: str) -> Launch:
    opened: list[str] = []
    environment: dict[str, str] = {}
    for line, command in _script_lines(text):
        try:
            words = shlex.split(command, comments=True)
        except ValueError as error:
            raise BadInput(
                [Fault(f"{file}:{line}", f"cannot be read ({error})", "close the quote")]
            ) from None
        assigned = re.fullmatch(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", command.strip())
        if assigned and len(words) <= 2:
            environment[assigned[1]] = words[-1].partition("=")[2]
            continue
        words = list(_variables(words, environment, opened, braceless=True))
        argv, own = _server_command(words)
        if argv:
            return Launch(file, "", line, argv, {**environment, **own}, open=tuple(dict.fromkeys(opened)))
    raise BadInput([Fault(file, "no command that runs llama-server", _TO_THE_SERVER)])


def _script_lines(text: str) -> Iterator[tuple[int, str]]:
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        first = first if parts else number
        if raw.endswith("\\"):
            parts.append(raw[:-1])
            continue
        joined = " ".join([*parts, raw]).strip()
        parts.clear()
        if joined and not joined.startswith("#"):
            yield first, joined


def split_words(value: str) -> list[str]:
    """The words of a unit's value: blanks part them, quotes hold them together, backslashes escape."""
    words: list[str] = []
    word, quote, begun = "", "", False
    position = 0
    while position < len(value):
        char = value[position]
        position += 1
        if char == "\\" and position < len(value):
            code = re.compile(r"x[0-9a-fA-F]{2}").match(value, position)
            word += (
                chr(int(code[0][1:], 16)) if code else _ESCAPES.get(value[position], "\\" + value[position])
            )
            position += len(code[0]) if code else 1
            begun = True
        elif quote:
            word, quote = (word, "") if char == quote else (word + char, quote)
        elif char in "\"'":
            quote, begun = char, True
        elif char.isspace():
            words += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + char, True
    return [*words, word] if begun else words


def _specifiers(word: str, name: str, missing: list[str]) -> str:
    prefix, _, instance = name.partition("@")
    known = {
        "%": "%",
        "n": f"{name}.service",
        "N": name,
        "p": prefix,
        "i": instance,
        "I": instance,
        **_FOLDERS,
    }

    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            missing.append(match[0])
        return known.get(match[1], match[0])

    return re.sub(r"%([A-Za-z%])", value, word)


def _variables(
    words: Sequence[str], environment: Mapping[str, str], missing: list[str], *, braceless: bool = False
) -> Iterator[str]:
    """systemd puts ``${NAME}`` in anywhere, and ``$NAME`` only where it is a word of its own, split at
    blanks; a shell puts both in anywhere (``braceless``)."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2]
        if name not in environment:
            missing.append(f"${name}")
            return match[0]
        return environment[name]

    pattern = r"\$\$|\$\{(\w+)\}" + (r"|\$([A-Za-z_]\w*)" if braceless else r"|(?!)(x)")
    for word in words:
        alone = re.fullmatch(r"\$([A-Za-z_]\w*)", word)
        if alone and not braceless:
            if alone[1] in environment:
                yield from environment[alone[1]].split()
            else:
                missing.append(word)
            continue
        yield re.sub(pattern, value, word)


def _server_command(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The part of a command that starts the router, and what is set in front of it; empty when it does
    not."""
    own: dict[str, str] = {}
    words = list(words)
    while words and (words[0] in ("exec", "sudo", "env", "/usr/bin/env", "nohup") or "=" in words[0]):
        key, equals, value = words.pop(0).partition("=")
        if equals:
            own[key] = value
    if not words:
        return (), own
    program = PurePosixPath(words[0]).name
    if program in _SHELLS:
        script = next(
            (words[at + 1] for at, word in enumerate(words[:-1]) if re.fullmatch(r"-\w*c", word)), ""
        )
        lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        try:
            tokens = list(lexer)
        except ValueError:
            return (), own  # an open quote: no shell would run it either
        for token in [*tokens, ";"]:
            if token and not token.strip(";&|()"):
                argv, inner = _server_command(command)
                if argv:
                    return argv, {**own, **inner}
                command = []
            else:
                command.append(token)
        return (), own
    rest = words[1:3]
    if program in _ENGINES and ("run" in rest or "create" in rest):
        return tuple(words), own
    return (tuple(words), own) if program == SERVER else ((), own)
