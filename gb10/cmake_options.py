"""Whether a ``-D`` flag of the image's build is one that the pinned llama.cpp declares.

ggml swallows a misspelt ``GGML_`` flag without a word, so a story about a flag can live for years. The list
that flags are checked against was made from the source of the pinned version, by `gb10.cmake_source`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gb10.faults import BadInput, Fault

CMAKE_OPTIONS_FILE = Path(__file__).with_name("cmake_options.json")
"""The build options of the llama.cpp that this repository pins."""

CMAKE_VARIABLES_FILE = Path(__file__).with_name("cmake_variables.txt")
"""CMake's own variables, as ``cmake --help-variable-list`` names them."""

_SWITCHES = frozenset({"ON", "OFF", "TRUE", "FALSE", "YES", "NO", "1", "0"})
_ON = frozenset({"ON", "TRUE", "YES", "1"})
_LANGUAGES = ("C", "CXX", "CUDA", "ASM")
_CONFIGS = ("DEBUG", "RELEASE", "RELWITHDEBINFO", "MINSIZEREL")

# Names that many build notes have and no llama.cpp: what they are set for, and what does it.
_MEANT = (
    (
        re.compile(r"GGML_(CUDA_)?.*(FP4|BLACKWELL).*"),
        "the FP4 kernels are compiled for architecture 12Xa: CMAKE_CUDA_ARCHITECTURES = 121 gives 121a",
    ),
    (re.compile(r"(LLAMA|GGML)_CURL"), "for https in the server there is LLAMA_OPENSSL"),
    (re.compile(r"(GGML|LLAMA)_CUDA_(ARCH|ARCHITECTURES?|ARCHS)"), "use CMAKE_CUDA_ARCHITECTURES"),
    (re.compile(r"GGML_(FLASH_ATTN|FA|CUDA_FLASH_ATTN)"), "use GGML_CUDA_FA (it is on by default)"),
    (re.compile(r"GGML_CUDA_F16|LLAMA_CUDA_F16"), "it has gone: half precision is chosen at run time"),
    (re.compile(r"GGML_CUDA_UNIFIED_MEMORY"), "GGML_CUDA_ENABLE_UNIFIED_MEMORY is an environment variable"),
)  # fmt: skip


@dataclass(frozen=True)
class CMakeOption:
    """One declared option: ``kind`` is bool, string, path or filepath; ``about`` its own help text."""

    name: str
    kind: str
    about: str
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class CMakeOptions:
    """All build options of one llama.cpp. ``removed`` maps an old name to the new one, or to nothing."""

    ref: str
    commit: str
    options: tuple[CMakeOption, ...]
    removed: Mapping[str, str]
    variables: frozenset[str]

    @cached_property
    def by_name(self) -> dict[str, CMakeOption]:
        return {option.name: option for option in self.options}

    def faults(self, flags: Mapping[str, str], where: Mapping[str, str]) -> Iterator[Fault]:
        """What is wrong with ``flags`` (name to value); ``where`` says for each name where it stands."""
        for name, value in flags.items():
            option = self.by_name.get(name)
            if option is not None:
                what = _refused(option, value)
                if what:
                    yield Fault(where[name], f"{value!r} is not a value of {name}", what)
            elif name not in self.variables:
                gone = " any more" if name in self.removed else ""
                yield Fault(
                    where[name], f"llama.cpp {self.ref} has no option {name}{gone}", self._instead(name)
                )

    def _instead(self, name: str) -> str:
        for pattern, what in _MEANT:
            if pattern.fullmatch(name):
                near = self._nearest(name)
                return f"{what}; the nearest option is {near}" if near else what
        if self.removed.get(name):
            return f"use {self.removed[name]}"
        near = self._nearest(name)
        return f"did you mean {near}?" if near else "remove it: it would change nothing"

    def _nearest(self, name: str) -> str:
        known = [*self.by_name, *self.variables]
        return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")


def load_cmake_options(path: Path = CMAKE_OPTIONS_FILE) -> CMakeOptions:
    """Read the option list. Raises `BadInput` when the file is not what ``gb10 pin`` writes."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return CMakeOptions(
            ref=str(data["ref"]),
            commit=str(data["commit"]),
            options=tuple(
                CMakeOption(row["name"], row["kind"], row["about"], tuple(row.get("allowed", ())))
                for row in data["options"]
            ),
            removed=dict(data["removed"]),
            variables=_cmake_variables(),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = Fault(str(path), f"not a list of build options ({error})", "run `gb10 pin` to write it again")
        raise BadInput([fault]) from error


def _cmake_variables() -> frozenset[str]:
    names: set[str] = set()
    for line in CMAKE_VARIABLES_FILE.read_text(encoding="ascii").split():
        for language in _LANGUAGES if "<LANG>" in line else ("",):
            for config in _CONFIGS if "<CONFIG>" in line else ("",):
                names.add(line.replace("<LANG>", language).replace("<CONFIG>", config))
    return frozenset(names)


def _refused(option: CMakeOption, value: str) -> str:
    if option.kind == "bool" and value.upper() not in _SWITCHES:
        return "write ON or OFF"
    if option.allowed and value not in option.allowed:
        return f"it takes one of {', '.join(option.allowed)}"
    return ""


def is_on(value: str) -> bool:
    """Whether CMake takes ``value`` for true."""
    return value.upper() in _ON


def built_architectures(value: str) -> str:
    """What becomes of a CMAKE_CUDA_ARCHITECTURES: llama.cpp turns each plain ``12X`` into ``12Xa``.

    The rule stands in its ggml/src/ggml-cuda/CMakeLists.txt.
    """
    parts = (re.sub(r"^(12[0-9])((?:-real|-virtual)?)$", r"\1a\2", part) for part in value.split(";"))
    return ";".join(parts)
