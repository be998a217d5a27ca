"""The preset file, read back as llama.cpp reads it (its grammar is written down here a second time)."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

from gb10.catalogue import load_catalogue
from gb10.faults import BadInput
from gb10.preset_options import load_preset_options
from gb10.preset_rules import refuse_cache_type, refuse_name, refuse_startup, refuse_text
from gb10.presets import effective_keys, model_path, render_presets, section_faults, startup_faults
from tests.unit.catalogues import DEFAULTS, catalogue_text, load

TOP = Path(__file__).parents[2]
MODELS = PurePosixPath("/srv/models")


def read_as_llama_cpp(text: str) -> dict[str, dict[str, str]]:
    """The grammar of `parse_ini_from_file` in common/preset.cpp."""
    sections: dict[str, dict[str, str]] = {}
    current = "default"
    for line in text.splitlines():
        if re.fullmatch(r"[ \t]*([;#].*)?", line):
            continue
        header = re.fullmatch(r"\[[ \t]*([^\]]+?)[ \t]*\][ \t]*([;#].*)?", line)
        pair = re.match(r"([a-zA-Z_][a-zA-Z0-9_.-]*)[ \t]*=[ \t]*(.*)$", line)
        if header:
            current = header[1]
            sections[current] = {}
        elif pair:
            sections.setdefault(current, {})[pair[1]] = re.split(r"[ \t]*[;#]", pair[2])[0].rstrip(" \t")
        else:
            raise AssertionError(f"syntax error: {line!r}")
    return sections


def render(folder: Path, text: str) -> dict[str, dict[str, str]]:
    return read_as_llama_cpp(render_presets(load(folder, text), device="CUDA0", models_dir=MODELS))


def test_the_file_says_that_it_is_generated(tmp_path: Path) -> None:
    text = render_presets(load(tmp_path, catalogue_text()), device="CUDA0", models_dir=MODELS)
    assert text.splitlines()[0].startswith("; Generated from models.yaml. Do not edit")
    assert text == render_presets(load(tmp_path, catalogue_text()), device="CUDA0", models_dir=MODELS)


def test_what_every_model_shares(tmp_path: Path) -> None:
    shared = render(tmp_path, catalogue_text())["*"]
    assert shared["device"] == "CUDA0"
    assert shared["fit"] == "off"
    assert shared["n-gpu-layers"] == "all"
    assert shared["load-mode"] == "none"
    assert shared["ctx-size"] == "4096"
    assert shared["cache-type-k"] == shared["cache-type-v"] == "f16"


def test_a_section(tmp_path: Path) -> None:
    text = catalogue_text(
        "aliases: [b, c]\ntags: [x]\nprojector: mmproj.gguf\ndraft: {repo: lab/d, file: d.gguf}\n"
        "chat-template: t.jinja\nparallel: 8\nctx-size: 16384\nsampling: {temp: 0.5}\nload-on-startup: true\n"
        "cache-type: q8_0\ncache-ram: 0\noptions: {threads: 2}"
    )
    assert render(tmp_path, text)["a"] == {
        "model": "/srv/models/lab/a/a.gguf",
        "mmproj": "/srv/models/lab/a/mmproj.gguf",
        "model-draft": "/srv/models/lab/d/d.gguf",
        "alias": "b,c",
        "tags": "x",
        "chat-template-file": "/srv/models/lab/a/t.jinja",
        "ctx-size": "16384",
        "parallel": "8",
        "kv-unified": "true",
        "cache-type-k": "q8_0",
        "cache-type-v": "q8_0",
        "cache-ram": "0",
        "threads": "2",
        "temperature": "0.5",
        "load-on-startup": "true",
    }


def test_parallel_never_stands_alone(tmp_path: Path) -> None:
    sections = render(tmp_path, catalogue_text("parallel: 4"))
    for keys in sections.values():
        assert ("parallel" in keys) == ("kv-unified" in keys)


def test_a_model_that_is_off_is_not_in_the_file(tmp_path: Path) -> None:
    text = catalogue_text() + "  b: {enabled: false, reason: none yet}\n"
    assert set(render(tmp_path, text)) == {"*", "a"}


def test_every_key_of_both_catalogues_is_an_option_and_every_value_allowed() -> None:
    options = load_preset_options()
    for path in (TOP / "models.yaml", TOP / "tests" / "lab" / "models.yaml"):
        sections = read_as_llama_cpp(
            render_presets(load_catalogue(path, options), device="CUDA0", models_dir=MODELS)
        )
        assert "default" not in sections
        for keys in sections.values():
            for key, value in keys.items():
                option = options.find(key)
                assert option, key
                assert option.refuse(value) is None, (key, value)


def test_paths() -> None:
    catalogue = load_catalogue(TOP / "models.yaml", load_preset_options())
    coder = catalogue.model("qwen3-coder-next")
    assert coder is not None
    name = "Qwen3-Coder-Next-UD-Q4_K_XL.gguf"
    assert model_path(MODELS, coder) == MODELS / "unsloth" / "Qwen3-Coder-Next-GGUF" / name
    off = catalogue.model("gemma-4-12B")
    assert off is not None
    with pytest.raises(ValueError, match="has no file"):
        model_path(MODELS, off)


def test_a_conversion_lies_in_a_folder_of_its_own(tmp_path: Path) -> None:
    text = DEFAULTS + "models:\n  a: {source: {repo: nv/a, outtype: q8_0}, file: a.gguf}\n"
    assert render(tmp_path, text)["a"]["model"] == "/srv/models/own/a/a.gguf"


def test_more_shared_keys(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text())
    text = render_presets(catalogue, device="RPC0", models_dir=MODELS, extra={"metrics": "true"})
    assert read_as_llama_cpp(text)["*"]["metrics"] == "true"
    with pytest.raises(BadInput, match="holds `;`"):
        render_presets(catalogue, device="RPC0;x", models_dir=MODELS)


def test_what_a_child_gets(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("load-mode: dio"))
    keys = effective_keys(catalogue, catalogue.models[0], device="CUDA0", models_dir=MODELS)
    assert (keys["load-mode"], keys["device"], keys["fit"]) == ("dio", "CUDA0", "off")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("/srv/models/a.gguf", None),
        ('{"enable_thinking": false}', None),
        ("a#b", "holds `#`"),
        ("a ; b", "holds `;`"),
        ("a\nb", "a line break"),
        (" a", "a blank"),
        ("a ", "a blank"),
        ('"a"', "a quote"),
        ("'a'", "a quote"),
        ("", "is empty"),
        ("a\x00b", "does not print"),
    ],
)
def test_values_that_the_file_can_hold(value: str, why: str | None) -> None:
    refused = refuse_text(value)
    assert refused is None if why is None else why in (refused or "")
    if why is None:
        assert read_as_llama_cpp(f"[a]\nkey = {value}\n")["a"]["key"] == value


@pytest.mark.parametrize(
    ("name", "good"),
    [("a", True), ("Qwen3.6-35B", True), ("default", False), ("*", False), ("a:b", False), ("", False)],
)
def test_names(name: str, good: bool) -> None:
    assert (refuse_name(name) is None) == good


@pytest.mark.parametrize(
    ("kind", "good"),
    [("f16", True), ("bf16", True), ("q8_0", True), ("q4_0", True), ("iq4_nl", False), ("f32", False)],
)
def test_cache_types(kind: str, good: bool) -> None:
    assert (refuse_cache_type(kind) is None) == good


@pytest.mark.parametrize(
    ("startup", "most", "good"), [(0, 0, True), (1, 1, True), (1, 0, False), (2, 1, False)]
)
def test_models_on_startup(startup: int, most: int, good: bool) -> None:
    assert (refuse_startup(startup, most) is None) == good


def test_models_on_startup_of_a_catalogue(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("load-on-startup: true"))
    assert startup_faults(catalogue, 1) == []
    (fault,) = startup_faults(catalogue, 0)
    assert "the router exits with 1" in str(fault)


GOOD = {"device": "CUDA0", "n-gpu-layers": "all", "ctx-size": "1", "fit": "off", "load-mode": "none"}


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"*": GOOD, "a": {"model": "/a"}}, None),
        ({"*": GOOD, "a": {}}, "a second router"),
        ({"*": GOOD, "default": {"model": "/a"}}, "the name is the section"),
        ({"*": GOOD, "a": {"model": "/a", "parallel": "4"}}, "splits the context"),
        ({"*": GOOD, "a": {"model": "/a", "parallel": "4", "kv-unified": "true"}}, None),
        ({"*": GOOD, "a": {"model": "/a", "alias": "b"}, "b": {"model": "/b"}}, "`b` already names b"),
        (
            {"*": GOOD, "a": {"model": "/a", "alias": "x"}, "b": {"model": "/b", "alias": "x"}},
            "`x` already names a",
        ),
        ({"*": {**GOOD, "model": "/a#1"}, "a": {"model": "/a"}}, "holds `#`"),
        *(({"*": {k: v for k, v in GOOD.items() if k != key}}, f"`{key}` is not set") for key in GOOD),
    ],
)
def test_rules_of_the_whole_file(sections: dict[str, dict[str, str]], part: str | None) -> None:
    faults = [str(fault) for fault in section_faults(sections)]
    assert faults == [] if part is None else any(part in fault for fault in faults)
