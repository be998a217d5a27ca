"""Taking over a hand-made router: its preset file and its unit become a catalogue, data and a report.

Pure: texts in, texts out. ``gb10/commands/adopt.py`` reads files or a box and writes the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from gb10.adopt_container import config_data, container_data, found_folders, preset_path
from gb10.adopt_data import Found, Old, file_data, lane_data, preset_arguments
from gb10.adopt_docker import Container, container_of
from gb10.adopt_entry import catalogue_text
from gb10.adopt_ini import Ini, read_ini
from gb10.adopt_models import read_models
from gb10.adopt_paths import Places, known_files
from gb10.adopt_reading import Reading
from gb10.adopt_report import Note
from gb10.adopt_settings import Layers, argument_settings, environment_settings, section_settings
from gb10.adopt_slots import REQUIRED
from gb10.adopt_unit import Launch, read_launch
from gb10.boxdata_source import read_box_data
from gb10.catalogue import Catalogue, Conversion, load_catalogue
from gb10.faults import BadInput, Fault
from gb10.lock import Lock
from gb10.preset_options import PresetOptions
from gb10.presets import HEAD, startup_faults

CATALOGUE_FILE, DATA_FILE = "models.yaml", "host_data.py"

_DATA_HEAD = '''"""Data of one box, taken over from {source}.

Whatever is not in here comes from group_data/all.py and the group of the hardware. To use it, rename it to
group_data/GROUP.py and put the box into GROUP in inventory.py.
"""
'''


@dataclass(frozen=True)
class Base:
    """What this repository knows: its catalogue and lock (for repositories of files), its data of the box."""

    data: Mapping[str, object] = field(default_factory=dict)
    catalogue: Catalogue | None = None
    lock: Lock | None = None

    @property
    def models_dir(self) -> str:
        """The models folder as the data have it."""
        return str(self.data.get("models_dir", "/srv/models"))

    @property
    def conversions(self) -> dict[str, Conversion]:
        """Where home-made models of the catalogue come from, by their name."""
        models = self.catalogue.models if self.catalogue else ()
        return {model.name: model.conversion for model in models if model.conversion}


@dataclass(frozen=True)
class Adoption:
    """The result: ``catalogue`` is the text of models.yaml, ``values`` the data, ``data`` their text."""

    catalogue: str
    data: str
    values: Mapping[str, object]
    notes: tuple[Note, ...]


def read_old(text: str, file: str, options: PresetOptions, notes: list[Note]) -> Old:
    """The old router from a unit or a script. Raises BadInput when it starts none."""
    launch = read_launch(text, file)
    return old_router(launch, container_of(launch.argv, launch.environment), options, notes)


def old_router(launch: Launch, container: Container, options: PresetOptions, notes: list[Note]) -> Old:
    """The old router from its container. Options that the pinned llama.cpp has not become notes."""
    where = f"{launch.file}:{launch.line}"
    arguments = argument_settings(container.arguments, where, options, notes)
    return Old(launch, container, arguments, environment_settings(container.environment, where, options))


def adopt(
    ini_text: str,
    ini_file: str,
    old: Old | None,
    base: Base,
    options: PresetOptions,
    *,
    ini_path: str | None = None,
    notes: Sequence[Note] = (),
) -> Adoption:
    """Everything in one go. ``ini_path`` is the preset file's path on the box, where it is known.

    Raises BadInput with every line of the preset file that llama.cpp cannot read.
    """
    ini = _without_own_head(read_ini(ini_text, ini_file))
    report = list(notes)
    found = Found(report)
    if old:
        found = lane_data(old, options, report)
    shared = ini.section("*")
    layers = Layers(
        command=preset_arguments(old.arguments) if old else {},
        shared=section_settings(shared, ini.file, options, report) if shared else {},
        environment=_base_layer(old),
    )
    places = _places(old, base)
    models = read_models(Reading(ini, layers, places, base.conversions, options, report))
    device = (old.setting("device") if old else None) or models.device
    file_data(found, models.places, ini_file, device)
    if old:
        inside = preset_path(old)
        found_folders(old, found, places, str(found.values.get("models_dir", base.models_dir)))
        config_data(old, found, ini_path or (places.on_host(inside) if inside else None))
        container_data(old, found)
    if device is None:
        why = "accelerator_device: without it, a model that cannot see the GPU is served from the CPU"
        found.note("changed", ini_file, "no device is named", why)
    source = " and ".join(
        PurePosixPath(file).name for file in (ini_file, old.launch.file if old else "") if file
    )
    text = catalogue_text(models.defaults, models.entries, source=source, head=ini.head, foot=ini.foot)
    return Adoption(text, data_text(found, source), found.values, tuple(dict.fromkeys(report)))


def _base_layer(old: Old | None) -> dict[str, Any]:
    # Other variables stay variables: the lane's environment reaches every model as the old one did.
    kept = (*REQUIRED, "fit")
    return {key: setting for key, setting in old.variables.items() if key in kept} if old else {}


def _places(old: Old | None, base: Base) -> Places:
    container = old.container if old else None
    mounts = container.mounts if container else ()
    folder = old.setting("models-dir") if old else None
    places = Places(mounts)
    roots = [base.models_dir, *(outside for _, outside in mounts)]
    roots += [places.on_host(folder.value)] if folder else []
    return Places(mounts, tuple(dict.fromkeys(roots)), known_files(base.catalogue, base.lock))


def _without_own_head(ini: Ini) -> Ini:
    own = HEAD.lstrip(";").strip()
    return Ini(ini.file, ini.sections, tuple(line for line in ini.head if line != own), ini.foot)


def data_text(found: Found, source: str) -> str:
    """The data as a file of group_data."""
    lines = [_DATA_HEAD.format(source=source)]
    for key, value in found.values.items():
        lines.append(f"{key} = {_python(value)}")
    return "\n".join(lines) + "\n"


def _python(value: object) -> str:
    """A value in Python's words: JSON has the same for all that data hold but truth, which none of them
    is."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= 80 or not isinstance(value, dict | list):
        return text
    return json.dumps(value, ensure_ascii=False, indent=4).replace("\n]", ",\n]").replace("\n}", ",\n}")


def result_faults(folder: Path, adoption: Adoption, base: Base, options: PresetOptions) -> list[Fault]:
    """Why the written catalogue and data would be refused: every fault, none when they pass."""
    faults: list[Fault] = []
    most = adoption.values.get("lane_models_max")
    try:
        catalogue = load_catalogue(folder / CATALOGUE_FILE, options)
        if isinstance(most, int):
            faults += startup_faults(catalogue, most)
    except BadInput as error:
        faults += error.faults
    if base.data:
        try:
            places = {key: f"{DATA_FILE} {key}" for key in adoption.values}
            read_box_data({**base.data, **adoption.values}, host="the box", places=places)
        except BadInput as error:
            faults += error.faults
    return faults
