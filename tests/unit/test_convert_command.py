"""What the arguments of `gb10 convert` mean, by catalogue and lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyinfra.api.exceptions import PyinfraError

from gb10.catalogue import load_catalogue
from gb10.commands import convert as command
from gb10.commands.convert import Wish, wish_of
from gb10.desired import Desired
from gb10.faults import BadInput
from gb10.hub import HubError
from gb10.lock import Lock, LockedFile, Recipe
from gb10.preset_options import load_preset_options
from tests.unit.boxes import box
from tests.unit.catalogues import DEFAULTS

COMMIT, LOCKED = "a" * 40, "b" * 40
CATALOGUE = f"""models:
  a: {{source: {{repo: nv/a-NVFP4}}}}
  b: {{source: {{repo: nv/b-NVFP4, revision: {COMMIT}, outtype: f16}}, file: x.gguf}}
  c: {{repo: lab/c, file: c.gguf}}
"""
MADE = LockedFile("own/a", LOCKED, "a.gguf", 5, "c" * 64, None, Recipe("nv/a-NVFP4", "d" * 40, "q8_0"))


@pytest.fixture
def desk(tmp_path: Path) -> Desired:
    path = tmp_path / "models.yaml"
    path.write_text(DEFAULTS + CATALOGUE)
    return replace(box(), catalogue=load_catalogue(path, load_preset_options()), lock=Lock())


def short(wish: Wish) -> tuple[str, str, str, str, str]:
    return (wish.name, wish.file, wish.repo, wish.revision, wish.outtype)


@pytest.mark.parametrize(
    ("what", "options", "meant"),
    [
        ("a", {}, ("a", "a.gguf", "nv/a-NVFP4", "main", "q8_0")),
        ("nv/a-NVFP4", {}, ("a", "a.gguf", "nv/a-NVFP4", "main", "q8_0")),
        ("b", {}, ("b", "x.gguf", "nv/b-NVFP4", COMMIT, "f16")),
        ("nv/b-NVFP4@v2", {"outtype": "q8_0"}, ("b", "x.gguf", "nv/b-NVFP4", "v2", "q8_0")),
        ("nv/b-NVFP4", {"name": "mine"}, ("mine", "mine.gguf", "nv/b-NVFP4", "main", "q8_0")),
        ("lab/new", {}, ("new", "new.gguf", "lab/new", "main", "q8_0")),
    ],
)
def test_what_is_meant(desk: Desired, what: str, options: dict[str, str], meant: tuple[str, ...]) -> None:
    assert short(wish_of(desk, what, options.get("outtype"), options.get("name"))) == meant


def test_the_lock_says_which_revision_is_made_again(desk: Desired) -> None:
    locked = replace(desk, lock=Lock().with_files([MADE]))
    for what in ("a", "nv/a-NVFP4"):
        wish = wish_of(locked, what, None, None)
        assert (wish.revision, wish.locked) == (LOCKED, MADE)
    assert wish_of(locked, "a@main", None, None).revision == "main"
    # That of another source says nothing of this one.
    other = replace(MADE, recipe=Recipe("nv/else", "d" * 40, "q8_0"))
    assert wish_of(replace(desk, lock=Lock().with_files([other])), "a", None, None).revision == "main"


@pytest.mark.parametrize("what", ["other/a", "other/b@v1", "other/c"])
def test_the_name_of_another_repository_s_model_is_not_taken_over(desk: Desired, what: str) -> None:
    with pytest.raises(BadInput, match=r"its name is taken by .*models\.yaml:\d+ models\.[abc]"):
        wish_of(desk, what, None, None)
    assert wish_of(desk, what, None, "mine").name == "mine"
    name = what[6:7]
    assert wish_of(desk, what, None, name).name == name, "it was asked for"


def test_nor_that_of_one_that_only_the_lock_has(desk: Desired) -> None:
    entry = replace(MADE, repo="own/new", file="new.gguf", recipe=Recipe("lab/new", "d" * 40, "q8_0"))
    locked = replace(desk, lock=Lock().with_files([entry]))
    with pytest.raises(BadInput, match="is taken by own/new of the lock, made from lab/new"):
        wish_of(locked, "other/new", None, None)
    assert wish_of(locked, "lab/new", None, None).revision == LOCKED
    assert wish_of(locked, "other/new", None, "new").name == "new"


@pytest.mark.parametrize(
    ("what", "name", "words"),
    [
        ("c", None, "is no model that is made at home"),
        ("aa", None, "no such model, and no OWNER/NAME of a hub"),
        ("lab/new", "with space", "the name may hold letters"),
    ],
)
def test_what_means_nothing(desk: Desired, what: str, name: str | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        wish_of(desk, what, None, name)


def test_a_repository_that_is_not_there_is_said_while_the_box_is_away(
    desk: Desired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[str] = []

    def connected(*_: object) -> None:
        met.append("box")
        raise PyinfraError("away")

    def read_source(*_: object) -> None:
        met.append("hub")
        raise HubError("nv/new: no such repository")

    path = tmp_path / "inventory.py"
    path.write_text("gb10 = ['spark']\n")
    monkeypatch.setattr(command, "connected", connected)
    monkeypatch.setattr(command, "read_source", read_source)
    monkeypatch.setattr(command, "desired", lambda _: desk)
    done = CliRunner().invoke(command.convert, ["nv/new", "--inventory", str(path)])
    assert (met, str(done.exception)) == (["hub"], "nv/new: no such repository")
    # What the lock has needs no hub, to begin with.
    met.clear()
    monkeypatch.setattr(command, "desired", lambda _: replace(desk, lock=Lock().with_files([MADE])))
    done = CliRunner().invoke(command.convert, ["a", "--inventory", str(path)])
    assert (met, str(done.exception)) == (["box"], "away")
