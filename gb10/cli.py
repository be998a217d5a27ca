"""The ``gb10`` command: what a person does beside the deploy itself."""

from __future__ import annotations

import logging
import sys

import click
import gevent
from pyinfra.api.exceptions import PyinfraError

from gb10.commands.adopt import adopt_command
from gb10.commands.bench import bench
from gb10.commands.chat import chat
from gb10.commands.check import check
from gb10.commands.convert import convert
from gb10.commands.drift import drift_command
from gb10.commands.image import image
from gb10.commands.models import models
from gb10.commands.pin import pin
from gb10.commands.plan import plan
from gb10.commands.render import render
from gb10.commands.rollback import rollback
from gb10.commands.status import logs, status
from gb10.printable import LINES, printable


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Look after GB10 boxes: see what a deploy would put there, check it, talk to a box.

    The deploy itself is `pyinfra inventory.py deploy.py`.
    """


cli.add_command(render)
cli.add_command(check)
cli.add_command(plan)
cli.add_command(pin)
cli.add_command(models)
cli.add_command(convert)
cli.add_command(image)
cli.add_command(rollback)
cli.add_command(adopt_command)
cli.add_command(chat)
cli.add_command(drift_command)
cli.add_command(status)
cli.add_command(logs)
cli.add_command(bench)


def main() -> None:
    """Entry point. A fault is one line on standard error and exit status 1, never a traceback.

    A command line that cannot be understood too: 2 is what some commands say of the box.
    """
    logging.getLogger("pyinfra").setLevel(logging.WARNING)
    # Its threads print what they raise, and whoever waits for them says it too, in a line.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    # Where Ctrl-C meets gevent's loop, it is raised here all the same: no words about it there.
    gevent.get_hub().NOT_ERROR += (KeyboardInterrupt,)
    try:
        # Not click's own ending of a command: it makes Ctrl-C the same as a fault.
        cli(prog_name="gb10", standalone_mode=False)
    except PyinfraError as error:
        click.echo(printable(f"gb10: {error}", LINES), err=True)
        sys.exit(1)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        click.echo(f"gb10: {what}", err=True)
        sys.exit(1)
    except RecursionError:
        click.echo("gb10: what was read is nested too deeply to be what it should be", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        if "unexpected extra argument" in error.message and _takes_host(error):
            click.echo("A box is named with --host NAME.", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt) as error:
        # click makes Ctrl-C an Abort too, with its cause. One without is an answer to a question of ours, and
        # every question comes before the first change.
        if isinstance(error, click.Abort) and error.__cause__ is None:
            click.echo("gb10: nothing was changed", err=True)
            sys.exit(1)
        sys.exit(130)


def _takes_host(error: click.ClickException) -> bool:
    context = getattr(error, "ctx", None)
    return context is not None and any(one.name == "host_name" for one in context.command.params)
