"""``gb10 chat``: one answer from the box, without a tunnel and without the key leaving it."""

from __future__ import annotations

from pathlib import Path

import click

from gb10.commands import options
from gb10.inventory import desired
from gb10.remote import connected, stream

# Where nothing was deployed yet, python3 would only say that it cannot open a file.
IF_DEPLOYED = '[ -e "$0" ] || { echo "nothing is deployed here yet: run the deploy" >&2; exit 1; }; exec "$@"'


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("--model", help="A model's name in the catalogue; without it the one that loads on startup.")
@options.one_host
@options.inventory
def chat(text: tuple[str, ...], model: str | None, host_name: str | None, inventory: Path) -> None:
    """Ask the box something and print the answer as it comes, with its tokens per second.

    \b
    Examples:
      gb10 chat "Write a haiku about page caches."
      gb10 chat --host spark.local --model gemma-4-E4B "What is 17 times 23?"
    """
    with connected(inventory, host_name) as host:
        box = desired(host)
        program = box.program_files["gb10_router.py"].path
        choice = ["--model", model] if model else []
        asked = ["python3", program, box.lane_path, "chat", *choice, " ".join(text)]
        status = stream(host, ["sh", "-c", IF_DEPLOYED, program, *asked])
    raise SystemExit(status)
