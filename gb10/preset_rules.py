"""What the router does with a preset file, as rules: each says why a key or a value is refused, or None.

The reader of the file is llama.cpp's ``common/preset.cpp``; what the router drops and overwrites is in
``tools/server/server-models.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gb10.preset_options import PresetOption

SAFE_CACHE_TYPES = ("f16", "bf16", "q8_0", "q4_0")
"""KV cache types that have CUDA kernels for every use; with others attention can run on the CPU."""

QUANTIZED_CACHE_TYPES = ("q8_0", "q4_0")
"""Those of them that need flash attention."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_DROPPED = "the router drops it without a word"
_OVERWRITTEN = "the router overwrites it for every child"
_CATALOGUE = "the catalogue has a key of its own for it"
_LEAVES = "the child prints something and leaves: no model is served"
_DOWNLOADS = "it names a model by itself and may download one"

REFUSED_KEYS: Mapping[str, tuple[str, str]] = {
    "api-key": (_DROPPED, "set the key file of the router in the group data"),
    "api-key-file": (_DROPPED, "set the key file of the router in the group data"),
    "ssl-key-file": (_DROPPED, "end TLS in front of the router"),
    "ssl-cert-file": (_DROPPED, "end TLS in front of the router"),
    "models-dir": (_DROPPED, "it belongs to the router: the group data"),
    "models-max": (_DROPPED, "it belongs to the router: the group data"),
    "models-preset": (_DROPPED, "it belongs to the router: the group data"),
    "models-autoload": (_DROPPED, "it belongs to the router: the group data"),
    "host": (_OVERWRITTEN, "remove it"),
    "port": (_OVERWRITTEN, "remove it"),
    "log-colors": (_OVERWRITTEN, "remove it"),
    "alias": (_CATALOGUE, "use `aliases`"),
    "model": (_CATALOGUE, "use `repo` and `file`"),
    "mmproj": (_CATALOGUE, "use `projector`"),
    "model-draft": (_CATALOGUE, "use `draft`"),
    "tags": (_CATALOGUE, "use `tags`"),
    "cache-type-k": (_CATALOGUE, "use `cache-type`, which sets K and V alike"),
    "cache-type-v": (_CATALOGUE, "use `cache-type`, which sets K and V alike"),
    "chat-template-file": (_CATALOGUE, "use `chat-template`"),
    "device": ("it comes from the group data, so that no preset can do without it", "remove it"),
    "fit": ("it is always off: on, it moves layers to the CPU or shrinks the context", "remove it"),
    "hf-token": ("a secret has no place in a preset", "use the token file of the downloads"),
    "model-url": ("the files of a model are pinned and downloaded before", "use `repo` and `file`"),
    "hf-repo": ("the files of a model are pinned and downloaded before", "use `repo` and `file`"),
    "hf-file": ("the files of a model are pinned and downloaded before", "use `repo` and `file`"),
    "docker-repo": ("the files of a model are pinned and downloaded before", "use `repo` and `file`"),
    "hf-repo-draft": ("the files of a model are pinned and downloaded before", "use `draft`"),
    "usage": (_LEAVES, "remove it"),
    "version": (_LEAVES, "remove it"),
    "list-devices": (_LEAVES, "remove it"),
    "completion-bash": (_LEAVES, "remove it"),
    "cache-list": (_LEAVES, "remove it"),
}
"""Options that llama.cpp has and a preset must not hold: the reason, and what to do."""


def refuse_key(option: PresetOption) -> tuple[str, str] | None:
    """Why this option cannot stand in a preset, and what to do; None where it can."""
    if option.key in REFUSED_KEYS:
        return REFUSED_KEYS[option.key]
    if re.fullmatch(r"(fim-|embd-|vision-|gpt-oss-).*(default|spec)", option.key):
        return _DOWNLOADS, "use `repo` and `file`"
    return None


def refuse_text(value: str) -> str | None:
    """Why a text cannot be a value of the preset file, or None.

    The reader ends a value at the first ``#`` or ``;``, cuts blanks off both ends, keeps quotes as part of
    the value, and knows no continued line.
    """
    if value == "":
        return "is empty"
    if "\n" in value or "\r" in value:
        return "holds a line break, and a value is one line"
    if any(not char.isprintable() for char in value):
        return "holds a character that does not print"
    for char in "#;":
        if char in value:
            return f"holds `{char}`, where llama.cpp cuts the value off"
    if value != value.strip():
        return "begins or ends with a blank, which llama.cpp cuts off"
    if value[0] in "\"'" or value[-1] in "\"'":
        return "begins or ends with a quote, which llama.cpp keeps as part of the value"
    return None


def refuse_name(name: str) -> str | None:
    """Why a text cannot name a model (a section) or an alias, or None.

    ``:`` is refused because the router turns what follows it into capitals, ``,`` because it splits aliases.
    """
    if name == "default":
        return "is the section that llama.cpp makes of keys before any section"
    if name == "*":
        return "is the section that all models share"
    if not _NAME.fullmatch(name):
        return "may hold letters, digits, `.`, `_` and `-`, and begins with a letter or a digit"
    return None


def refuse_cache_type(value: str) -> str | None:
    """Why a KV cache type is refused, or None. Attention without a CUDA kernel runs on the CPU, unseen."""
    if value in SAFE_CACHE_TYPES:
        return None
    return f"is not one of {', '.join(SAFE_CACHE_TYPES)}: for others attention can run on the CPU"


def refuse_gpu_layers(value: str) -> str | None:
    """Why a number of layers is refused, or None. ``auto`` and unset let ``fit`` move layers to the CPU."""
    if value == "all" or (value.isascii() and value.isdigit() and int(value) > 0):
        return None
    return (
        "is not `all` or a number of layers above 0: the model would run on the CPU in part or whole, unseen"
    )


def refuse_startup(load_on_startup: int, models_max: int) -> str | None:
    """Why the router would leave at its start, or None: it exits with 1 when more models are to be loaded on
    startup than ``models_max``, and 0 (no limit) counts as a limit there."""
    if load_on_startup <= models_max:
        return None
    return (
        f"{load_on_startup} model(s) with `load-on-startup` and models-max {models_max}:"
        " the router exits with 1"
    )
