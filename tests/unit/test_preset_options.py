"""The option list: made from llama.cpp's source or help, and what it says of a key and a value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gb10.faults import BadInput
from gb10.option_source import options_from_help, options_from_source
from gb10.preset_options import PRESET_OPTIONS_FILE, PresetOptions, load_preset_options, preset_options_from

HERE = Path(__file__).parent
SOURCE = (HERE / "arg_excerpt.cpp.txt").read_text()
HELP = (HERE / "server_help_excerpt.txt").read_text()
COMMITTED = json.loads(PRESET_OPTIONS_FILE.read_text())
PINNED = load_preset_options()


def rows(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in data["options"]}


def from_source(text: str = SOURCE) -> PresetOptions:
    return preset_options_from(options_from_source(text, ref="b1", commit="c" * 40))


def test_the_committed_list_is_what_the_source_gives() -> None:
    made = rows(options_from_source(SOURCE, ref="b1", commit="c" * 40))
    committed = rows(COMMITTED)
    for key in ("ctx-size", "kv-unified", "temperature", "flash-attn", "metrics", "stop-timeout"):
        assert committed[key] == made[key], key
    assert (
        committed["control-vector-layer-range"]["kind"] == made["control-vector-layer-range"]["kind"] == "two"
    )
    assert set(made["load-mode"]["allowed"]) <= set(committed["load-mode"]["allowed"])


def test_options_of_the_excerpt() -> None:
    options = from_source()
    assert options.removed["draft-max"] == "--spec-draft-n-max"
    assert options.removed["LLAMA_ARG_DRAFT_MAX"] == "--spec-draft-n-max"
    for absent in ("diffusion-steps", "commented-out", "draft"):
        assert options.find(absent) is None
    kv_unified = options.find("LLAMA_ARG_NO_KV_UNIFIED")
    assert kv_unified is not None
    assert kv_unified.key == "kv-unified"
    assert "LLAMA_ARG_NO_KV_UNIFIED" in kv_unified.negated
    assert options.by_name["ctk"].allowed == ("f16", "q8_0")
    assert options.by_name["lm"].allowed == ("auto", "none")
    assert options.by_name["stop-timeout"].preset_only
    assert options.by_name["temp"].sampling


def test_the_help_says_the_same_where_it_says_it() -> None:
    source = rows(options_from_source(SOURCE, ref="b1", commit="c" * 40))
    text = rows(options_from_help(HELP, ref="b1", commit="c" * 40))
    for key in ("ctx-size", "kv-unified", "cache-type-k", "flash-attn", "metrics"):
        assert text[key] == source[key], key
    assert text["temperature"]["sampling"] is True
    assert {"load-on-startup", "stop-timeout", "dedup-cache-models"} <= set(text)
    made = preset_options_from(options_from_help(HELP, ref="b1", commit="c" * 40))
    assert made.removed["draft"] == "--spec-draft-n-max"


@pytest.mark.parametrize("text", ["", "int main() { return 0; }"])
def test_a_text_that_lists_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="no option found"):
        options_from_source(text, ref="b1", commit="c" * 40)
    with pytest.raises(ValueError, match="no option found"):
        options_from_help(text, ref="b1", commit="c" * 40)


def test_a_text_that_is_cut_off() -> None:
    with pytest.raises(ValueError, match="not closed"):
        options_from_source(SOURCE[:300], ref="b1", commit="c" * 40)


@pytest.mark.parametrize(
    ("name", "what", "do"),
    [
        ("no-mmap", "no option `no-mmap` any more", "use load-mode = none"),
        ("mmap", "any more", "use load-mode = mmap"),
        ("mlock", "any more", "use load-mode = mlock (or mmap+mlock)"),
        ("direct-io", "any more", "use load-mode = dio"),
        ("draft-n", "any more", "use --spec-draft-n-max or --spec-ngram-mod-n-max"),
        ("--ctx-size", "no leading dashes", "write `ctx-size`"),
        ("ctx-sise", "no option `ctx-sise`", "did you mean `ctx-size`?"),
        ("qqqqqq", "no option `qqqqqq`", "remove it"),
    ],
)
def test_a_name_that_is_no_option(name: str, what: str, do: str) -> None:
    assert PINNED.find(name) is None
    said_what, said_do = PINNED.why_unknown(name)
    assert what in said_what
    assert said_do == do


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("ctx-size", "4096", "4k"),
        ("temp", "0.7", "warm"),
        ("kv-unified", "true", "yes"),
        ("metrics", "1", "maybe"),
        ("load-mode", "mmap+mlock", "mmap, mlock"),
        ("flash-attn", "auto", "fast"),
        ("cache-type-k", "q8_0", "q9_0"),
        ("split-mode", "layer", "column"),
        ("pooling", "mean", "median"),
    ],
)
def test_values(key: str, good: str, bad: str) -> None:
    option = PINNED.by_name[key]
    assert option.refuse(good) is None
    assert option.refuse(bad)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"ref": "b", "commit": "c", "options": [{"key": "a"}], "removed": {}}']
)
def test_a_broken_list(tmp_path: Path, content: str) -> None:
    (tmp_path / "list.json").write_text(content)
    with pytest.raises(BadInput, match="gb10 pin"):
        load_preset_options(tmp_path / "list.json")
