"""Small catalogues for the tests: a valid one to start from, and a way to load a text as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10.catalogue import load_catalogue
from gb10.faults import BadInput
from gb10.model import Catalogue
from gb10.preset_options import load_preset_options

OPTIONS = load_preset_options()

DEFAULTS = """\
defaults:
  ctx-size: 4096
  parallel: 1
  kv-unified: true
  cache-type: f16
  cache-ram: 64
  n-gpu-layers: all
  load-mode: none
"""


def catalogue_text(entry: str = "", *, defaults: str = "") -> str:
    """A catalogue with one model `a`; `entry` adds lines to it and `defaults` to the defaults."""
    more = "".join(f"  {line}\n" for line in defaults.splitlines())
    lines = "".join(f"    {line}\n" for line in entry.splitlines())
    return f"{DEFAULTS}{more}models:\n  a:\n    repo: lab/a\n    file: a.gguf\n{lines}"


def load(folder: Path, text: str) -> Catalogue:
    """The text as a catalogue."""
    path = folder / "models.yaml"
    path.write_text(text)
    return load_catalogue(path, OPTIONS)


def faults_of(folder: Path, text: str) -> list[str]:
    """The faults of the text, a line each; it must have some."""
    with pytest.raises(BadInput) as caught:
        load(folder, text)
    return [str(fault).removeprefix(f"{folder}/") for fault in caught.value.faults]


def only_fault(folder: Path, text: str) -> str:
    """The one fault of the text."""
    (fault,) = faults_of(folder, text)
    return fault
