"""Command line of the lab: `python -m tests.lab --help`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from types import FrameType
from typing import Any

import click

from tests.lab import bare, disk, llama, network, paths, recipe
from tests.lab import services as background
from tests.lab.errors import LabError
from tests.lab.host import LabHost, known_hosts, release_if_idle

DEFAULT = "box"


class _OneLine(click.Group):
    """Prints what the lab or this machine refuses as one line and exits 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (LabError, OSError) as fault:
            click.echo(f"lab: {fault}", err=True)
            ctx.exit(1)


@click.group(cls=_OneLine)
def main() -> None:
    """Real Debian hosts with systemd, sshd and Docker on this machine, and stand-ins for what a GB10 has."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # As Ctrl-C does: the clean-up of `up` runs either way.
    raise KeyboardInterrupt


@main.command()
@click.argument("names", nargs=-1)
def up(names: tuple[str, ...]) -> None:
    """Power hosts on; make them from the bare root the first time."""
    for name in names or (DEFAULT,):
        LabHost(name).up()


@main.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every host.")
@click.option("--discard", is_flag=True, help="Delete their disks and snapshots too.")
def down(names: tuple[str, ...], everything: bool, discard: bool) -> None:
    """Shut hosts down; the last one leaves no mount, bridge or process behind."""
    hosts = known_hosts() if everything else [LabHost(name) for name in names or (DEFAULT,)]
    for host in hosts:
        if discard:
            host.discard()
        else:
            host.down()
    if not hosts:
        with disk.lock():
            release_if_idle()


@main.command()
@click.argument("name", default=DEFAULT)
@click.option("--to", metavar="SNAP", help="A snapshot of this host instead of the bare root.")
def reset(name: str, to: str | None) -> None:
    """Back to a bare host (or to a snapshot), and up, in seconds."""
    LabHost(name).reset(to)


@main.command()
@click.argument("name")
@click.argument("snap")
def snapshot(name: str, snap: str) -> None:
    """Keep the host's disk as it is now under the name SNAP."""
    LabHost(name).snapshot(snap)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", default=DEFAULT)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str, command: tuple[str, ...]) -> None:
    """Open a shell on a host, or run COMMAND there."""
    line = LabHost(name).ssh_command()
    os.execvp(line[0], [*line, *command])


@main.command()
@click.argument("name", default=DEFAULT)
def reboot(name: str) -> None:
    """Reboot a host from the inside and wait for it."""
    LabHost(name).reboot()


@main.command()
@click.argument("name", default=DEFAULT)
def kill(name: str) -> None:
    """Cut a host's power; `up` boots the same disk again."""
    LabHost(name).kill()


@main.command()
def status() -> None:
    """Say which hosts there are and what runs."""
    for host in known_hosts():
        tags = " ".join(host.snapshots()) if disk.attached() else ""
        state = "running" if host.running else "off"
        click.echo(f"{host.name:12} {host.address!s:15} {state:8} {tags}".rstrip())
    click.echo(f"disk {'mounted' if disk.attached() else 'not mounted'}, cache {paths.cache()}")


@main.command()
@click.option("--commit", is_flag=True, help="Only the commit that the git service offers.")
def services(commit: bool) -> None:
    """Say where the stand-in services listen and which of them run."""
    if commit:
        click.echo(llama.served_commit())
        return
    runs = background.running()
    for name, url in (("http", network.TOOLKIT_URL), ("http", network.HUB_URL), ("git", network.GIT_URL)):
        click.echo(f"{url:50} {'running' if name in runs else 'off'}")
    click.echo(f"llama.cpp {recipe.LLAMA_TAG} {recipe.LLAMA_COMMIT}")


@main.command()
@click.option("--manifest", is_flag=True, help="As JSON: name, repo, revision, file, bytes, sha256.")
def models(manifest: bool) -> None:
    """Make the small models and list them."""
    from tests.lab import models as catalogue  # numpy and gguf only where models are made

    listed = catalogue.manifest()
    if manifest:
        click.echo(json.dumps([asdict(one) for one in listed], indent=2))
        return
    for one in listed:
        click.echo(f"{one.repo:28} {one.file:40} {one.bytes:>12,} {one.sha256[:12]}")


@main.command()
@click.option("--old", is_flag=True, help="Only roots that today's recipe does not use.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(old: bool, yes: bool) -> None:
    """Delete the cache with all hosts (asks), or only old roots."""
    if old:
        with disk.lock():
            disk.attach()
            bare.prune()
            release_if_idle()
        return
    if not yes:
        click.confirm(f"Delete {paths.cache()} with all hosts in it?", abort=True)
    for host in known_hosts():
        host.discard()
    with disk.lock():
        release_if_idle()
        if disk.attached():
            raise LabError(f"{paths.disk()} is still mounted")
    shutil.rmtree(paths.cache())


if __name__ == "__main__":
    sys.exit(main())
