"""Resolves names to pins: model files, llama.cpp's ref, image tags; and says which of them moved.

Nothing is written here. Each pin is an `Outcome`, so that one model that the hub refuses does not stand in
the way of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from gb10.catalogue import Catalogue, Model
from gb10.conversion import make_command
from gb10.faults import Fault
from gb10.fetch_manifest import missing
from gb10.hub import HubClient, HubError, resolve_model
from gb10.llama_source import LlamaSourceError
from gb10.lock import LlamaCpp, Lock, LockedFile
from gb10.registry import Image, RegistryError, parse_image

LLAMA = "llama.cpp"
IMAGES = "images"

State = Literal["same", "pinned", "moved", "failed", "left"]


@dataclass(frozen=True)
class Outcome:
    """What became of one pin. ``left``: not pinned, on purpose; ``text`` says why."""

    name: str
    state: State
    text: str


class DigestSource(Protocol):
    """What knows the digest of an image's tag (`gb10.registry.RegistryClient`)."""

    def digest(self, image: Image) -> str: ...


def needs_pin(model: Model, lock: Lock) -> bool:
    """True when a file of the model is not locked to the byte, or its GGUF header is not known yet."""
    if any(missing(file, lock) for file in model.hub_files):
        return True
    return (
        bool(model.weights and not model.conversion)
        and lock.files[model.weights[0].repo, model.weights[0].file].header is None
    )


def pin_models(
    lock: Lock, models: Sequence[Model], hub: HubClient, *, anew: bool
) -> tuple[Lock, list[Outcome]]:
    """The lock with the files of ``models``. ``anew``: ask also for what is known, and move on with a branch;
    else only what is missing is asked for, at the commit that the lock has already."""
    outcomes = []
    for model in models:
        if not model.hub_files:
            what = "the catalogue names no repository"
            if model.conversion:
                what = f"made at home, no file of a hub: `{make_command(model)}`"
            outcomes.append(Outcome(model.name, "left", what))
            continue
        if not anew and not needs_pin(model, lock):
            outcomes.append(Outcome(model.name, "same", "pinned"))
            continue
        known = {repo: entry.revision for (repo, _), entry in lock.files.items()}
        try:
            files = resolve_model(hub, model, {} if anew else known)
        except HubError as error:
            outcomes.append(Outcome(model.name, "failed", str(error)))
            continue
        changed = any(lock.files.get((entry.repo, entry.file)) != entry for entry in files)
        lock = lock.with_files(files)
        outcomes.append(Outcome(model.name, "pinned" if changed else "same", _summary(files)))
    return lock, outcomes


def _summary(files: Sequence[LockedFile]) -> str:
    size = sum(entry.size or 0 for entry in files) / 1e9
    commits = ", ".join(sorted({f"{entry.repo}@{entry.revision[:12]}" for entry in files}))
    return f"{len(files)} file{'s' if len(files) != 1 else ''}, {size:.2f} GB, {commits}"


def drop_strangers(lock: Lock, catalogue: Catalogue) -> Lock:
    """The lock without files that no model of the catalogue names any more. What was made at home stays: no
    hub could say it again."""
    named = {(file.repo, file.file) for model in catalogue.models for file in model.files}
    return replace(
        lock, files={key: entry for key, entry in lock.files.items() if key in named or entry.recipe}
    )


def models_moved(lock: Lock, models: Sequence[Model], hub: HubClient) -> list[Outcome]:
    """For each model: is what the hub has at the catalogue's revision (or ``main``) what the lock has?"""
    outcomes = []
    for model in models:
        lines = []
        try:
            for file in model.hub_files:
                revision = file.revision or "main"
                now, then = hub.locked(file.repo, revision, file.file), lock.files.get((file.repo, file.file))
                if then is None or then.sha256 is None:
                    lines.append(f"{file.file} is not pinned yet: `gb10 pin {model.name}`")
                elif now.sha256 != then.sha256:
                    lines.append(f"{file.file} at {revision} is now {_short(now)}, pinned is {_short(then)}")
        except HubError as error:
            outcomes.append(Outcome(model.name, "failed", str(error)))
            continue
        outcomes.append(Outcome(model.name, "moved" if lines else "same", "; ".join(lines)))
    return outcomes


def _short(file: LockedFile) -> str:
    return f"sha256 {(file.sha256 or '')[:12]}, {file.size} bytes, commit {file.revision[:12]}"


def pin_llama(
    lock: Lock, ref: str, options: str, commit_of: Callable[[str], str], *, anew: bool
) -> tuple[Lock, Outcome]:
    """The lock with llama.cpp's commit. ``options``: the option list's path in the repository."""
    known = lock.llama_cpp
    if known and known.ref == ref and not anew:
        return lock, Outcome(LLAMA, "same", f"{ref} = {known.commit[:12]}")
    try:
        commit = commit_of(ref)
    except LlamaSourceError as error:
        return lock, Outcome(LLAMA, "failed", str(error))
    fresh = LlamaCpp(ref, commit, options)
    return replace(lock, llama_cpp=fresh), Outcome(
        LLAMA, "same" if fresh == known else "pinned", f"{ref} = {commit}"
    )


def llama_moved(lock: Lock, ref: str, commit_of: Callable[[str], str]) -> Outcome:
    """Does llama.cpp's ref still stand for the commit that the lock has?"""
    if lock.llama_cpp is None or lock.llama_cpp.ref != ref:
        return Outcome(LLAMA, "moved", f"{ref} is not pinned yet: `gb10 pin {LLAMA}`")
    try:
        now = commit_of(ref)
    except LlamaSourceError as error:
        return Outcome(LLAMA, "failed", str(error))
    if now != lock.llama_cpp.commit:
        return Outcome(LLAMA, "moved", f"{ref} is now {now}, pinned is {lock.llama_cpp.commit}")
    return Outcome(LLAMA, "same", f"{ref} = {now[:12]}")


def pin_images(
    lock: Lock, references: Iterable[str], registry: DigestSource, *, anew: bool
) -> tuple[Lock, list[Outcome]]:
    """The lock with the digests of images. A digest that the data carry is taken as it is, unless ``anew``;
    an image without one is one that the box has already (built, imported): it is looked up only ``anew``."""
    digests, outcomes = {}, []
    for reference in dict.fromkeys(references):
        image = parse_image(reference)
        digest = image.digest
        if anew:
            try:
                digest = registry.digest(image)
            except RegistryError as error:
                outcomes.append(Outcome(image.name, "failed", str(error)))
                digest = image.digest or lock.images.get(image.name)
                if digest:
                    digests[image.name] = digest
                continue
        if digest is None:
            outcomes.append(Outcome(image.name, "left", "no digest in the data: taken as it is on the box"))
            continue
        digests[image.name] = digest
        state: State = "same" if lock.images.get(image.name) == digest else "pinned"
        outcomes.append(Outcome(image.name, state, digest))
    return replace(lock, images=digests), outcomes


def images_moved(lock: Lock, references: Iterable[str], registry: DigestSource) -> list[Outcome]:
    """Does each pinned image's tag still stand for its digest?"""
    outcomes = []
    for image in (parse_image(reference) for reference in dict.fromkeys(references)):
        pinned = lock.images.get(image.name)
        if image.digest is None and pinned is None:
            outcomes.append(Outcome(image.name, "left", "no digest in the data: taken as it is on the box"))
            continue
        try:
            now = registry.digest(image)
        except RegistryError as error:
            outcomes.append(Outcome(image.name, "failed", str(error)))
            continue
        text = now if now == pinned else f"is now {now}, pinned is {pinned or 'nothing'}"
        outcomes.append(Outcome(image.name, "same" if now == pinned else "moved", text))
    return outcomes


def lock_faults(
    lock: Lock, name: str, *, llama_ref: str, llama_commit: str, images: Collection[str]
) -> list[Fault]:
    """Where the data and the lock name different things. ``name``: the lock file's, for the messages."""
    faults = []
    known = lock.llama_cpp
    if known is None or known.ref != llama_ref:
        what = f"has llama.cpp {known.ref}" if known else "has no llama.cpp"
        faults.append(Fault(f"{name} {LLAMA}", f"{what}, the data say {llama_ref}", f"`gb10 pin {LLAMA}`"))
    elif known.commit != llama_commit:
        what = f"{llama_ref} is {known.commit}, the data say {llama_commit}"
        faults.append(Fault(f"{name} {LLAMA}", what, "set `llama_commit` to the lock's commit"))
    for image in map(parse_image, images):
        pinned = lock.images.get(image.name)
        if image.digest and image.digest != pinned:
            what = f"{image.name} is {pinned or 'not pinned'}, the data say {image.digest}"
            faults.append(Fault(f"{name} {IMAGES}", what, "`gb10 pin`, or correct the data"))
    return faults
