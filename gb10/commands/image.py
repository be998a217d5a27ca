"""``gb10 image``: what the box's images have proven, and an image as a file."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from gb10.commands import options
from gb10.desired import Desired
from gb10.facts.docker import Generations, Images, ImageState
from gb10.faults import BadInput, Fault
from gb10.image_file import CHUNK_BYTES, read_image_file, sum_path, write_sum
from gb10.image_view import image_table, proof_lines, unproven
from gb10.inventory import desired
from gb10.operations import deploy_lock
from gb10.printable import all_printable
from gb10.remote import connected, ssh_client

# What docker load and the unpacked layers take beside the file itself.
ROOM = 2.2
WIDTH = 110
ABSENT = {
    "absent": "not on the box",
    "unproven": "on the box, not proven: the next deploy lets it prove itself",
    "proven": "on the box, and what it has proven cannot be listed: run the deploy",
}


@click.group("image", invoke_without_command=True)
@click.option("--tag", help="Another image than the one that the data describe.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.one_host
@options.inventory
@click.pass_context
def image(
    context: click.Context, tag: str | None, as_json: bool, host_name: str | None, inventory: Path
) -> None:
    """Show the images on the box, and what one of them has proven. Changes nothing.

    Exit status: 0 it is proven, 1 it is not, or not there.

    \b
    Examples:
      gb10 image
      gb10 image export llama-server.tar
      gb10 image import llama-server.tar --host other.local
    """
    if context.invoked_subcommand is not None:
        return
    with connected(inventory, host_name) as host:
        box = desired(host)
        images, known = _looked(host, box, whole=not as_json)
        wanted = _full_name(box, tag)
        # Docker may have it where no deploy has brought the program that lists images.
        state = "absent" if images else host.get_fact(ImageState, image=wanted, folder=box.image_folder)
    entry = next((entry for entry in images if entry["image"] == wanted), None)
    fault = unproven(entry, box) if entry else ABSENT[state]
    if as_json:
        click.echo(json.dumps({"wanted": wanted, "proven": not fault, "images": images, **known}, indent=1))
        sys.exit(1 if fault else 0)
    # A name that is cut is no name: a narrow terminal wraps the row.
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    if images:
        console.print(image_table(images, box, known))
    click.echo(f"\n{wanted}" + (f": {fault}" if fault else ""))
    if entry and not fault:
        for name, text in proof_lines(entry["proof"]):
            click.echo(f"  {name:<8} {text}")
    sys.exit(1 if fault else 0)


def _looked(host: Host, box: Desired, *, whole: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    programs = box.program_files
    images = host.get_fact(
        Images, program=programs["gb10_image.py"].path, description=box.image_file.path, whole=whole
    )
    if images is None:
        raise PyinfraError(f"{host.name} does not say which images it has: look at systemctl status docker")
    known = host.get_fact(Generations, program=programs["gb10_generations.py"].path, lane=box.lane_path)
    if known is None:
        raise PyinfraError(f"{host.name} does not say which lanes it has kept: run a deploy first")
    return all_printable(images), all_printable(known)


def _full_name(box: Desired, tag: str | None) -> str:
    if tag is None:
        return box.image
    return tag if ":" in tag else f"{box.data.image_name}:{tag}"


@image.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tag", help="Another image than the one that the data describe.")
@options.one_host
@options.inventory
def export(file: Path, tag: str | None, host_name: str | None, inventory: Path) -> None:
    """Write an image of the box to FILE, and its sha256 to FILE.sha256.

    For boxes without a network, and to have a built image when a box is lost. A name that ends in .gz is
    compressed on the box. FILE must not be there yet.
    """
    if file.exists():
        raise BadInput([Fault(str(file), "is there already", "name another file, or remove it")])
    if not file.parent.is_dir():
        raise BadInput([Fault(str(file), f"there is no folder {file.parent}", "make it, or name another")])
    with connected(inventory, host_name) as host:
        name = _full_name(desired(host), tag)
        size = int(_line(host, f"docker image inspect --format '{{{{.Size}}}}' {shlex.quote(name)}"))
        compress = " | gzip -1" if file.suffix == ".gz" else ""
        command = f"docker save {shlex.quote(name)}{compress}"
        part = file.with_name(file.name + ".part")
        try:
            with _progress(f"export {name}", None if compress else size) as seen:
                sha256 = _receive(host, command, part, seen)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    write_sum(file, sha256)
    click.echo(f"{file}: {name}, {file.stat().st_size / 1e6:.1f} MB, sha256 in {sum_path(file).name}")


@image.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.one_host
@options.inventory
def import_(file: Path, host_name: str | None, inventory: Path) -> None:
    """Bring an image from FILE to the box. The next deploy lets it prove itself, and does not build it.

    The file is read to its end first: one that is cut off, or another than the FILE.sha256 beside it, is
    refused before anything is sent. Nobody else holds the box meanwhile.
    """
    with _progress(f"check {file.name}", file.stat().st_size if file.exists() else None) as seen:
        found = read_image_file(file, seen)
    if not found.compared:
        beside = f"there is no {sum_path(file).name} beside it"
        click.echo(f"note: {file} is whole; {beside}, so whether it was changed is not known", err=True)
    with connected(inventory, host_name) as host:
        box = desired(host)
        strangers = [name for name in found.names if not name.startswith(f"{box.data.image_name}:")]
        if strangers:
            what = f"it holds {', '.join(strangers)}, not an image of {box.data.image_name}"
            raise BadInput([Fault(str(file), what, "name a file of `gb10 image export`")])
        root = "$(docker info --format '{{.DockerRootDir}}')"
        free = int(_line(host, f"df --output=avail -B1 {root} | tail -n 1"))
        if free < found.size * ROOM:
            what = f"{free / 1e9:.1f} GB free on Docker's disk, {found.size * ROOM / 1e9:.1f} GB are needed"
            raise BadInput([Fault(host.name, what, "free some disk")])
        deploy_lock.take(host, "gb10 image import")
        with _progress(f"import {file.name}", found.size) as seen:
            _send(host, "docker load --quiet", file, seen)
    for name in found.names:
        click.echo(f"{host.name} has {name}")
    if box.image in found.names:
        click.echo("the next deploy takes it, once it has proven itself there")
    else:
        click.echo(f"note: the data describe {box.image}: a deploy will build that one")


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while it is a terminal; the value takes the bytes of each step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _line(host: Host, command: str) -> str:
    """The last line that a command prints as root. Raises pyinfra's ``PyinfraError`` with its reason."""
    ok, output = host.run_shell_command(command, _sudo=True, _timeout=60)
    if not ok or not output.stdout_lines:
        raise PyinfraError(f"{host.name}: {(output.stderr_lines or ['no answer'])[-1]}")
    return str(output.stdout_lines[-1]).strip()


def _channel(host: Host, command: str) -> Any:
    channel = ssh_client(host).get_transport().open_session()
    # A pipe tells the status of its last part alone.
    channel.exec_command(shlex.join(["sudo", "-n", "bash", "-c", f"set -o pipefail; {command}"]))
    return channel


def _receive(host: Host, command: str, path: Path, seen: Callable[[int], None]) -> str:
    """Standard output of ``command`` into ``path``; its sha256. Raises pyinfra's ``PyinfraError``."""
    digest = hashlib.sha256()
    channel = _channel(host, command)
    with path.open("wb") as file:
        while chunk := channel.recv(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            seen(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    _ended(host, channel, command)
    return digest.hexdigest()


def _send(host: Host, command: str, path: Path, seen: Callable[[int], None]) -> None:
    """``path`` into standard input of ``command``. Raises pyinfra's ``PyinfraError``."""
    channel = _channel(host, command)
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                channel.sendall(chunk)
                seen(len(chunk))
    except OSError:
        pass  # it ended before it had read all: it says why
    channel.shutdown_write()
    while channel.recv(CHUNK_BYTES):
        pass
    _ended(host, channel, command)


def _ended(host: Host, channel: Any, command: str) -> None:
    errors = channel.makefile_stderr("rb").read().decode(errors="replace").strip().splitlines()
    status = channel.recv_exit_status()
    if status:
        reason = errors[-1] if errors else "the connection was lost" if status < 0 else "no reason given"
        raise PyinfraError(f"{host.name}: {command.split(' | ')[0]}: {reason}")
