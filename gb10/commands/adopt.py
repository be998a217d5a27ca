"""``gb10 adopt``: a hand-made router as catalogue and data of this project."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from rich.console import Console

from gb10.adopt import (
    CATALOGUE_FILE,
    DATA_FILE,
    Base,
    adopt,
    old_router,
    read_old,
    result_faults,
)
from gb10.adopt_container import preset_path
from gb10.adopt_data import Old
from gb10.adopt_docker import container_from_inspect
from gb10.adopt_paths import Places
from gb10.adopt_report import Note, report_json, report_view
from gb10.adopt_unit import Launch, read_directives
from gb10.boxdata_source import own_data
from gb10.catalogue import load_catalogue
from gb10.commands import options
from gb10.facts.old_router import OldRouter
from gb10.faults import BadInput, Fault
from gb10.inventory import CONNECTION_KEYS, load_inventory
from gb10.lock import load_lock
from gb10.preset_options import PresetOptions, load_preset_options
from gb10.remote import connected
from gb10.rendering import TOP


@dataclass(frozen=True)
class Source:
    """What was read: the preset file, its name for the report and its path on the box, and the old router."""

    ini: str
    ini_file: str
    ini_path: str | None
    old: Old | None


@click.command("adopt")
@click.option("--models-ini", help="The preset file; with --host its path on the box.")
@click.option(
    "--unit",
    help="The unit file, or a script with the `docker run` line; with --host the unit's name on the box.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--host", "host_name", help="Read both from this box of the inventory, over SSH.")
@options.inventory
def adopt_command(
    models_ini: str | None,
    unit: str | None,
    out: Path,
    as_json: bool,
    host_name: str | None,
    inventory: Path,
) -> None:
    """Take over a router that was set up by hand: write its models and its lane as models.yaml and data.

    Changes nothing on the box. The report says what was taken, what was dropped and why, and what a deploy
    will change on purpose. With --host, the unit or container is found by the lane's port when --unit is not
    given.

    Exit status: 0 the result passes every check, 1 it does not (it is written all the same) or nothing was
    read.

    \b
    Examples:
      gb10 adopt --models-ini models.ini --out adopted
      gb10 adopt --models-ini models.ini --unit llama.service --out adopted
      gb10 adopt --host spark.local --out adopted
    """
    preset_options = load_preset_options()
    refuse_filled(out)
    notes: list[Note] = []
    if host_name is not None:
        with connected(inventory, host_name) as host:
            base = base_of(host)
            source = from_box(host, base, unit, models_ini, preset_options, notes)
    else:
        base = base_of(next(iter(load_inventory(inventory)), None))
        source = from_files(models_ini, unit, preset_options, notes)
    adoption = adopt(
        source.ini,
        source.ini_file,
        source.old,
        base,
        preset_options,
        ini_path=source.ini_path,
        notes=notes,
    )
    out.mkdir(parents=True, exist_ok=True)
    written = [out / CATALOGUE_FILE, out / DATA_FILE]
    for path, text in zip(written, (adoption.catalogue, adoption.data), strict=True):
        path.write_text(text, encoding="utf-8")
    faults = result_faults(out, adoption, base, preset_options)
    files = [str(path) for path in written]
    if as_json:
        click.echo(json.dumps(report_json(adoption.notes, faults, files), indent=1))
    else:
        Console().print(report_view(adoption.notes))
        click.echo(f"written: {', '.join(files)}")
    for fault in faults:
        click.echo(f"{fault}", err=True)
    if faults:
        raise SystemExit(1)


def refuse_filled(out: Path) -> None:
    """Raise `BadInput` when the folder holds a catalogue or data already: somebody may have edited them."""
    there = [out / name for name in (CATALOGUE_FILE, DATA_FILE) if (out / name).exists()]
    if there or (out.exists() and not out.is_dir()):
        raise BadInput(
            [Fault(str(path), "is there already", "name another --out") for path in there or [out]]
        )


def base_of(host: Host | None) -> Base:
    """What this repository knows of a box. Its own faults are not the matter here: `gb10 check` tells
    them."""
    data = {}
    if host is not None:
        merged = host.data.dict()  # type: ignore[no-untyped-call]
        data = own_data(merged, CONNECTION_KEYS)
    catalogue = lock = None
    try:
        catalogue = load_catalogue(TOP / str(data.get("catalogue", "models.yaml")), load_preset_options())
        lock = load_lock(TOP / str(data.get("models_lock", "models.lock")))
    except BadInput:
        pass
    return Base(data, catalogue, lock)


def from_files(
    models_ini: str | None, unit: str | None, preset_options: PresetOptions, notes: list[Note]
) -> Source:
    """Read local files. Raises `BadInput` with all that cannot be read."""
    faults: list[Fault] = []
    old = None
    if models_ini is None:
        faults.append(Fault("--models-ini", "is missing", "name the preset file, or a box with --host"))
    ini = _text(Path(models_ini), faults) if models_ini else ""
    if unit is not None:
        text = _text(Path(unit), faults)
        try:
            old = read_old(text, Path(unit).name, preset_options, notes) if text else None
        except BadInput as error:
            faults += error.faults
    if faults:
        raise BadInput(faults)
    return Source(ini, Path(models_ini or "").name, None, old)


def _text(path: Path, faults: list[Fault]) -> str:
    try:
        # As it is: a carriage return ends a line for llama.cpp.
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        faults.append(Fault(str(path), f"cannot be read ({error.strerror})", "name a file"))
    except UnicodeDecodeError as error:
        faults.append(Fault(str(path), f"no UTF-8 at byte {error.start}", "save it as UTF-8"))
    return ""


def from_box(
    host: Host,
    base: Base,
    unit: str | None,
    models_ini: str | None,
    preset_options: PresetOptions,
    notes: list[Note],
) -> Source:
    """Read the old router of a box. Raises `BadInput` when there is none, or no preset file that it names."""
    port = base.data.get("lane_port", 10103)
    answer = host.get_fact(OldRouter, question={"port": port, "unit": unit or ""}, _sudo=True)
    old = _old_of(host, answer, preset_options, notes)
    if old is None:
        what = f"no unit {unit}" if unit else f"no unit and no container serves on port {port}"
        raise BadInput([Fault(host.name, what, "name the unit with --unit, or give files")])
    inside = preset_path(old)
    path = models_ini or (Places(old.container.mounts).on_host(inside) if inside else None)
    if path is None:
        raise BadInput([Fault(host.name, "the router has no preset file", "name one with --models-ini PATH")])
    content = host.get_fact(OldRouter, question={"read": path}, _sudo=True)["content"]
    if content is None:
        raise BadInput([Fault(f"{host.name}:{path}", "cannot be read", "name the file with --models-ini")])
    return Source(str(content), path.rsplit("/", 1)[-1], path, old)


def _old_of(
    host: Host, answer: dict[str, object], preset_options: PresetOptions, notes: list[Note]
) -> Old | None:
    """From the unit where it holds the command, else from the container as Docker describes it."""
    unit, text, inspected = str(answer["unit"]), str(answer["text"]), answer["inspect"]
    if text:
        try:
            return read_old(text, unit, preset_options, notes)
        except BadInput:
            if inspected is None:
                raise
    if not isinstance(inspected, dict):
        return None
    try:
        container = container_from_inspect(inspected["container"], inspected["image_environment"])
    except (KeyError, TypeError, ValueError) as error:
        raise PyinfraError(f"{host.name}: docker inspect has another shape than known ({error})") from None
    # A unit that only mentions the port is not this container's.
    name = unit.removesuffix(".service") if container.name and container.name in text else ""
    launch = Launch(unit if name else container.name, name, 1, (), {}, read_directives(text) if name else ())
    return old_router(launch, container, preset_options, notes)
