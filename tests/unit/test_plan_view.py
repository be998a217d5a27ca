"""The plan in a terminal: whole words and whole figures, in a narrow one too."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from gb10.gguf import Header
from gb10.memory import MIB
from gb10.plan import Budget, Found, Plan, Source, make_plan, mib
from gb10.plan_view import NOT_COUNTED, plan_text
from tests.unit.catalogues import DEFAULTS, load

NAME = "org/Some-Coder-30B-A3B-Instruct-GGUF:Q4_K_XL"
SHAPE = {
    "llama.block_count": 48,
    "llama.embedding_length": 5120,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.context_length": 262144,
}


def plan(folder: Path, found: list[Found] | None) -> Plan:
    header = Header("llama", SHAPE, {"tokenizer.ggml.tokens": 150_000}, (), 0)
    entry = "{repo: lab/x, file: x.gguf, ctx-size: 212992, parallel: 8, clients: {count: 8, tokens: 26000}}"
    catalogue = load(folder, f"{DEFAULTS}models:\n  gemma-4-26B-A4B-NVFP4: {entry}\n")
    sources = {("lab/x", "x.gguf"): Source(header, 61_234 * MIB)}
    return make_plan(catalogue, sources, Budget(122_070, 16_384, 700, 2), found)


def found(projector: int = 0) -> Found:
    header = Header("llama", SHAPE, {"tokenizer.ggml.tokens": 150_000}, (), 0)
    return Found(NAME, Source(header, 17_345 * MIB), projector, "/hub/x.gguf")


def shown(made: Plan, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(plan_text(made, []))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_nothing_is_cut_off(tmp_path: Path, width: int) -> None:
    made = plan(tmp_path, [found(900 * MIB)])
    text = shown(made, width)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for preset in made.known:
        assert preset.child
        assert re.search(rf"\b{mib(preset.total)}\b", text)
        assert re.search(rf"\b{preset.child.kv_bytes_per_token}\b", text)
    for word in ("weights", "prompt", "other", "total", "26000", "8 unified *"):
        assert word in text


def test_a_part_that_nobody_has_gets_no_column(tmp_path: Path) -> None:
    text = shown(plan(tmp_path, [found()]), 200)
    for word in ("head other", "state", "projector", "draft"):
        assert word not in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_bars_use_the_width_and_show_the_budget(tmp_path: Path, width: int) -> None:
    (bar,) = [line for line in shown(plan(tmp_path, [found()]), width).splitlines() if line.startswith("WWW")]
    assert bar.endswith(" MiB")
    assert width - 3 <= len(bar) <= width
    assert bar.count("|") == 1


def test_it_says_which_were_found_or_that_nobody_looked(tmp_path: Path) -> None:
    assert f"not in the catalogue: {NAME}" in shown(plan(tmp_path, [found()]), 200)
    assert NOT_COUNTED in shown(plan(tmp_path, None), 200)
    assert NOT_COUNTED not in shown(plan(tmp_path, []), 200)
