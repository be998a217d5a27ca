"""Makes the list of build options that a llama.cpp declares, from the text of its CMake files.

ggml reads any variable that begins with ``GGML_`` and CMake says nothing about one that nobody declared, so a
flag that is not in this list has no effect at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Only these: examples, tests and phones declare options that a server's build never reads.
CMAKE_FILE = re.compile(r"(?:(?:app|common|ggml|src|tools)/(?:.*/)?)?CMakeLists\.txt")

_OPTION = re.compile(r'^[ \t]*option\s*\(\s*(\w+)\s+"((?:[^"\\]|\\.)*)"', re.M)
_CACHED = re.compile(
    r"^[ \t]*set\s*\(\s*(\w+)\s[^()]*?\bCACHE\s+(BOOL|STRING|PATH|FILEPATH)\b(?:\s+\"((?:[^\"\\]|\\.)*)\")?",
    re.M,
)
_STRINGS = re.compile(r"set_property\s*\(\s*CACHE\s+(\w+)\s+PROPERTY\s+STRINGS\s+([^)]*)\)")
_RENAMED = re.compile(r"^[ \t]*llama_option_depr\s*\(\s*\w+\s+(\w+)[ \t]*(\w*)\s*\)", re.M)


def options_from_cmake(files: Mapping[str, str], *, ref: str, commit: str) -> dict[str, object]:
    """The option list of a tree's CMake files (path to text), as `gb10.cmake_options` reads it.

    Raises ValueError when they declare none.
    """
    found: dict[str, dict[str, object]] = {}
    gone: dict[str, str] = {}
    # The top file last: where two declare the same option, its words win.
    for text in (_without_comments(files[path]) for path in sorted(files, key=len, reverse=True)):
        for name, about in _OPTION.findall(text):
            found[name] = {"name": name, "kind": "bool", "about": about}
        for name, kind, about in _CACHED.findall(text):
            found[name] = {"name": name, "kind": kind.lower(), "about": about}
        for name, values in _STRINGS.findall(text):
            if name in found:
                found[name]["allowed"] = [part for part in re.split(r'[\s;"]+', values) if part]
        gone |= dict(_RENAMED.findall(text))
    if not found:
        raise ValueError("no option found: not the CMake files of llama.cpp")
    rows = [found[name] for name in sorted(found)]
    return {"ref": ref, "commit": commit, "options": rows, "removed": dict(sorted(gone.items()))}


def _without_comments(text: str) -> str:
    return re.sub(r"(?m)^\s*#.*$", "", text)
