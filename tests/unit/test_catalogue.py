"""The catalogue file: what it gives, and every fault with its line, the reason and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10.catalogue import load_catalogue, slots_of
from gb10.faults import BadInput
from gb10.model import Clients, Conversion, FileRef, shard_files
from gb10.rendering import shown
from tests.unit.catalogues import DEFAULTS, OPTIONS, catalogue_text, faults_of, load, only_fault

TOP = Path(__file__).parents[2]


def test_a_model_has_the_defaults_it_does_not_set(tmp_path: Path) -> None:
    (model,) = load(tmp_path, catalogue_text("ctx-size: 8192")).models
    assert (model.ctx_size, model.parallel, model.kv_unified) == (8192, 1, True)
    assert (model.cache_type, model.cache_ram_mib, model.enabled) == ("f16", 64, True)
    assert model.own == {"repo", "file", "ctx-size"}


def test_everything_a_model_can_say(tmp_path: Path) -> None:
    text = catalogue_text(
        "aliases: [b, c]\nrevision: main\nprojector: mmproj-a.gguf\nchat-template: chatml\ntags: [chat, x]\n"
        "draft: {repo: lab/d, file: d-00001-of-00002.gguf, revision: v1}\nsampling: {temp: 0.7, top-k: 40}\n"
        "clients: {count: 2, tokens: 3000}\nctx-size: 6144\nparallel: 2\ncache-type: q8_0\ncache-ram: 0\n"
        "load-on-startup: true\noptions: {threads: 4, flash-attn: on}\nn-gpu-layers: 12\nload-mode: dio"
    )
    (model,) = load(tmp_path, text).models
    assert model.aliases == ("b", "c")
    assert model.projector == FileRef("lab/a", "main", "mmproj-a.gguf")
    assert model.draft == FileRef("lab/d", "v1", "d-00001-of-00002.gguf")
    assert model.clients == Clients(2, 3000)
    assert dict(model.sampling) == {"temperature": "0.7", "top-k": "40"}
    assert dict(model.options) == {
        "n-gpu-layers": "12",
        "load-mode": "dio",
        "threads": "4",
        "flash-attn": "true",
    }
    assert [part.file for part in model.files] == [
        "a.gguf",
        "mmproj-a.gguf",
        "d-00001-of-00002.gguf",
        "d-00002-of-00002.gguf",
    ]


def test_all_shards_follow_from_the_first() -> None:
    assert shard_files("x/y-00001-of-00003.gguf") == tuple(f"x/y-0000{n}-of-00003.gguf" for n in (1, 2, 3))
    assert shard_files("y.gguf") == ("y.gguf",)


def test_a_chat_template_may_be_a_file(tmp_path: Path) -> None:
    (model,) = load(tmp_path, catalogue_text("chat-template: chat_template.jinja")).models
    assert model.chat_template is None
    assert model.chat_template_file == FileRef("lab/a", None, "chat_template.jinja")


def test_the_cap_of_each_slot_sizes_the_pool(tmp_path: Path) -> None:
    (model,) = load(tmp_path, catalogue_text("parallel: 8\nkv-unified-per-slot: 8192")).models
    assert model.ctx_size == 65536
    assert slots_of(model).longest == 8192


def test_a_model_can_be_off_with_its_reason(tmp_path: Path) -> None:
    text = (
        DEFAULTS
        + "models:\n  a: {repo: lab/a, file: a.gguf}\n  b: {enabled: false, reason: no repository yet}\n"
    )
    catalogue = load(tmp_path, text)
    assert [model.name for model in catalogue.enabled] == ["a"]
    assert [(model.name, model.reason) for model in catalogue.off] == [("b", "no repository yet")]


def test_a_conversion_has_a_source_and_no_repository(tmp_path: Path) -> None:
    text = DEFAULTS + "models:\n  a: {source: {repo: nv/a, outtype: q8_0}, file: a.gguf}\n"
    (model,) = load(tmp_path, text).models
    assert model.conversion == Conversion("nv/a", None, "q8_0")
    assert model.files == (FileRef("own/a", None, "a.gguf"),)


def test_a_fault_names_the_file_and_not_only_its_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TOP / "tests" / "lab" / "models.yaml"
    assert shown(path) == "tests/lab/models.yaml"
    assert load_catalogue(path, OPTIONS).models[0].where.startswith("tests/lab/models.yaml:")
    outside = tmp_path / "models.yaml"
    assert shown(outside) == str(outside)
    monkeypatch.chdir(tmp_path)
    assert shown(outside) == "models.yaml"
    assert shown(TOP / "models.yaml") == "models.yaml"


def test_all_faults_come_at_once_with_their_lines(tmp_path: Path) -> None:
    text = (
        DEFAULTS
        + "models:\n  a:\n    repo: x\n    fill: a.gguf\n  b:\n    parallel: none\n    enabled: maybe\n"
    )
    faults = faults_of(tmp_path, text)
    assert any(fault.startswith("models.yaml:11 models.a.repo: `x` is not a repository") for fault in faults)
    assert any(f.startswith("models.yaml:12 models.a.fill: no such key") and "`file`?" in f for f in faults)
    assert any(
        fault.startswith("models.yaml:14 models.b.parallel: `none` is not a whole number") for fault in faults
    )
    assert any(fault.startswith("models.yaml:15 models.b.enabled: `maybe` is neither") for fault in faults)
    assert all("\n" not in fault for fault in faults)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("models: {}", "no model is named"),
        ("[1]", "the file is not a mapping"),
        ("", "the file is not a mapping"),
        ("defaults: [", "not YAML"),
        ("defaults: &a {x: *a}", "not YAML"),
        ("defaults: {[1]: 2}", "a key must be a text"),
        ("model: {}", "did you mean `models`?"),
    ],
)
def test_a_file_that_is_no_catalogue(tmp_path: Path, text: str, part: str) -> None:
    assert any(part in fault for fault in faults_of(tmp_path, text))


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load_catalogue(tmp_path / "none.yaml", OPTIONS)


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_bytes(b"models:\n  # caf\xe9\n")
    with pytest.raises(BadInput, match=r"models\.yaml:2: is not UTF-8: save the file as UTF-8"):
        load_catalogue(path, OPTIONS)


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("file: b.gguf", "models.a.file: repeated"),
        ("no-mmap: true", "has no option `no-mmap` any more: use load-mode = none"),
        ("mlock: true", "use load-mode = mlock"),
        ("draft-max: 4", "use --spec-draft-n-max"),
        ("threads: 4", "a preset option stands under `options`: move `threads` there"),
        ("c: 4096", "use `ctx-size`"),
        ("alias: x", "use `aliases`"),
        ("device: CUDA0", "it comes from the group data"),
        ("ctx_size: 4096", "did you mean `ctx-size`?"),
        ("ctx-size: 0", "`0` is not a whole number from 1 on"),
        ("ctx-size: true", "`True` is not a whole number"),
        ("kv-unified: 1", "`1` is neither true nor false"),
        ("cache-type: iq4_nl", "is not one of f16, bf16, q8_0, q4_0"),
        ("n-gpu-layers: 0", "would run on the CPU"),
        ("n-gpu-layers: auto", "would run on the CPU"),
        ("load-mode: no", "takes one of auto, none, mmap"),
        ("cache-type: q8_0\noptions: {flash-attn: off}", "a q8_0 cache needs flash attention"),
        ("cache-type: q8_0\noptions: {flash-attn: auto}", None),
        ("cache-type: f16\noptions: {flash-attn: off}", None),
        ("reason: because", "a reason stands beside a model that is on"),
        ("aliases: [a]", "`a` already names a"),
        ("aliases: ['x y']", "the alias `x y` may hold letters"),
        ("aliases: ['x,y']", "holds a comma"),
        ("tags: ['x;y']", "holds `;`"),
        ("projector: mmproj.bin", "is not a path to a .gguf file"),
        ("draft: {repo: lab/d}", "no `file`"),
        ("draft: {repo: lab/d, file: ../d.gguf}", "is not a path"),
        ("source: {repo: nv/a, outtype: q8_0}", "`repo` and `source` together"),
        ("clients: {count: 2}", "needs `count` and `tokens`"),
        ("clients: 3", "is not a mapping"),
        ("chat-template: 'a # b'", "holds `#`"),
        ("sampling: {temp: hot}", "`hot`: the option takes a number"),
        ("sampling: {threads: 4}", "not a sampling option"),
        ("kv-unified-per-slot: 2048\nkv-unified: false", "only a unified cache has a limit"),
        ("kv-unified-per-slot: 2048\nparallel: 4", None),
        ("kv-unified-per-slot: 2048\nparallel: 4\nctx-size: 4096", "it can still overflow"),
    ],
)
def test_rules_of_an_entry(tmp_path: Path, entry: str, part: str | None) -> None:
    if part is None:
        load(tmp_path, catalogue_text(entry))
    else:
        assert part in only_fault(tmp_path, catalogue_text(entry))


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("api-key: x", "drops it without a word"),
        ("LLAMA_API_KEY: x", "drops it without a word"),
        ("ssl-key-file: x", "drops it without a word"),
        ("models-max: 2", "belongs to the router"),
        ("models-autoload: true", "belongs to the router"),
        ("host: 0.0.0.0", "overwrites it for every child"),
        ("port: 80", "overwrites it for every child"),
        ("log-colors: on", "overwrites it for every child"),
        ("alias: x", "use `aliases`"),
        ("device: none", "it comes from the group data"),
        ("fit: on", "it is always off"),
        ("ngl: 3", "write `n-gpu-layers` one level up"),
        ("cache-type-k: f16", "use `cache-type`"),
        ("hf-repo: x/y", "pinned and downloaded before"),
        ("hf-token: secret", "a secret has no place in a preset"),
        ("gpt-oss-20b-default: true", "may download one"),
        ("list-devices: true", "no model is served"),
        ("mmap: true", "use load-mode = mmap"),
        ("foo-bar: 1", "has no option `foo-bar`"),
        ("--threads: 1", "a preset key has no leading dashes"),
        ("thread: 1", "did you mean `threads`?"),
        ("threads: many", "takes a whole number"),
        ("temp: 1", "move it to `sampling`"),
        ("numa: yes", "takes one of distribute, isolate, numactl"),
        ("control-vector-layer-range: 1", "takes two values"),
        ("chat-template-kwargs: ''", "the value is empty"),
        ("chat-template-kwargs: '\"x\"'", "begins or ends with a quote"),
        ("chat-template-kwargs: {enable_thinking: false}", None),
        ("t: 4", None),
    ],
)
def test_rules_of_further_options(tmp_path: Path, option: str, part: str | None) -> None:
    text = catalogue_text(f"options:\n  {option}")
    if part is None:
        load(tmp_path, text)
    else:
        assert part in only_fault(tmp_path, text)


def test_the_same_option_twice_under_two_names(tmp_path: Path) -> None:
    assert "the same option as another key" in only_fault(
        tmp_path, catalogue_text("options: {t: 1, threads: 2}")
    )


def test_a_negated_name_is_turned_round(tmp_path: Path) -> None:
    (model,) = load(tmp_path, catalogue_text("options: {no-warmup: true, jinja: off}")).models
    assert dict(model.options) == {"warmup": "false", "jinja": "false"}


@pytest.mark.parametrize(
    "key", ["ctx-size", "parallel", "kv-unified", "cache-type", "cache-ram", "load-mode"]
)
def test_the_defaults_must_be_said(tmp_path: Path, key: str) -> None:
    lines = [line for line in catalogue_text().splitlines() if not line.startswith(f"  {key}:")]
    assert f"`{key}` is missing" in only_fault(tmp_path, "\n".join(lines))


@pytest.mark.parametrize("name", ["default", '"*"', '"a:q4"', '"x]y"', '"a b"', "-a"])
def test_names_that_the_router_would_take_otherwise(tmp_path: Path, name: str) -> None:
    text = DEFAULTS + f"models:\n  {name}: {{repo: lab/a, file: a.gguf}}\n"
    assert "the name" in only_fault(tmp_path, text)


def test_a_section_named_twice(tmp_path: Path) -> None:
    text = catalogue_text() + "  a: {repo: lab/a, file: a.gguf}\n"
    assert "models.a: repeated: the last one would replace the first" in only_fault(tmp_path, text)


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("mmproj-a.gguf", "a projector by its name"),
        ("mtp-a.gguf", "a draft model by its name"),
        ("dspark-a.gguf", "a draft model by its name"),
        ("a-00002-of-00003.gguf", "is not the first shard"),
        ("../a.gguf", "is not a path"),
        ("/a.gguf", "is not a path"),
        ("a.bin", "is not a path to a .gguf file"),
    ],
)
def test_the_file_of_a_model(tmp_path: Path, file: str, part: str) -> None:
    text = DEFAULTS + f"models:\n  a: {{repo: lab/a, file: {file}}}\n"
    assert part in only_fault(tmp_path, text)


def test_a_model_of_unknown_origin_is_not_served(tmp_path: Path) -> None:
    assert "no `repo`" in only_fault(tmp_path, DEFAULTS + "models:\n  a: {repo: null, file: a.gguf}\n")


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("parallel: 8\nctx-size: 212992\nclients: {count: 8, tokens: 26000}", None),
        (
            "parallel: 8\nctx-size: 32768\nclients: {count: 8, tokens: 6000}",
            "need 48000 cells, the pool has 32768",
        ),
        ("parallel: 4\nctx-size: 65536\nclients: {count: 8, tokens: 6000}", "8 clients and 4 slot(s)"),
        ("parallel: 8\nkv-unified: false\nctx-size: 65536\nclients: {count: 8, tokens: 8192}", None),
        (
            "parallel: 8\nkv-unified: false\nctx-size: 32768\nclients: {count: 2, tokens: 6000}",
            "a split slot takes 4096: set `ctx-size: 49152`",
        ),
        ("parallel: 8\nkv-unified-per-slot: 8192\nclients: {count: 8, tokens: 8192}", None),
        (
            "parallel: 8\nkv-unified-per-slot: 8192\nclients: {count: 8, tokens: 9000}",
            "a slot takes 8192: set `kv-unified-per-slot: 9216`",
        ),
    ],
)
def test_the_clients_must_fit(tmp_path: Path, entry: str, part: str | None) -> None:
    if part is None:
        load(tmp_path, catalogue_text(entry))
    else:
        assert part in only_fault(tmp_path, catalogue_text(entry))


def test_the_catalogue_of_the_box() -> None:
    catalogue = load_catalogue(TOP / "models.yaml", OPTIONS)
    assert len(catalogue.models) == 10
    assert {model.name for model in catalogue.off} == {
        "gemma-4-26B-A4B-NVFP4",
        "gemma-4-12B",
        "Qwen3.6-35B-A3B-NVFP4",
    }
    coder = catalogue.model("qwen3-coder-next")
    assert coder is not None
    assert (coder.parallel, coder.kv_unified, coder.clients) == (8, True, Clients(8, 26000))


def test_the_catalogue_of_the_lab() -> None:
    catalogue = load_catalogue(TOP / "tests" / "lab" / "models.yaml", OPTIONS)
    assert [model.name for model in catalogue.on_startup] == ["tiny-a"]


def test_the_entry_on_the_page_is_a_good_one(tmp_path: Path) -> None:
    page = (TOP / "docs" / "models.md").read_text()
    entry = page.split("```yaml\n", 1)[1].split("```", 1)[0]
    (model,) = load(tmp_path, f"{DEFAULTS}models:\n{entry}").models
    assert model.clients == Clients(2, 30000)
