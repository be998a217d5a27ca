"""Models that are made at home: what a deploy, `gb10 pin`, the plan and the downloader do with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from gb10.catalogue import Catalogue, load_catalogue
from gb10.conversion import box_faults, not_made, notes
from gb10.faults import BadInput
from gb10.fetch_manifest import fetch_manifest, model_files, unresolved
from gb10.hub import HubClient
from gb10.lock import Lock, LockedFile, Recipe, load_lock, render_lock, write_lock
from gb10.pinning import drop_strangers, models_moved, needs_pin, pin_models
from gb10.plan import Budget, make_plan
from gb10.plan_sources import sources_of
from gb10.preset_options import load_preset_options
from tests.unit.catalogues import DEFAULTS

COMMIT, SHA = "a" * 40, "b" * 64
RECIPE = Recipe("nv/a-NVFP4", "c" * 40, "q8_0")
MADE = LockedFile("own/a", COMMIT, "a.gguf", 5, SHA, {"architecture": "llama"}, RECIPE)
LOCK = Lock().with_files([MADE])
ENTRY = "models:\n  a: {source: {repo: nv/a-NVFP4}}\n"
NO_HUB = HubClient("http://127.0.0.1:9", timeout_s=1)


def load(folder: Path, text: str = ENTRY) -> Catalogue:
    path = folder / "models.yaml"
    path.write_text(DEFAULTS + text)
    return load_catalogue(path, load_preset_options())


def manifest_of(catalogue: Catalogue, lock: Lock = LOCK) -> dict[str, object]:
    return fetch_manifest(
        catalogue, lock, models_dir="/srv/models", hub="http://hub", token_file=None, parallel=2,
        reserve_bytes=0, search=[],
    )  # fmt: skip


def test_the_entry_needs_a_repository_and_no_more(tmp_path: Path) -> None:
    (model,) = load(tmp_path).models
    assert model.conversion is not None
    assert (model.conversion.outtype, model.file) == ("q8_0", "a.gguf")
    assert model_files(model, PurePosixPath("/srv/models")) == [PurePosixPath("/srv/models/own/a/a.gguf")]


@pytest.mark.parametrize(
    ("source", "words"),
    [("{outtype: q8_0}", "a source needs `repo`"), ("{repo: a/b, outtype: q4_0}", "q4_0")],
)
def test_entries_that_are_refused(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        load(tmp_path, f"models:\n  a: {{source: {source}}}\n")


def test_the_lock_keeps_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "models.lock"
    write_lock(path, LOCK)
    assert load_lock(path) == LOCK
    assert '"recipe"' not in render_lock(Lock().with_files([replace(MADE, recipe=None)]))
    path.write_text(path.read_text().replace(RECIPE.converter, "main"))
    with pytest.raises(BadInput, match=r"files\[0\]\.recipe\.converter"):
        load_lock(path)


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (Lock(), "made at home, and not made yet"),
        (Lock().with_files([replace(MADE, recipe=None)]), "not made yet"),
        (Lock().with_files([replace(MADE, recipe=replace(RECIPE, repo="nv/b"))]), "made from nv/b, not from"),
        (
            Lock().with_files([replace(MADE, recipe=replace(RECIPE, outtype="f16"))]),
            "made as f16, not as q8_0",
        ),
    ],
)
def test_what_is_not_made_yet_is_refused_with_the_command(tmp_path: Path, lock: Lock, words: str) -> None:
    catalogue = load(tmp_path)
    assert words in not_made(catalogue.models[0], lock)
    (fault,) = unresolved(catalogue, lock)
    assert words in fault.what
    assert fault.do == "`gb10 convert a`, and commit the lock"


def test_another_revision_is_to_be_made_anew(tmp_path: Path) -> None:
    catalogue = load(tmp_path, f"models:\n  a: {{source: {{repo: nv/a-NVFP4, revision: {'d' * 40}}}}}\n")
    (fault,) = unresolved(catalogue, LOCK)
    assert "at revision aaaaaaaaaaaa, not dddddddddddd" in fault.what
    assert "gb10 convert a" in fault.do
    assert unresolved(load(tmp_path), LOCK) == []


def test_the_downloader_proves_it_and_never_fetches_it(tmp_path: Path) -> None:
    (entry,) = manifest_of(load(tmp_path))["files"]  # type: ignore[misc]
    assert entry == {
        "repo": "own/a", "revision": COMMIT, "file": "a.gguf", "size": 5, "sha256": SHA,
        "path": "/srv/models/own/a/a.gguf", "made": "gb10 convert a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("ok", ""),
        ("unverified", ""),
        ("missing", "is not there, and no hub has it: run `gb10 convert a`"),
        ("wrong", "another file than the one that was made: `gb10 models rm a`, then `gb10 convert a`"),
    ],
)
def test_what_a_box_has_of_it(tmp_path: Path, state: str, words: str) -> None:
    catalogue = load(tmp_path)
    files = [{"path": "/srv/models/own/a/a.gguf", "state": state}, {"path": "/else", "state": "missing"}]
    faults = box_faults("spark", catalogue, manifest_of(catalogue), files)
    assert [str(fault) for fault in faults] == (
        [f"spark: {catalogue.models[0].where}: /srv/models/own/a/a.gguf {words}"] if state == "missing"
        else [f"spark: {catalogue.models[0].where}: /srv/models/own/a/a.gguf is {words}"] if words else []
    )  # fmt: skip


def test_pin_asks_no_hub_for_it_and_keeps_its_recipe(tmp_path: Path) -> None:
    catalogue = load(tmp_path)
    for anew in (False, True):
        lock, (outcome,) = pin_models(Lock(), catalogue.models, NO_HUB, anew=anew)
        assert (lock, outcome.state) == (Lock(), "left")
        assert "gb10 convert a" in outcome.text
    assert [outcome.state for outcome in models_moved(LOCK, catalogue.models, NO_HUB)] == ["same"]
    stranger = replace(MADE, repo="own/b", file="b.gguf")
    assert drop_strangers(LOCK.with_files([stranger]), catalogue).files == LOCK.with_files([stranger]).files


def test_a_projector_comes_from_the_hub_all_the_same(tmp_path: Path) -> None:
    catalogue = load(
        tmp_path,
        "models:\n  a: {source: {repo: nv/a-NVFP4}, projector: {repo: lab/p, file: mmproj-p.gguf}}\n",
    )
    (model,) = catalogue.models
    assert [file.file for file in model.hub_files] == ["mmproj-p.gguf"]
    assert needs_pin(model, LOCK)
    (fault,) = unresolved(catalogue, LOCK)
    assert "mmproj-p.gguf is not in the lock" in fault.what
    assert "gb10 pin a" in fault.do
    _, (outcome,) = pin_models(LOCK, [model], NO_HUB, anew=False)
    assert (outcome.state, "lab/p" in outcome.text) == ("failed", True)
    projector = LockedFile("lab/p", COMMIT, "mmproj-p.gguf", 5, SHA)
    assert not needs_pin(model, LOCK.with_files([projector]))
    assert [fault.do for fault in unresolved(catalogue, Lock())] == [
        "`gb10 convert a`, and commit the lock",
        "`gb10 pin a`, and commit the lock",
    ]


def test_the_plan_says_why_q8_0(tmp_path: Path) -> None:
    catalogue = load(
        tmp_path, ENTRY + "  b: {source: {repo: nv/b, outtype: auto}, enabled: false, reason: later}\n"
    )
    made = make_plan(catalogue, sources_of(catalogue, Lock()), Budget(1, 0, 0, 1))
    assert list(made.notes) == notes(catalogue)
    assert "17 GB with 37 tok/s, as q8_0 one of 15.4 GB with 59 tok/s" in made.notes[0]
    assert made.notes[1].startswith("Made by `gb10 convert` as auto: b. On a box the tensors left in 16 bits")
    assert made.unknown[0].remedy == "run `gb10 convert a`"
