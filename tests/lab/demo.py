"""The whole product on a real host: bare host, deploy, chat, and a second deploy that changes nothing.

Run by `make demo`. The host stays up afterwards, to look around: `.venv/bin/python -m tests.lab ssh demo`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

import click
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tests.lab import deploying, paths
from tests.lab.errors import LabError
from tests.lab.host import LabHost

console = Console()


def _run(*command: str) -> str:
    """Show a command, run it, show its output as it comes; its output. Ends the demo when it fails."""
    shown = typed(*command)
    # A line of a shell: not wrapped, so that it can be copied.
    console.print(Text(f"$ {shown}", style="bold"), soft_wrap=True, highlight=False)
    lines = []
    process = subprocess.Popen(
        command,
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYINFRA_PROGRESS": "off"},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            console.out(line, end="", highlight=False)
    finally:
        process.terminate() if process.poll() is None and sys.exc_info()[0] else None
    if process.wait():
        raise click.ClickException(f"{shown} ended with {process.returncode}")
    return "".join(lines)


def typed(*command: str) -> str:
    """A command as one would type it in the repository's folder."""
    return shlex.join(part.removeprefix(f"{paths.REPOSITORY}/") for part in command)


def look_around(name: str) -> list[str]:
    """The commands to go on with, whole: they work in the repository's folder without more."""
    there = f"--host {name} --inventory {deploying.INVENTORY}"
    return [
        f".venv/bin/gb10 status {there}",
        f'.venv/bin/gb10 chat {there} "Hello"',
        f".venv/bin/gb10 drift {name} --inventory {deploying.INVENTORY}",
        f".venv/bin/python -m tests.lab ssh {name}",
        f".venv/bin/python -m tests.lab down {name}    # ends it",
    ]


def _gb10(*arguments: str) -> str:
    gb10 = str(deploying.PYINFRA.with_name("gb10"))
    return _run(gb10, *arguments, "--inventory", str(deploying.INVENTORY))


def _title(text: str, begun: float) -> None:
    console.print(Rule(f"{text} ({time.monotonic() - begun:.0f} s)", align="left"))


@click.command()
@click.option("--name", default="demo", show_default=True, help="Name of the lab host.")
def main(name: str) -> None:
    """Bare host, deploy, chat, second deploy. The host stays up."""
    begun = time.monotonic()
    host = LabHost(name)
    try:
        _title("A bare host: Debian, systemd, Docker, two old vLLM lanes", begun)
        host.reset()
        box = deploying.description(host)
        deploying.give_image(host, box.image)

        _title("The deploy", begun)
        _run(*deploying.command(host, "-y"))
        deploying.keep_image(host, box.image)

        _title("A chat", begun)
        _gb10("chat", "--host", name, "Say something.")
        console.print("The lab's models have random weights: neither the text nor its tok/s mean anything.")

        _title("The deploy once more: it changes nothing", begun)
        changed = deploying.changed(_run(*deploying.command(host, "-y")))
    except LabError as error:
        raise click.ClickException(str(error)) from None
    if changed:
        raise click.ClickException(f"the second deploy changed something: {', '.join(changed)}")
    _title("Done", begun)
    console.print(f"{name} is up at {host.address}. To look around, in this folder:", highlight=False)
    for line in look_around(name):
        console.print(Text(f"  {line}", style="bold"), soft_wrap=True, highlight=False)


if __name__ == "__main__":
    main()
