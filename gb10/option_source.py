"""Makes the option list of a llama.cpp from its own words: ``common/arg.cpp``, or ``llama-server --help``.

The source says more (which options are sampling ones, which take a whole number, which names are gone), so it
is preferred. The help text serves where only the built program is at hand. Both give the object that
``gb10.preset_options`` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_EXAMPLES_OF_THE_SERVER = ("LLAMA_EXAMPLE_SERVER", "LLAMA_EXAMPLE_COMMON")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_REMOVED = "the argument has been removed. "
_LAST_NAME_IS_THE_KEY = -1  # to_args() in llama.cpp's common/preset.cpp takes the last name as the main one
_HELP_TEXT_COLUMN = 40  # where common_arg::to_string() starts the help text


def options_from_source(source: str, *, ref: str, commit: str) -> dict[str, object]:
    """The option list of ``common/arg.cpp``. Raises ValueError when the text holds no option."""
    cache_types = _cache_types(source)
    seen: dict[str, dict[str, object]] = {}
    removed: dict[str, str] = {}
    for call, chain in _calls(source):
        row = _row(call, chain, cache_types)
        if row is None:
            continue
        names = row["names"]
        assert isinstance(names, list)
        gone = re.search(rf'"{re.escape(_REMOVED)}(.*?)"', call, re.S)
        if gone:
            removed |= {str(name): gone.group(1).removeprefix("use ") for name in names}
        else:
            seen.setdefault(str(row["key"]), row)
    return _list(seen, removed, ref, commit)


def options_from_help(text: str, *, ref: str, commit: str) -> dict[str, object]:
    """The option list of ``llama-server --help``. Raises ValueError when the text holds no option.

    The help does not tell a whole number from a text: ``N`` is taken for a number, all else for a text.
    The keys that only a preset may hold are not in it: they are added.
    """
    seen: dict[str, dict[str, object]] = {}
    removed: dict[str, str] = {}
    for head, rest, section in _help_blocks(text):
        names = re.findall(r"(?:^|[ ,])(--?[A-Za-z0-9][\w.-]*)", head)
        hint = re.sub(r"(?:^|[ ,])--?[A-Za-z0-9][\w.-]*,?", " ", head).strip()
        negated = _negated(names)
        plain = [name for name in names if name not in negated] or names
        env = re.findall(r"\(env: (\w+)\)", rest)
        if _REMOVED in rest:
            new = rest.split(_REMOVED, 1)[1].split("(env:")[0].strip().removeprefix("use ")
            removed |= dict.fromkeys([*(n.lstrip("-") for n in names), *env], new)
            continue
        kind = "int" if hint == "N" else "string" if hint else "bool" if negated else "flag"
        listed = re.search(r"allowed values: ([\w, ]+?)(?= *\(|$)", rest)
        allowed = _listed(hint) or ([v.strip() for v in listed.group(1).split(",")] if listed else [])
        row = _make(plain, negated if kind == "bool" else [], env, kind, allowed)
        row["sampling"] = section == "sampling params"
        seen.setdefault(str(row["key"]), row)
    if seen:
        for name, kind in (
            ("load-on-startup", "string"),
            ("stop-timeout", "int"),
            ("dedup-cache-models", "string"),
        ):
            seen[name] = _make([name], [], [], kind, ["0", "1"] if name.startswith("dedup") else [])
            seen[name]["preset_only"] = True
    return _list(seen, removed, ref, commit)


def _negated(names: list[str]) -> list[str]:
    """The names that switch off: ``--no-x``, and beside one the short names after the last plain long one."""
    if not any(name.startswith("--no-") for name in names):
        return []
    plain = [i for i, name in enumerate(names) if name.startswith("--") and not name.startswith("--no-")]
    return names[plain[-1] + 1 :] if plain else [name for name in names if name.startswith("--no-")]


def _list(
    seen: dict[str, dict[str, object]], removed: dict[str, str], ref: str, commit: str
) -> dict[str, object]:
    if not seen:
        raise ValueError("no option found: not the text of llama.cpp's arg.cpp or of `llama-server --help`")
    rows = [_compact(seen[key]) for key in sorted(seen)]
    return {"ref": ref, "commit": commit, "options": rows, "removed": dict(sorted(removed.items()))}


def _compact(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if value or key in ("key", "names", "kind")}


def _make(
    names: list[str], negated: list[str], env: list[str], kind: str, allowed: list[str]
) -> dict[str, object]:
    bare = [name.lstrip("-") for name in names]
    bare_negated = [name.lstrip("-") for name in negated]
    env_negated = [name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") for name in env] if negated else []
    return {
        "key": bare[_LAST_NAME_IS_THE_KEY],
        "names": list(dict.fromkeys([*bare, *bare_negated, *env, *env_negated])),
        "negated": [*bare_negated, *env_negated],
        "kind": kind,
        "allowed": allowed,
    }


def _row(call: str, chain: str, cache_types: list[str]) -> dict[str, object] | None:
    examples = re.search(r"set_examples\(\s*\{(.*?)\}", chain, re.S)
    preset_only = "set_preset_only" in chain
    if examples and not any(name in examples.group(1) for name in _EXAMPLES_OF_THE_SERVER):
        return None
    excludes = re.search(r"set_excludes\(\s*\{(.*?)\}", chain, re.S)
    if excludes and "LLAMA_EXAMPLE_SERVER" in excludes.group(1):
        return None
    parts = _split(call)
    names = _STRING.findall(parts[0])
    if not names or len(parts) < 3:
        return None
    handler = parts[-1]
    negated = _STRING.findall(parts[1]) if parts[1].lstrip().startswith("{") else []
    hint_match = _STRING.fullmatch(parts[1].strip()) if len(parts) == 4 and not negated else None
    hint = hint_match.group(1) if hint_match else ""
    kind = "two" if len(parts) == 5 else _kind(handler, negated)
    allowed = _listed(hint) or _compared(handler)
    if "kv_cache_type_from_str" in handler:
        allowed = cache_types
    env = [re.sub(r'^"|"$', "", _env_name(name)) for name in re.findall(r"set_env\((.*?)\)", chain)]
    row = _make(names, negated, env, kind, [] if kind in ("int", "float", "bool", "flag") else allowed)
    row["sampling"] = "set_sampling" in chain
    row["preset_only"] = preset_only
    return row


def _env_name(text: str) -> str:
    """The text of ``set_env``; the preset-only options use a macro whose value ends as the macro does."""
    macro = re.fullmatch(r"COMMON_ARG(_PRESET_\w+)", text.strip())
    return f"_{macro.group(1)}" if macro else text.strip()


def _kind(handler: str, negated: list[str]) -> str:
    if negated:
        return "bool"
    arguments = handler[handler.find("(") + 1 : handler.find(")")]
    if "int" in arguments.replace("common_params", "").split("&", 1)[-1].split():
        return "int"
    if "std::string" not in arguments:
        return "flag"
    if re.search(r"= std::sto[fd]\(value\);", handler) and "value ==" not in handler:
        return "float"
    return "string"


def _listed(hint: str) -> list[str]:
    """The values that a hint such as ``[on|off|auto]`` or ``{none,linear}`` lists."""
    body = re.fullmatch(r"[\[{<]?([\w-]+(?:(?:\||, ?)[\w-]+)+)[\]}>]?", hint)
    if not body or ("|" not in hint and not hint.startswith("{")):
        return []
    values = re.split(r"\||, ?", body.group(1))
    if {"on", "off"} <= set(values):  # the handlers of these take the other words for true and false too
        values += [word for word in ("true", "false", "enabled", "disabled", "1", "0") if word not in values]
    return values


def _compared(handler: str) -> list[str]:
    """The values that a handler compares with, where it throws at any other."""
    if not re.search(r"else\s*\{\s*throw std::invalid_argument", handler):
        return []
    if re.search(r"is_truthy|is_falsey|sto[ifu]|!=|starts_with|find\(", handler):
        return []
    return re.findall(r'value == "([^"]+)"', handler)


def _cache_types(source: str) -> list[str]:
    body = re.search(r"kv_cache_types = \{(.*?)\};", source, re.S)
    return [name.lower() for name in re.findall(r"GGML_TYPE_(\w+)", body.group(1))] if body else []


def _calls(source: str) -> Iterator[tuple[str, str]]:
    """Each ``common_arg(…)`` of the option list: its arguments, and the calls chained to it."""
    text = re.sub(r"(?m)^\s*//.*$", "", source)
    for start in re.finditer(r"(?:add_opt|args\.push_back)\(common_arg\(", text):
        end = _closing(text, start.end() - 1)
        chain_end = _closing(text, text.rfind("(", 0, text.rfind("common_arg", 0, start.end())))
        yield text[start.end() : end], text[end + 1 : chain_end]


def _closing(text: str, opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``; strings and raw strings are skipped."""
    depth = 0
    for index, char in _code(text, opening):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return index
    raise ValueError("a bracket is not closed: the text is cut off")


def _split(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in _code(arguments, 0):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(arguments[start:index])
            start = index + 1
    return [*parts, arguments[start:]]


def _code(text: str, start: int) -> Iterator[tuple[int, str]]:
    """The characters of ``text`` from ``start`` on that are not in a string, a character or a comment."""
    skip = re.compile(
        r'R"\((?:.|\n)*?\)"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*(?:.|\n)*?\*/'
    )
    index = start
    while index < len(text):
        skipped = skip.match(text, index)
        if skipped:
            index = skipped.end()
            continue
        yield index, text[index]
        index += 1


def _help_blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """(names and hint, help text, section) of each option in the help."""
    head, rest, section = "", [""], ""
    for line in [*text.splitlines(), "-----"]:
        if line.startswith("-"):
            if head:
                yield head, " ".join(part for part in rest if part), section
            head, rest = "", [""]
            if line.startswith("-----"):
                section = line.strip("- ")
                continue
            wide = line[_HELP_TEXT_COLUMN - 1 : _HELP_TEXT_COLUMN] in ("", " ")
            head = line[:_HELP_TEXT_COLUMN].rstrip() if wide else line.rstrip()
            rest = [line[_HELP_TEXT_COLUMN:].strip() if wide else ""]
        elif head:
            rest.append(line.strip())
