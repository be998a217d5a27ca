"""``gb10 pin``: look names up once, and write what they stand for to the lock."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gb10.boxdata import BoxData
from gb10.catalogue import Catalogue, Model, load_catalogue
from gb10.cmake_options import CMAKE_OPTIONS_FILE, load_cmake_options
from gb10.commands import options
from gb10.faults import BadInput, Fault
from gb10.hub import HubClient, HubError, read_token
from gb10.inventory import box_data, load_inventory
from gb10.llama_source import (
    LlamaSourceError,
    commit_of,
    read_cmake_options,
    read_options,
    write_options,
)
from gb10.lock import Lock, load_lock, write_lock
from gb10.pinning import (
    IMAGES,
    LLAMA,
    Outcome,
    drop_strangers,
    images_moved,
    llama_moved,
    lock_faults,
    models_moved,
    pin_images,
    pin_llama,
    pin_models,
)
from gb10.preset_options import PRESET_OPTIONS_FILE, load_preset_options, near_miss
from gb10.registry import RegistryClient
from gb10.remote import named_host
from gb10.rendering import TOP, shown

SIGNS = {"same": "=", "pinned": "+", "moved": "!", "failed": "x", "left": "-"}


@click.command("pin")
@click.argument("names", nargs=-1)
@click.option("--check", is_flag=True, help="Change nothing, say what moved.")
@options.one_host
@options.inventory
def pin(names: tuple[str, ...], check: bool, host_name: str | None, inventory: Path) -> None:
    """Look up what is not pinned yet, and write it to the lock. Needs the network and no box.

    Of each model's files the commit, size, sha256 and GGUF header; of llama.cpp the commit and its
    options; of images the digest. NAMES (a model, `llama.cpp`, `images`) are looked up anew, whatever
    the lock has.

    For gated models set HF_TOKEN, or log in with the hub's own tool.

    Exit status: 0 done, or nothing moved; 1 something could not be looked up; 2 with --check: moved.

    \b
    Examples:
      gb10 pin
      gb10 pin qwen3-coder-next
      gb10 pin --check
    """
    data = box_data(named_host(list(load_inventory(inventory)), host_name, inventory))
    catalogue = load_catalogue(TOP / data.catalogue, load_preset_options(PRESET_OPTIONS_FILE))
    chosen = _choose(names, catalogue)
    path = TOP / data.models_lock
    lock = load_lock(path) if path.exists() or check else Lock()
    try:
        hub = HubClient(data.models_hub, read_token())
    except HubError as error:
        raise click.ClickException(str(error)) from None
    if check:
        sys.exit(_check(data, lock, names, chosen, hub))
    outcomes = []
    for model in chosen:
        click.echo(f"… {model.name}", err=True)
        lock, found = pin_models(lock, [model], hub, anew=bool(names))
        outcomes += found
    if _wants(names, LLAMA):
        lock, outcome = _pin_llama(data, lock, anew=bool(names))
        outcomes.append(outcome)
    if _wants(names, IMAGES):
        lock, found = pin_images(lock, _images(data), RegistryClient(), anew=bool(names))
        outcomes += found
    write_lock(path, drop_strangers(lock, catalogue))
    _show(outcomes)
    faults = lock_faults(
        lock, shown(path), llama_ref=data.llama_ref, llama_commit=data.llama_commit, images=_images(data)
    )
    for fault in faults:
        click.echo(f"! {fault}")
    sys.exit(1 if any(outcome.state == "failed" for outcome in outcomes) else 0)


def _wants(names: tuple[str, ...], name: str) -> bool:
    return not names or name in names


def _choose(names: tuple[str, ...], catalogue: Catalogue) -> list[Model]:
    """The models that are named; all that are served when nothing is. Raises `BadInput`."""
    if not names:
        return list(catalogue.enabled)
    faults, chosen = [], []
    for name in names:
        if name in (LLAMA, IMAGES):
            continue
        model = catalogue.model(name)
        if model is None:
            known = {LLAMA: 0, IMAGES: 0, **{model.name: 0 for model in catalogue.models}}
            faults.append(Fault(name, f"no such model in {shown(catalogue.path)}", near_miss(name, known)))
        else:
            chosen.append(model)
    if faults:
        raise BadInput(faults)
    return chosen


def _images(data: BoxData) -> tuple[str, ...]:
    return (data.image_build_base, data.image_runtime_base, data.appliance_base)


def _pin_llama(data: BoxData, lock: Lock, *, anew: bool) -> tuple[Lock, Outcome]:
    """Commit and option lists; the lists are read again when one is of another commit."""

    def look_up(ref: str) -> str:
        return commit_of(data.llama_repository, ref)

    listed = str(PRESET_OPTIONS_FILE.relative_to(TOP))
    fresh, outcome = pin_llama(lock, data.llama_ref, listed, look_up, anew=anew)
    if fresh.llama_cpp is None:
        return fresh, outcome
    commit = fresh.llama_cpp.commit
    if (
        commit
        == load_preset_options(PRESET_OPTIONS_FILE).commit
        == load_cmake_options(CMAKE_OPTIONS_FILE).commit
    ):
        return fresh, outcome
    try:
        presets = read_options(data.llama_repository, ref=data.llama_ref, commit=commit)
        flags = read_cmake_options(data.llama_repository, ref=data.llama_ref, commit=commit)
    except LlamaSourceError as error:
        return lock, Outcome(LLAMA, "failed", str(error))
    write_options(PRESET_OPTIONS_FILE, presets)
    write_options(CMAKE_OPTIONS_FILE, flags)
    return fresh, Outcome(LLAMA, "pinned", f"{outcome.text}, its options are in {listed}")


def _check(data: BoxData, lock: Lock, names: tuple[str, ...], chosen: list[Model], hub: HubClient) -> int:
    outcomes = []
    for model in chosen:
        click.echo(f"… {model.name}", err=True)
        outcomes += models_moved(lock, [model], hub)
    if _wants(names, LLAMA):
        outcomes.append(llama_moved(lock, data.llama_ref, lambda ref: commit_of(data.llama_repository, ref)))
    if _wants(names, IMAGES):
        outcomes += images_moved(lock, _images(data), RegistryClient())
    _show(outcomes)
    states = {outcome.state for outcome in outcomes}
    return 1 if "failed" in states else 2 if "moved" in states else 0


def _show(outcomes: list[Outcome]) -> None:
    width = max((len(outcome.name) for outcome in outcomes), default=0)
    for outcome in outcomes:
        line = f"{SIGNS[outcome.state]} {outcome.name:<{width}}  {outcome.state:<6}  {outcome.text}"
        click.echo(line.rstrip())
