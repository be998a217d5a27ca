"""Options that every command has."""

from __future__ import annotations

from pathlib import Path

import click

from gb10.rendering import TOP

inventory = click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    default=TOP / "inventory.py",
    show_default="inventory.py",
    help="Inventory file: which boxes, and what differs.",
)
one_host = click.option("--host", "host_name", help="The box, where the inventory has several.")
