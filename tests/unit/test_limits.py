"""A run that would reach no box, and the last word of one that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gb10.ending import last_word
from gb10.faults import BadInput
from gb10.limits import check
from gb10.rendering import TOP

PYINFRA = Path(sys.executable).with_name("pyinfra")


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.py"
    path.write_text("boxes = ['demo', 'attic']\n")
    return str(path)


def test_names_patterns_and_groups_that_there_are(inventory: str) -> None:
    check(inventory, ["demo", "dem*", "boxes"])
    check(inventory, [])


def test_every_limit_that_fits_nothing_is_named(inventory: str) -> None:
    with pytest.raises(BadInput) as refused:
        check(inventory, ["demo", "demoo", "zzz"])
    text = str(refused.value)
    assert "--limit demoo: no host of" in text
    assert "did you mean demo?" in text
    assert "--limit zzz" in text
    assert "it has: " in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inventory.py", "deploy.py", "--dry", "--limit", "gb10.loca"], "did you mean gb10.local?"),
        (["nosuch.py", "deploy.py", "--dry"], "no such inventory file"),
    ],
)
def test_pyinfra_itself_refuses(words: list[str], said: str) -> None:
    done = subprocess.run([PYINFRA, *words], cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_an_inventory_without_a_host(tmp_path: Path) -> None:
    (tmp_path / "inventory.py").write_text("gb10 = []\n")
    with pytest.raises(BadInput, match="it has no host"):
        check(str(tmp_path / "inventory.py"), [])


def test_the_last_word_says_where_to_look() -> None:
    assert "gb10 status --host a" in last_word(["a", "b"])
