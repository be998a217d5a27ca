"""Models on the box that are not in the catalogue: which are found, what is read of them, how they count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from files import gb10_gate
from gb10.catalogue import Catalogue
from gb10.desired import Desired
from gb10.facts.found import FoundModels, found_on
from gb10.facts.probe import PROBES
from gb10.facts.probes import found_models as probe
from gb10.faults import BadInput
from gb10.found import FoundModel, FoundOnBox, found_question, read_found
from gb10.gguf import read_file
from gb10.lock import Lock
from gb10.memory import MIB
from gb10.plan import Budget, Plan, make_plan
from gb10.plan_faults import plan_faults
from gb10.plan_sources import sources_of
from gb10.plan_view import NOT_COUNTED, plan_json
from gb10.preset_rules import refuse_text
from tests.unit import boxes
from tests.unit.catalogues import DEFAULTS, load
from tests.unit.gguf_files import gguf

COMMIT, OLD = "c" * 40, "0" * 40
META: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "small",
    "llama.block_count": 4,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": [2, 2, 2, 2],
    "llama.rope.freq_base": 10000.0,
    "llama.context_length": 4096,
}
TOKENS: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [f"token{number}" for number in range(300)],
    "tokenizer.ggml.scores": [0] * 300,
    "tokenizer.chat_template": "{{ x }}",
}
WEIGHTS = [("output.weight", (64, 300), 1)]
MODEL = gguf(META | TOKENS, WEIGHTS) + bytes(64 * 300 * 2)


def put(path: Path, data: bytes = MODEL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for folder in (path.parent, *path.parents):
        if folder.name.startswith("pytest-"):
            break
        folder.chmod(0o755)
    path.chmod(0o644)
    return path


def cached(
    hub: Path, repo: str, file: str, data: bytes = MODEL, commit: str = COMMIT, blob: str = ""
) -> Path:
    """A file as the Hugging Face tools keep it: a blob, and a relative link to it in a snapshot."""
    home = hub / f"models--{repo.replace('/', '--')}"
    name = blob or f"{len(list(home.glob('blobs/*'))):064x}"
    put(home / "blobs" / name, data)
    link = home / "snapshots" / commit / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(home / "blobs" / name, link.parent))
    put(home / "refs" / "main", COMMIT.encode())
    for folder in (hub, *hub.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o755)
    return link


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def look(
    hub: Path | str = "", folder: Path | str = "", known: list[dict[str, Any]] | None = None, *paths: Path
) -> dict[str, Any]:
    """What the probe answers, run as on a box: sent with the command, by a python3 of its own."""
    question = {
        "cache": str(hub),
        "folder": str(folder),
        "known": known or [],
        "paths": [str(path) for path in paths],
    }
    source = (PROBES / FoundModels.program).read_text()
    command = [sys.executable, "-I", "-c", source, json.dumps(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def names(answer: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in answer["models"]]


def whys(answer: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["why"] for entry in answer["passed"]}


# -- the header -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [META | TOKENS, TOKENS | META, META, META | {"llama.vocab_size": 77}, META | {"x.list": [1] * 9000}],
)
def test_the_probe_reads_a_header_as_the_full_reader_does(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = put(tmp_path / "m.gguf", gguf(metadata, WEIGHTS) + bytes(64 * 300 * 2))
    head = probe.read_header(str(path))
    whole = read_file(path).to_dict()
    assert head == {key: whole[key] for key in head}


def test_nothing_behind_the_token_list_is_read(tmp_path: Path) -> None:
    at = MODEL.index(b"token0")
    path = put(tmp_path / "m.gguf", MODEL[:at] + b"\xff" * 1000)
    assert probe.read_header(str(path))["vocabulary"] == 300


def test_a_header_that_is_cut_off_anywhere_has_a_reason(tmp_path: Path) -> None:
    data = gguf({"general.name": "x", **TOKENS, **META}, WEIGHTS)
    for length in range(0, len(data) - 60, 7):
        with pytest.raises(probe.Passed):
            probe.read_header(str(put(tmp_path / "m.gguf", data[:length])))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK" + MODEL[2:], "it is no GGUF file"),
        (gguf(META, version=9), "its version of the format is not known"),
        (gguf(META), "it holds no weights"),
        (gguf({"general.name": "x"}, [("a", (32,), 0)]), "it does not say its architecture"),
        (gguf(META | {"general.type": "adapter"}, [("a", (32,), 0)]), "no model of its own, but: adapter"),
        (gguf({"general.architecture": "clip"}, [("a", (32,), 0)]), "no model of its own, but: projector"),
        (MODEL[:16] + b"\xff" * 8 + MODEL[24:], "its header is damaged"),
    ],
)
def test_what_is_no_model_is_passed_with_a_reason(hub: Path, data: bytes, why: str) -> None:
    cached(hub, "org/good", "good-Q8_0.gguf")
    cached(hub, "org/bad", "bad-Q8_0.gguf", data)
    answer = look(hub)
    assert names(answer) == ["org/good:Q8_0"]
    assert why in whys(answer)["org/bad:Q8_0"]


# -- places ---------------------------------------------------------------------------------------------


def test_a_cache_as_the_router_would_name_it(hub: Path) -> None:
    cached(hub, "org/one-GGUF", "one-UD-Q4_K_XL.gguf")
    cached(hub, "org/one-GGUF", "one-old-Q8_0.gguf", commit=OLD)
    cached(hub, "org/one-GGUF", "README.md")
    for part in ("mmproj-F16.gguf", "mtp-one.gguf", "imatrix.gguf", "dflash-one.gguf"):
        cached(hub, "org/one-GGUF", part)
    for number in (1, 2):
        cached(hub, "org/two", f"Q8_0/two-Q8_0-0000{number}-of-00002.gguf")
    cached(hub, "org/three", "model.gguf")
    (hub / "datasets--org--data").mkdir()
    answer = look(hub)
    assert names(answer) == ["org/one-GGUF:Q4_K_XL", "org/three/model", "org/two:Q8_0"]
    one, _, two = answer["models"]
    assert one["projector"].endswith("/mmproj-F16.gguf")
    assert one["projector_bytes"] == len(MODEL)
    assert two["bytes"] == 2 * len(MODEL)
    assert two["header"]["shards"] == len(two["paths"]) == 2
    assert answer["passed"] == []


def test_without_a_branch_the_newest_snapshot_counts(hub: Path) -> None:
    cached(hub, "org/one", "one-Q8_0.gguf", commit=OLD)
    home = hub / "models--org--one"
    (home / "refs" / "main").unlink()
    assert names(look(hub)) == ["org/one:Q8_0"]
    put(home / "refs" / "main", b"nonsense")
    assert names(look(hub)) == ["org/one:Q8_0"]


def test_the_projector_is_the_nearest_with_the_closest_quantization() -> None:
    files = ["mmproj-Q8_0.gguf", "mmproj-F16.gguf", "a/mmproj-F32.gguf", "b/mmproj-F16.gguf"]
    assert probe.projector_of("m-Q8_0.gguf", files) == "mmproj-Q8_0.gguf"
    assert probe.projector_of("m-BF16.gguf", files) == "mmproj-F16.gguf"
    assert probe.projector_of("a/m-Q8_0.gguf", files) == "a/mmproj-F32.gguf"
    assert probe.projector_of("c/m-Q8_0.gguf", files) == "mmproj-Q8_0.gguf"
    assert probe.projector_of("m.gguf", []) == ""


def test_a_flat_folder(tmp_path: Path) -> None:
    folder = tmp_path / "flat"
    put(folder / "single.gguf")
    put(folder / "vision" / "model.gguf")
    put(folder / "vision" / "mmproj-F16.gguf")
    put(folder / "both" / "a.gguf")
    put(folder / "both" / "b.gguf")
    put(folder / "notes.txt")
    answer = look("", folder)
    assert sorted(names(answer)) == ["a", "b", "single", "vision"]
    vision = next(entry for entry in answer["models"] if entry["name"] == "vision")
    assert (vision["file"], vision["projector"]) == ("vision/model.gguf", "vision/mmproj-F16.gguf")


def test_places_that_are_not_there_hold_nothing(tmp_path: Path) -> None:
    assert look(tmp_path / "none", tmp_path / "none") == {"models": [], "passed": []}


def test_the_catalogues_own_files_are_not_found(hub: Path, tmp_path: Path) -> None:
    cached(hub, "lab/a", "a-Q8_0.gguf")
    cached(hub, "other/copy", "copy-Q8_0.gguf", blob="d" * 64)
    linked = cached(hub, "other/linked", "linked-Q8_0.gguf")
    put(tmp_path / "flat" / "a-Q8_0.gguf")
    cached(hub, "other/left", "left-Q8_0.gguf")
    own = tmp_path / "models" / "linked.gguf"
    own.parent.mkdir()
    own.hardlink_to(linked.resolve())
    known = [
        {"repo": "lab/a", "file": "a-Q8_0.gguf", "size": len(MODEL), "sha256": None},
        {"repo": "lab/b", "file": "b.gguf", "size": None, "sha256": "d" * 64},
    ]
    assert names(look(hub, tmp_path / "flat", known, own)) == ["other/left:Q8_0"]


def test_a_model_that_two_names_share_is_found_once(hub: Path) -> None:
    link = cached(hub, "org/one", "one-Q8_0.gguf")
    (link.parent / "again-Q4_0.gguf").symlink_to(link.readlink())
    assert len(names(look(hub))) == 1


def test_what_the_server_cannot_read_is_passed_with_the_remedy(hub: Path, tmp_path: Path) -> None:
    cached(hub, "org/closed", "closed-Q8_0.gguf").resolve().chmod(0o600)
    cached(hub, "org/shut", "shut-Q8_0.gguf")
    outside = put(tmp_path / "outside.gguf")
    for name, target in (("out", outside), ("gone", tmp_path / "gone.gguf")):
        link = cached(hub, f"org/{name}", f"{name}-Q8_0.gguf")
        link.unlink()
        link.symlink_to(target)
    cached(hub, "org/part", "part-Q8_0-00001-of-00002.gguf")
    (hub / "models--org--shut" / "blobs").chmod(0o700)
    answer = look(hub)
    assert answer["models"] == []
    reasons = whys(answer)
    assert "chmod o+r /" in reasons["org/closed:Q8_0"]
    assert f"chmod o+x {hub}/models--org--shut/blobs" in reasons["org/shut:Q8_0"]
    assert "outside of" in reasons["org/out:Q8_0"]
    assert reasons["org/gone:Q8_0"] == "gone-Q8_0.gguf is missing"
    assert reasons["org/part:Q8_0"] == "part-Q8_0-00002-of-00002.gguf is missing"


# -- from the answer to the preset file -------------------------------------------------------------------


def model(name: str, size: int = len(MODEL), **more: Any) -> dict[str, Any]:
    header = {"architecture": "llama", "metadata": META, "vocabulary": 300, "weight_bytes": size, "shards": 1}
    file = f"models--x/snapshots/c/{name.replace(':', '-').replace('/', '-')}.gguf"
    found = {
        "name": name,
        "other": f"{name}/other",
        "place": "cache",
        "file": file,
        "paths": [f"/hub/{file}"],
    }
    return {**found, "bytes": size, "projector": "", "projector_bytes": 0, "header": header, **more}


def three(folder: Path, extra: str = "") -> Catalogue:
    return load(folder, f"{DEFAULTS}models:\n  a: {{repo: lab/a, file: a.gguf, aliases: [alpha]{extra}}}\n")


def read(folder: Path, *entries: dict[str, Any]) -> FoundOnBox:
    return read_found({"models": list(entries), "passed": []}, three(folder))


def test_a_taken_name_gives_way_and_none_is_twice(tmp_path: Path) -> None:
    again = {"file": "models--x/z.gguf", "paths": ["/hub/z.gguf"], "other": "org/x/z"}
    found = read(tmp_path, model("org/x:Q8_0"), model("org/x:Q8_0", **again), model("alpha", other="alpha"))
    assert [one.name for one in found.models] == ["org/x:Q8_0", "org/x/z"]
    assert [one.why for one in found.passed] == ["the name alpha is taken in the catalogue"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (model("org/x:Q8_0", file="models--x/a;b.gguf"), "holds `;`"),
        (model("bad]name"), "rename it"),
        (model("two\nlines"), "rename it"),
        (model("default"), "rename it"),
        (model("org/x:Q8_0", header={"architecture": "llama"}), "not a header"),
        (
            model("org/x:Q8_0", header=model("a")["header"] | {"metadata": {}}),
            "does not say how many layers",
        ),
    ],
)
def test_what_the_preset_file_or_the_plan_cannot_take(
    tmp_path: Path, entry: dict[str, Any], why: str
) -> None:
    found = read(tmp_path, entry)
    assert found.models == ()
    assert why in found.passed[0].why


def box_with(*found: FoundModel, **data: Any) -> Desired:
    return replace(boxes.box(**data), found=found)


@pytest.fixture
def vision(tmp_path: Path) -> FoundModel:
    (one,) = read(tmp_path, model("org/v:Q8_0", projector="models--x/mmproj.gguf", projector_bytes=7)).models
    return one


def test_its_section_has_its_files_and_the_rest_comes_from_the_defaults(vision: FoundModel) -> None:
    text = box_with(vision).presets_file.content
    own = f"[org/v:Q8_0]\nmodel = {vision.path}\nmmproj = /found/cache/models--x/mmproj.gguf\n"
    assert text.endswith(own)
    assert text == boxes.box().presets_file.content + "\n" + own
    shared = text.partition("[*]")[2].partition("\n\n")[0]
    for line in ("device = CUDA0", "fit = off", "n-gpu-layers = all", "ctx-size = ", "load-mode = none"):
        assert line in shared
    assert refuse_text(vision.path) is None


def test_the_unit_does_not_depend_on_what_is_found(vision: FoundModel) -> None:
    bare, full = box_with(), box_with(vision)
    assert bare.unit_file == full.unit_file
    assert bare.lane_file == full.lane_file
    assert bare.presets_digest != full.presets_digest


def test_the_folders_are_mounted_read_only_and_made_by_the_gate() -> None:
    box = boxes.box(models_found_cache="/home/nick/hub", models_found_folder="/data/gguf")
    mounts = [option for option in box.docker_options if "/found/" in option]
    assert mounts == [
        "--mount type=bind,source=/home/nick/hub,target=/found/cache,readonly",
        "--mount type=bind,source=/data/gguf,target=/found/folder,readonly",
    ]
    assert json.loads(box.lane_file.content)["folders"] == ["/data/gguf", "/home/nick/hub"]
    off = boxes.box(models_found_cache="", models_found_folder="")
    assert "/found/" not in " ".join(off.docker_options)
    assert json.loads(off.lane_file.content)["folders"] == []


@pytest.mark.parametrize("path", ["/srv/models", "/srv/models/found", "/data/a,b", "relative", "/var"])
def test_a_folder_that_cannot_be(path: str) -> None:
    with pytest.raises(BadInput, match="models_found_folder"):
        boxes.box(models_found_folder=path)


def test_the_gate_makes_a_folder_as_its_neighbours_are(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 23456)
    gb10_gate.make_folder(str(tmp_path / "a" / "b"))
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert (folder.stat().st_uid, folder.stat().st_gid) == (
            tmp_path.stat().st_uid,
            tmp_path.stat().st_gid,
        )
    (tmp_path / "a" / "b" / "kept").write_text("")
    (tmp_path / "a").chmod(0o700)
    gb10_gate.make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / "kept").exists()


def test_the_question_names_the_catalogues_files_also_those_that_are_off(tmp_path: Path) -> None:
    catalogue = three(tmp_path, ", enabled: false, reason: too large")
    question = found_question(boxes.box().data, catalogue, Lock())
    assert question
    assert question["known"] == [{"repo": "lab/a", "file": "a.gguf", "size": None, "sha256": None}]
    assert question["paths"] == ["/srv/models/lab/a/a.gguf"]


def test_without_a_place_nobody_asks() -> None:
    host = boxes.FactHost({})
    box = boxes.box(models_found_cache="", models_found_folder="")
    assert found_on(host, box) == FoundOnBox()  # type: ignore[arg-type]
    assert host.asked == []


# -- the plan -------------------------------------------------------------------------------------------


def plan_of(folder: Path, *found: FoundModel, total: int = 10**6, models_max: int | None = 1) -> Plan:
    catalogue = three(folder)
    counted = [one.counted for one in found]
    return make_plan(catalogue, sources_of(catalogue, Lock()), Budget(total, 0, 10, models_max), counted)


def test_it_counts_with_its_projector_and_the_defaults(tmp_path: Path, vision: FoundModel) -> None:
    preset = next(one for one in plan_of(tmp_path, vision).presets if not one.in_catalogue)
    assert preset.child
    assert preset.child.bytes_of("weights") == len(MODEL)
    assert preset.child.bytes_of("projector") == 7
    assert preset.child.bytes_of("prompt cache") == 64 * MIB
    assert preset.child.bytes_of("KV cache") == 4 * 4096 * 2 * (8 + 8) * 2
    assert preset.slots.ctx_size == 4096


def heavy(folder: Path) -> FoundModel:
    (one,) = read(folder, model("org/heavy:Q8_0", 900 * MIB)).models
    return one


@pytest.mark.parametrize("models_max", [1, 2, None])
def test_a_set_that_does_not_fit_names_the_model_and_what_to_do(
    tmp_path: Path, models_max: int | None
) -> None:
    found = heavy(tmp_path)
    plan = plan_of(tmp_path, found, total=800, models_max=models_max)
    lines = [str(fault) for fault in plan_faults(plan, three(tmp_path)) if fault.where == "models-max"]
    assert len(lines) == 1
    assert "org/heavy:Q8_0" in lines[0]
    assert found.paths[0] in lines[0]
    assert "enabled: false" in lines[0]
    assert "models_found_cache" in lines[0]


def test_auto_leaves_room_for_what_is_found(tmp_path: Path) -> None:
    many = [replace(heavy(tmp_path), name=f"org/heavy-{number}:Q8_0") for number in range(4)]
    plan = plan_of(tmp_path, *many, total=2900, models_max=None)
    assert plan.models_max == 2


def test_a_plan_says_whether_it_has_looked(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    blind = make_plan(catalogue, {}, Budget(1000, 0, 10, 1))
    assert plan_json(blind, [])["found_counted"] is False
    assert plan_json(plan_of(tmp_path), [])["found_counted"] is True
    assert "--on-box" in NOT_COUNTED
