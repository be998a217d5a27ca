"""``gb10 plan``: the memory plan of the catalogue, or of one GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gb10.boxdata import AUTO
from gb10.commands import options
from gb10.faults import BadInput, Fault
from gb10.gguf import GgufError, read_file
from gb10.memory import CACHE_TYPE_BYTES, CUDA_OVERHEAD_MIB, DEFAULT_UBATCH, MIB, Child, Settings, child
from gb10.plan import make_plan, mib
from gb10.plan_data import planned_box
from gb10.plan_faults import plan_faults
from gb10.plan_sources import file_bytes, sources_of
from gb10.plan_view import child_json, plan_json, plan_text
from gb10.shape import Shape, shape_of
from gb10.slots import Slots


def _count_or_auto(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and value != AUTO and not value.isdigit():
        raise click.BadParameter("write a number or `auto`")
    return value


@click.command()
@click.option(
    "--gguf", type=click.Path(path_type=Path), help="Plan for this file (of a split model: its first shard)."
)
@click.option("--ctx-size", type=click.IntRange(1), default=32768, show_default=True)
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True)
@click.option("--kv-unified/--no-kv-unified", default=True, show_default=True)
@click.option(
    "--kv-unified-per-slot", "per_slot", type=click.IntRange(1), help="Limit of each slot, in tokens."
)
@click.option("--cache-type", type=click.Choice(list(CACHE_TYPE_BYTES)), default="f16", show_default=True)
@click.option("--ubatch-size", "ubatch", type=click.IntRange(1), default=DEFAULT_UBATCH, show_default=True)
@click.option("--projector", type=click.Path(path_type=Path), help="Projector of the file.")
@click.option("--draft", type=click.Path(path_type=Path), help="Draft model of the file.")
@click.option(
    "--cache-ram", type=click.IntRange(0), default=0, show_default=True, help="Prompt cache of the file, MiB."
)
@click.option("--overhead", type=click.IntRange(0), help="MiB of one child beyond its buffers.")
@click.option("--total", type=click.IntRange(1), help="Memory of the box, MiB, in place of the data's.")
@click.option("--reserve", type=click.IntRange(0), help="MiB that are never planned, in place of the data's.")
@click.option("--models-max", callback=_count_or_auto, help="A number or `auto`, in place of the data's.")
@click.option(
    "--models-dir", type=click.Path(path_type=Path), help="Read headers that the lock lacks from here."
)
@click.option(
    "--on-box", is_flag=True, help="Ask the box for models that lie there and are not in the catalogue."
)
@options.inventory
@options.one_host
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    gguf: Path | None,
    ctx_size: int,
    parallel: int,
    kv_unified: bool,
    per_slot: int | None,
    cache_type: str,
    ubatch: int,
    projector: Path | None,
    draft: Path | None,
    cache_ram: int,
    overhead: int | None,
    total: int | None,
    reserve: int | None,
    models_max: str | None,
    models_dir: Path | None,
    on_box: bool,
    inventory: Path,
    host_name: str | None,
    as_json: bool,
) -> None:
    """Add up the memory of all presets against the box, or of one file with --gguf.

    Models that are found on the box are served and count too; only --on-box, and a deploy, know them.
    Exits with 1 when the catalogue must not be deployed, and says what would fit.

    \b
    Examples:
      gb10 plan
      gb10 plan --on-box
      gb10 plan --models-max auto --reserve 20000
      gb10 plan --gguf model.gguf --ctx-size 65536 --parallel 8 --kv-unified --cache-type q8_0
    """
    if gguf is not None:
        slots = Slots(ctx_size, parallel, kv_unified, per_slot)
        settings = Settings(slots, cache_type, cache_type, ubatch)
        figures = _one_file(gguf, settings, projector, draft, cache_ram, overhead)
        if as_json:
            click.echo(json.dumps({"file": str(gguf), **child_json(figures)}, indent=1))
        else:
            Console().print(_file_table(figures))
        return
    given: dict[str, int | None] = {"total_mib": total, "reserve_mib": reserve, "overhead_mib": overhead}
    given = {key: value for key, value in given.items() if value is not None}
    if models_max is not None:
        given["models_max"] = None if models_max == AUTO else int(models_max)
    box = planned_box(inventory, host_name, given, on_box=on_box)
    made = make_plan(box.catalogue, sources_of(box.catalogue, box.lock, models_dir), box.budget, box.found)
    faults = plan_faults(made, box.catalogue)
    if as_json:
        click.echo(json.dumps(plan_json(made, faults), indent=1))
    else:
        Console().print(plan_text(made, faults))
    if faults:
        raise SystemExit(1)


def _one_file(
    gguf: Path,
    settings: Settings,
    projector: Path | None,
    draft: Path | None,
    cache_ram: int,
    overhead: int | None,
) -> Child:
    """The figures of one file. Raises BadInput with every file that cannot be read."""
    faults: list[Fault] = []
    shapes: dict[Path, Shape] = {}
    for path in [gguf, *([draft] if draft else [])]:
        try:
            shapes[path] = shape_of(read_file(path))
        except GgufError as error:
            faults.append(Fault(str(path), str(error).removeprefix(f"{path}: "), "name a GGUF file"))
    if projector and not projector.is_file():
        faults.append(Fault(str(projector), "no such file", "name the projector's GGUF file"))
    if faults:
        raise BadInput(faults)
    return child(
        shapes[gguf],
        settings,
        weights=file_bytes(gguf),
        projector=file_bytes(projector) if projector else 0,
        draft=(shapes[draft], file_bytes(draft)) if draft else None,
        cache_ram=cache_ram * MIB,
        overhead=(CUDA_OVERHEAD_MIB if overhead is None else overhead) * MIB,
    )


def _file_table(figures: Child) -> Table:
    table = Table(pad_edge=False)
    table.add_column("part")
    table.add_column("MiB", justify="right")
    table.add_column("source")
    for part in figures.parts:
        table.add_row(part.name, str(mib(part.bytes)), part.source)
    table.add_row("total", str(mib(figures.total)), "")
    table.caption = f"{figures.kv_bytes_per_token} bytes of KV cache for each token"
    for note in figures.notes:
        table.caption += f"\n{note}"
    return table
