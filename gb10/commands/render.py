"""``gb10 render``: everything that a deploy would put on a box, as files in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from gb10.commands import options
from gb10.desired import Desired
from gb10.faults import BadInput, Fault
from gb10.inventory import desired, load_inventory
from gb10.requirements import description_faults

# Says that a folder is a rendering of ours and may be replaced by the next one.
MARKER = ".gb10-rendered"


def write_tree(box: Desired, folder: Path) -> list[Path]:
    """Write every file of ``box`` below ``folder``, by its path on the box; the paths written, in order."""
    written = []
    for placed in box.files():
        path = folder / placed.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(placed.content)
        path.chmod(int(placed.mode, 8))
        written.append(path)
    return written


def fresh_folder(out: Path) -> None:
    """Make ``out``, or empty it when it is an earlier rendering. Raises `BadInput` for any other folder."""
    if out.exists():
        if not out.is_dir() or out.is_symlink() or (any(out.iterdir()) and not (out / MARKER).exists()):
            raise BadInput(
                [Fault(str(out), "it is no empty folder and no earlier rendering", "name another --out")]
            )
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).write_text("Written by `gb10 render`, which replaces this folder as a whole.\n")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
@options.inventory
def render(out: Path, inventory: Path) -> None:
    """Write everything that a deploy would put on each box to a folder.

    Needs no box and no network. The API key is not in it: it is made on the box and stays there.
    Models that only lie on the box are not in its preset file: a deploy adds their sections.

    \b
    Examples:
      gb10 render --out rendered
      gb10 render --out /tmp/lab --inventory tests/lab/inventory.py
    """
    boxes = [(host.name, desired(host)) for host in load_inventory(inventory)]
    try:
        fresh_folder(out)
        written = [path for name, box in boxes for path in write_tree(box, out / name)]
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput([Fault(str(out), f"cannot be written: {reason}", "name another --out")]) from None
    for path in written:
        click.echo(path)
    for _, box in boxes:
        for fault in description_faults(box):
            click.echo(f"note: a deploy would refuse {fault}", err=True)
