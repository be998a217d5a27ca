"""What every part of a preset file is read with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gb10.adopt_ini import Ini
from gb10.adopt_paths import Places
from gb10.adopt_report import Kind, Note
from gb10.adopt_settings import Layers
from gb10.model import Conversion
from gb10.preset_options import PresetOptions


@dataclass(frozen=True)
class Reading:
    """What all sections are read with. ``conversions`` are the sources of models that were made at home."""

    ini: Ini
    layers: Layers
    places: Places
    conversions: Mapping[str, Conversion]
    options: PresetOptions
    notes: list[Note]

    def note(self, kind: Kind, line: int, what: str, why: str) -> None:
        """Add a line about the preset file to the report."""
        self.notes.append(Note(kind, f"{self.ini.file}:{line}", what, why))
