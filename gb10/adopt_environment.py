"""Environment variables of an old router: which the lane keeps, and where the others went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gb10.adopt_report import HIDDEN, Kind, Note, is_secret_name, is_secret_value
from gb10.adopt_slots import REQUIRED
from gb10.preset_options import PresetOptions

# What the deploy sets itself or takes from the data.
_ROUTER = frozenset(
    {"host", "port", "models-dir", "models-max", "models-preset", "models-autoload", "api-key-file"}
    | {"offline", "metrics", "webui", "device"}
)
_CACHES = ("LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


def kept_environment(
    environment: Mapping[str, str], where: str, options: PresetOptions, notes: list[Note]
) -> dict[str, str]:
    """The variables for ``lane_environment``; a note for each one that is not among them."""
    kept: dict[str, str] = {}
    for name, value in environment.items():
        kind, why = _fate(name, value, options)
        if kind == "kept":
            kept[name] = value
            kind, why = "taken", "lane_environment"
        if kind != "known":
            shown = HIDDEN if is_secret_name(name) or is_secret_value(value) else value
            notes.append(Note(kind, where, f"{name}={shown}", why))
    return kept


def _fate(name: str, value: str, options: PresetOptions) -> tuple[Kind | Literal["kept", "known"], str]:
    """What becomes of one variable, and why. ``known``: the data have it by a key of its own."""
    option = options.find(name) if name.isupper() else None
    if is_secret_name(name) or is_secret_value(value):
        return "to do", "a secret: not taken; the API key has its file on the box, a token its own"
    if (option is not None and option.key in _ROUTER) or (name, value) == ("LLAMA_CACHE", "/nonexistent"):
        return "known", ""
    if option is not None and option.key in REQUIRED:
        return "taken", f"`defaults` of the catalogue: there [*] says {option.key}, and it wins"
    if option is not None and option.key == "fit":
        return "dropped", "`fit = off` stands in [*]"
    if name in options.removed or (option is None and name.startswith("LLAMA_ARG_")):
        return "dropped", ": ".join(options.why_unknown(name))
    if name in _CACHES:
        return "dropped", "the router looks for no model by itself: models_found_cache names the cache"
    if name.startswith("NVIDIA_"):
        return "dropped", "it is for NVIDIA's old hook; the lane names the device by CDI"
    if name in ("PATH", "HOME"):
        return "dropped", "the image has its own"
    if not value or value != value.strip() or "\n" in value:
        return "dropped", "the value is empty or no single line"
    return "kept", ""
