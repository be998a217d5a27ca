"""``gb10 convert``: a GGUF file made on the box out of a repository's safetensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host

from gb10 import converting
from gb10.commands import options
from gb10.conversion import DEFAULT_OUTTYPE, OTHER_OUTTYPE, OUTTYPES, WHY_Q8_0
from gb10.convert_expect import judge, kinds
from gb10.convert_job import Making
from gb10.convert_source import Source, read_source
from gb10.converting import size_text
from gb10.desired import Desired
from gb10.faults import BadInput, Fault
from gb10.hub import HubClient, HubError, read_token
from gb10.inventory import desired, load_inventory
from gb10.lock import LockedFile, load_lock, write_lock
from gb10.model import Model, own_repo
from gb10.preset_options import near_miss
from gb10.preset_rules import refuse_name
from gb10.remote import connected, named_host
from gb10.rendering import TOP


@click.command("convert")
@click.argument("what", metavar="REPO[@REV]")
@click.option("--outtype", type=click.Choice(OUTTYPES), help="For the tensors that are not NVFP4. [q8_0]")
@click.option("--name", help="Name of the model; else that of the catalogue's entry, or of the repository.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.one_host
@options.inventory
def convert(
    what: str, outtype: str | None, name: str | None, yes: bool, host_name: str | None, inventory: Path
) -> None:
    """Make a GGUF file on the box out of safetensors, NVFP4 tensors as they are.

    REPO is a repository of the hub, or a model of the catalogue that is made at home. Fetches the source,
    converts it with llama.cpp's converter in a container without a network, proves the result, and writes
    the recipe to the lock. What has been done is not done again, so run it again after whatever went wrong.

    For gated models set HF_TOKEN, or log in with the hub's own tool; the box needs models_token_file.

    \b
    Examples:
      gb10 convert nvidia/Qwen3.6-35B-A3B-NVFP4
      gb10 convert gemma-4-26B-A4B-NVFP4
    """
    # What is wrong with the arguments, or with the repository, is said also while the box is away.
    box = desired(named_host(list(load_inventory(inventory)), host_name, inventory))
    wish = wish_of(box, what, outtype, name)
    # What the lock has by this revision needs no hub to be known as right.
    source = None if made_of(wish, wish.revision) else _look_through(box, wish)
    with connected(inventory, host_name) as host:
        if source is None and _there_already(host, box, wish, wish.revision):
            return
        source = source or _look_through(box, wish)
        making = Making(box, wish.name, wish.file, source, wish.outtype)
        if _there_already(host, box, wish, source.commit):
            return
        _show(host, making)
        found = converting.look(host, making)
        if found["result"]:
            inside = making.result.removeprefix(f"{box.data.models_dir}/")
            known = making.name if box.catalogue.model(making.name) else inside
            raise PyinfraError(
                f"{host.name}: {making.result} is there, and was not made like this: "
                f"`gb10 models rm {known}`, or give the new one another --name"
            )
        if room := converting.room_fault(making, found):
            raise PyinfraError(f"{host.name}: {room}")
        if not yes:
            click.confirm("Go on?", abort=True)
        converting.build(host, making, click.echo)
        converting.refuse_architecture(host, making)
        converting.fetch(host, making, click.echo)
        size, sha256 = converting.make(host, making, click.echo)
        entry = _prove(host, making, size, sha256)
        _write(TOP / box.data.models_lock, entry)
        converting.accept(host, making)
    click.echo(f"{host.name}: {making.result}: {size_text(size)}, sha256 {sha256}")
    click.echo(f"The recipe is in {box.data.models_lock}: commit it.")
    _offer(making, wish.model)


@dataclass(frozen=True)
class Wish:
    """What is to be made: ``file`` of the model ``name`` from ``repo`` at ``revision`` (a branch, a tag, a
    commit). ``model`` is the catalogue's entry for it, ``locked`` what the lock has of it."""

    name: str
    file: str
    repo: str
    revision: str
    outtype: str
    model: Model | None
    locked: LockedFile | None


def wish_of(box: Desired, what: str, outtype: str | None, name: str | None) -> Wish:
    """What the arguments mean, by catalogue and lock. Raises `BadInput`.

    Without a revision that of the catalogue counts, else that of the lock, so that a file is made again as it
    was; else ``main``.
    """
    repo, _, revision = what.partition("@")
    catalogue = box.catalogue
    if "/" in repo:
        of_repo = [one for one in catalogue.models if one.conversion and one.conversion.repo == repo]
        model = next((one for one in of_repo if name in (None, one.name)), None)
    else:
        model = catalogue.model(repo)
        if model is None or model.conversion is None:
            made = tuple(model.name for model in catalogue.models if model.conversion)
            what = (
                "is no model that is made at home" if model else "no such model, and no OWNER/NAME of a hub"
            )
            raise BadInput([Fault(repo, what, near_miss(repo, made) or "name a repository: OWNER/NAME")])
    conversion = model.conversion if model else None
    repo = conversion.repo if conversion else repo
    if name is None and model is None and (other := _taken(box, repo)):
        what = f"its name is taken by {other}, which would be replaced by this one"
        raise BadInput([Fault(repo, what, "give this one another --name, or that one to replace it")])
    name = name or (model.name if model else repo.partition("/")[2])
    if why := refuse_name(name):
        raise BadInput([Fault(name, f"the name {why}", "give another --name")])
    file = model.file if model and model.name == name and model.file else f"{name}.gguf"
    locked = box.lock.files.get((own_repo(name), file))
    recipe = locked.recipe if locked else None
    known = locked.revision if locked and recipe and recipe.repo == repo else None
    revision = revision or (conversion.revision if conversion else None) or known or "main"
    kind = outtype or (conversion.outtype if conversion else DEFAULT_OUTTYPE)
    return Wish(name, file, repo, revision, kind, model, locked)


def _taken(box: Desired, repo: str) -> str:
    """What has the name that a model from ``repo`` would get, in the catalogue or the lock; else empty."""
    name = repo.partition("/")[2]
    model = box.catalogue.model(name)
    if model:  # it is of another repository: one of this would have been found by it
        return model.where
    made = [file for file in box.lock.files.values() if file.repo == own_repo(name) and file.recipe]
    others = [file.recipe.repo for file in made if file.recipe and file.recipe.repo != repo]
    return f"{own_repo(name)} of the lock, made from {others[0]}" if others else ""


def _look_through(box: Desired, wish: Wish) -> Source:
    try:
        hub = HubClient(box.data.models_hub, read_token())
        return read_source(hub, wish.repo, wish.revision, lambda part: click.echo(f"… {part}", err=True))
    except HubError as error:
        raise PyinfraError(str(error)) from None


def made_of(wish: Wish, commit: str) -> bool:
    """True when the lock has it, made of this commit in the same way.

    A newer converter is no reason to make it again.
    """
    locked = wish.locked
    if locked is None or locked.recipe is None or locked.revision != commit:
        return False
    return (locked.recipe.repo, locked.recipe.outtype) == (wish.repo, wish.outtype)


def _there_already(host: Host, box: Desired, wish: Wish, commit: str) -> bool:
    """True when the lock has it so (`made_of`), and the box has that very file."""
    locked = wish.locked
    if locked is None or not made_of(wish, commit):
        return False
    state = converting.state_of(host, box, locked)
    if state in ("ok", "unverified"):
        note = "" if state == "ok" else " (its sha256 is read by the next deploy)"
        path = f"{box.data.models_dir}/{locked.repo}/{locked.file}"
        click.echo(f"{host.name}: {path} is there already and right{note}: nothing to do")
        return True
    return False


def _show(host: Host, making: Making) -> None:
    expected, source = making.expected, making.source
    why = WHY_Q8_0 if making.outtype == DEFAULT_OUTTYPE else OTHER_OUTTYPE
    click.echo(f"{host.name}: {making.name} from {source.repo} at {source.commit}")
    click.echo(
        f"  source   {size_text(source.size)} in {len(source.files)} files, kept in {making.source_folder}"
    )
    packed = f"{expected.nvfp4 / 1e9:.2f} billion weights in NVFP4" if expected.nvfp4 else "no NVFP4 in it"
    click.echo(f"  result   about {size_text(expected.likely)}, {packed}: {making.result}")
    click.echo(f"  outtype  {making.outtype}: {why}")
    click.echo(
        f"  by       the converter of llama.cpp {making.box.data.llama_ref} in {making.box.appliance_image}"
    )


def _prove(host: Host, making: Making, size: int, sha256: str) -> LockedFile:
    """The lock's entry of what was made, if it is what was expected. Raises PyinfraError with all faults."""
    header = converting.header_of(host, making.part, size)
    faults = judge(header, size, making.expected)
    known = making.box.lock.files.get((own_repo(making.name), making.file))
    entry = making.locked(size, sha256, header)
    if known and known.recipe == entry.recipe and known.revision == entry.revision and known.sha256 != sha256:
        faults.append(f"the lock has sha256 {known.sha256} by the same recipe, this one has {sha256}")
    if faults:
        raise PyinfraError(
            f"{host.name}: {making.part} is not what was expected: {'; '.join(faults)}: it got no name; "
            "remove it to have it made anew"
        )
    click.echo(f"{host.name}: {making.name}: tensors: {kinds(header)}")
    return entry


def _write(path: Path, entry: LockedFile) -> None:
    # Read again: a conversion takes long, and somebody may have pinned something meanwhile.
    write_lock(path, load_lock(path).with_files([entry]))


def _offer(making: Making, model: Model | None) -> None:
    source = model.conversion if model else None
    if model and source and model.name == making.name:
        right = source.revision in (None, making.source.commit) and source.outtype == making.outtype
        if right and model.enabled:
            click.echo("The catalogue has it: the next deploy serves it.")
            return
        if right:
            click.echo(f"To serve it, take `enabled: false` and `reason` off {model.where}.")
            return
        click.echo(f"To serve it, {model.where} must say:")
    else:
        click.echo(f"To serve it, add to {making.box.data.catalogue}:")
    click.echo(making.entry, nl=False)
