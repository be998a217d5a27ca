"""Images and what they have proven, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gb10.cmake_options import built_architectures
from gb10.desired import Desired
from gb10.option_source import options_from_help
from gb10.preset_options import load_preset_options, preset_options_from


def states(image: Mapping[str, Any], box: Desired, known: Mapping[str, Any]) -> list[str]:
    """What an image is to the box: running, wanted, current or previous lane, failed."""
    answered = {entry["image"]: entry["number"] for entry in known["generations"]}
    found = []
    if box.data.lane_name in image["used_by"]:
        found.append("running")
    if image["image"] == box.image:
        found.append("wanted")
    if image["image"].endswith(":failed"):
        found.append("failed")
    elif unproven(image, box):
        found.append("not proven")
    elif image["image"] not in answered:
        found.append("never answered")
    return found


def unproven(image: Mapping[str, Any], box: Desired) -> str:
    """Why an image counts as not proven; empty when its proof is of itself, and of what is expected now."""
    proof = image["proof"]
    if proof is None:
        return "not proven"
    if proof.get("id") != image["id"]:
        return "not proven: the proof is of another image that had this name"
    if proof.get("expectation") != box.image_expectation:
        return "not proven: the proof is of what was expected before the data changed"
    return ""


def image_table(images: Sequence[Mapping[str, Any]], box: Desired, known: Mapping[str, Any]) -> Table:
    """One row an image, newest first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("image", "MB", "made", "build", "state"):
        right = heading in ("MB", "build")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading == "image")
    for image in images:
        proof = {} if unproven(image, box) else image["proof"]
        seconds = proof.get("seconds")
        cells = (
            image["image"],
            f"{image['size'] / 1e6:.0f}",
            str(image["created"])[:19].replace("T", " "),
            f"{seconds // 60}:{seconds % 60:02d}" if seconds is not None else "",
            ", ".join(states(image, box, known)),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def proof_lines(proof: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an image has proven of itself: (name, text) in the order to show."""
    build, compiled = proof["build"], proof["build"]["compile"]
    files = compiled["ccache_hits"] + compiled["ccache_misses"]
    bases = build["bases"] | proof.get("bases", {})
    return [
        ("source", f"{build['repository']} {build['ref']} = {build['commit']}"),
        *(("base", f"{name}: {base}") for name, base in bases.items()),
        *(("flag", f"{name} = {_flag(name, value)}") for name, value in build["flags"].items()),
        *(("tool", f"{name} {version}") for name, version in build["tools"].items()),
        ("compile", f"{compiled['seconds']} s, {compiled['ccache_hits']} of {files} files from ccache"),
        *(("program", f"{name}: {text}") for name, text in build["programs"].items()),
        *(("proof", f"{name}: {' '.join(text.split())}") for name, text in build.get("proofs", {}).items()),
        ("proof", f"starts as user {proof['user']}, {options_line(proof['options'])}"),
        ("proof", f"with the accelerator it lists {', '.join(proof['devices'])}, without it none"),
        ("proof", f"system info: {proof['system_info']}"),
        ("version", " ".join(proof["version"].split())),
    ]


def _flag(name: str, value: str) -> str:
    if name == "CMAKE_CUDA_ARCHITECTURES" and built_architectures(value) != value:
        return f"{value}, built as {built_architectures(value)}"
    return value


def options_line(help_text: str) -> str:
    """Whether the server's own options are those that the presets are checked against."""
    checked = {option.key for option in load_preset_options().options}
    try:
        own = preset_options_from(options_from_help(help_text, ref="", commit=""))
    except ValueError:
        return "it lists no options"
    listed = {option.key for option in own.options}
    if listed == checked:
        return f"its {len(listed)} options are those that presets are checked against"
    other = ", ".join(sorted(listed ^ checked))
    return f"its options are not those that presets are checked against: {other}"
