"""``gb10 models``: which model files are on the box, and the only way to remove some."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host

from gb10.catalogue import Model
from gb10.commands import options
from gb10.conversion import SOURCES, make_command, not_made
from gb10.converting import size_text
from gb10.desired import Desired
from gb10.facts.found import found_on
from gb10.faults import BadInput, Fault
from gb10.fetch_manifest import missing, model_files
from gb10.found import FoundOnBox
from gb10.inventory import desired
from gb10.lock import COMMIT
from gb10.preset_options import near_miss
from gb10.presets import model_path
from gb10.printable import printable
from gb10.remote import connected
from gb10.rendering import TOP

LIST_SECONDS = 120
FETCHED = "fetched to be converted; kept until it is removed by this name"
_SNAPSHOT = re.compile(r"/models--[^/]+/snapshots/([^/]+)/")  # of a Hugging Face cache
BESIDE = ("found", "not served", "stray", "source")  # states of what is not in the catalogue


@dataclass(frozen=True)
class Found:
    """A model as the list shows it. ``bytes`` on the box; ``state``: ok, unverified, partial, missing, wrong,
    off, not pinned or not made; of what is not in the catalogue found (served all the same), not served,
    stray (where no model is looked for) or source (fetched to be converted)."""

    name: str
    state: str
    bytes: int
    size: int | None
    note: str
    paths: tuple[str, ...]


@click.group("models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.one_host
@options.inventory
@click.pass_context
def models(context: click.Context, as_json: bool, host_name: str | None, inventory: Path) -> None:
    """List the models of the catalogue and those found on the box beside it. Changes nothing.

    \b
    Examples:
      gb10 models
      gb10 models rm gemma-4-31B
    """
    if context.invoked_subcommand is not None:
        return
    with connected(inventory, host_name) as host:
        found = list_models(host, desired(host))
    if as_json:
        click.echo(json.dumps({"models": [asdict(entry) for entry in found]}, indent=1))
        return
    width = max((len(entry.name) for entry in found), default=0)
    for entry in found:
        share = _share(entry)
        line = f"{entry.name:<{width}}  {entry.state:<12} {share:>20}  {entry.note}"
        click.echo(printable(line.rstrip()))


@models.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.one_host
@options.inventory
def rm(name: str, yes: bool, host_name: str | None, inventory: Path) -> None:
    """Remove the files of the model NAME from the box: a name of the catalogue, or one that `gb10 models`
    lists in the models folder. Files that another model of the catalogue uses too stay."""
    with connected(inventory, host_name) as host:
        box = desired(host)
        paths = files_to_remove(box, name, list_models(host, box))
        click.echo(f"{host.name}: to be removed, if there:")
        for path in paths:
            click.echo(printable(f"  {path}"))
        model = box.catalogue.model(name)
        if model is not None and model.enabled:
            click.echo(f"{name} is still served: the next deploy fetches it again, unless it is turned off.")
        if not yes:
            click.confirm("Remove them?", abort=True)
        answer = ask(host, "remove", {"models_dir": box.data.models_dir, "paths": paths})
    for entry in answer["removed"]:
        kept = "" if entry["freed"] else " (another name keeps the bytes on the disk)"
        click.echo(printable(f"removed {entry['path']}{kept}"))
    click.echo(f"{size_text(sum(entry['freed'] for entry in answer['removed']))} freed")


def _share(entry: Found) -> str:
    if entry.size is None or entry.bytes == entry.size:
        return size_text(entry.bytes)
    return f"{size_text(entry.bytes)} of {size_text(entry.size)}"


def list_models(host: Host, box: Desired) -> list[Found]:
    """The catalogue's models, then those that are found on the box, then the strays.

    Raises pyinfra's ``PyinfraError`` when the box cannot say.
    """
    manifest = json.dumps(box.fetch_manifest)
    program = box.program_files["gb10_fetch.py"].content
    check = StringCommand("python3", "-c", QuoteString(program), "--check", "/dev/stdin")
    looked = run(host, StringCommand("printf", "%s", QuoteString(manifest), "|", check))
    states = {entry["path"]: entry for entry in looked["files"]}
    models_dir = PurePosixPath(box.data.models_dir)
    listed = [_catalogued(model, models_dir, box, states) for model in box.catalogue.models]
    listed += _beside(found_on(host, box))
    known = [path for entry in listed for path in entry.paths]
    folders = [box.data.models_dir, *box.data.models_search]
    sources = f"{box.data.models_dir}/{SOURCES}"
    answer = ask(host, "list", {"folders": folders, "known": known, "sources": sources})
    listed += [
        Found(entry["name"], "source", entry["bytes"], None, FETCHED, tuple(entry["paths"]))
        for entry in answer.get("sources", ())
    ]
    return listed + [
        Found(
            entry["name"],
            "stray",
            entry["bytes"],
            None,
            f"{why_stray(entry['path'])}: {entry['path']}",
            tuple(entry["paths"]),
        )
        for entry in answer["found"]
    ]


def why_stray(path: str) -> str:
    """Why a file on the box is not served."""
    cached = _SNAPSHOT.search(path)
    if cached and not COMMIT.fullmatch(cached[1]):
        return f"not served, its snapshot {cached[1]} is no commit's"
    return "not in the catalogue"


def _beside(found: FoundOnBox) -> list[Found]:
    note = "not in the catalogue, served with its defaults: "
    served = [
        Found(one.name, "found", one.size, None, note + one.paths[0], one.paths) for one in found.models
    ]
    return served + [
        Found(one.name, "not served", one.size, None, f"{one.path}: {one.why}", (one.path,))
        for one in found.passed
    ]


def _catalogued(
    model: Model, models_dir: PurePosixPath, box: Desired, states: dict[str, dict[str, Any]]
) -> Found:
    paths = [str(path) for path in model_files(model, models_dir)]
    if not paths and model.file is not None:
        paths = [str(model_path(models_dir, model))]
    there = [states[path] for path in paths if path in states]
    bytes_there = sum(entry["bytes"] for entry in there)
    size = sum(entry["size"] for entry in there) or None
    if not model.enabled:
        state, note = "off", model.reason or ""
    elif model.conversion is not None and (not_made(model, box.lock) or missing(model.files[0], box.lock)):
        state, note = "not made", f"`{make_command(model)}`"
    elif any(missing(file, box.lock) for file in model.files):
        state, note = "not pinned", f"`gb10 pin {model.name}`"
    else:
        worst = ("wrong", "missing", "partial", "unverified", "ok")
        state, note = min((entry["state"] for entry in there), key=worst.index), model.repo or ""
        if state == "missing" and bytes_there:
            state = "partial"
        if model.conversion is not None:
            note = f"made from {model.conversion.repo}"
            note += f": `{make_command(model)}`" if state in ("missing", "wrong") else ""
    return Found(model.name, state, bytes_there, size, note, tuple(paths))


def files_to_remove(box: Desired, name: str, listed: Sequence[Found]) -> list[str]:
    """The files of one model, without those that another one of the catalogue needs. Raises `BadInput`."""
    model = box.catalogue.model(name)
    wanted = model.name if model else name
    entry = next((entry for entry in listed if entry.name == wanted), None) or _by_last_part(name, listed)
    wanted = entry.name if entry else wanted
    if entry is None or not entry.paths:
        what = "has no file" if entry else "no such model in the catalogue or on the box"
        hint = (
            near_miss(name, tuple(entry.name for entry in listed)) if entry is None else "nothing to remove"
        )
        raise BadInput([Fault(name, what, hint)])
    outside = [path for path in entry.paths if not path.startswith(box.data.models_dir + "/")]
    if outside:
        fault = Fault(
            name, f"{outside[0]} is not in {box.data.models_dir}", "it is not ours: remove it by hand"
        )
        raise BadInput([fault])
    others = {
        path for other in listed if other.name != wanted and other.state not in BESIDE for path in other.paths
    }
    paths = [path for path in entry.paths if path not in others]
    if not paths:
        raise BadInput([Fault(name, "another model uses all its files", "remove that one first")])
    return paths


def _by_last_part(name: str, listed: Sequence[Found]) -> Found | None:
    """The one entry whose name ends in ``/NAME`` or ``/NAME.gguf``; None where several do."""
    found = [one for one in listed if one.name.rpartition("/")[2] in (name, f"{name}.gguf")]
    return found[0] if len(found) == 1 else None


def ask(host: Host, verb: str, question: dict[str, Any]) -> dict[str, Any]:
    """What ``files/gb10_models.py`` answers on the box; it is sent along, so it need not be there."""
    program = (TOP / "files" / "gb10_models.py").read_text()
    return run(
        host, StringCommand("python3", "-c", QuoteString(program), verb, QuoteString(json.dumps(question)))
    )


def run(host: Host, command: StringCommand) -> dict[str, Any]:
    """The JSON object that a command prints as root. Raises pyinfra's ``PyinfraError`` with its last line."""
    ok, output = host.run_shell_command(command, _sudo=True, _timeout=LIST_SECONDS)
    if not ok:
        raise PyinfraError(
            f"{host.name}: {(output.stderr_lines or output.stdout_lines or ['no reason'])[-1]}"
        )
    answer: dict[str, Any] = json.loads("\n".join(output.stdout_lines))
    return answer
