"""The lab's catalogue with more entries in it, and the lock that belongs to it, for one test."""

from __future__ import annotations

from pathlib import Path

from gb10.catalogue import load_catalogue
from gb10.hub import HubClient
from gb10.lock import load_lock, write_lock
from gb10.pinning import pin_models
from gb10.preset_options import PRESET_OPTIONS_FILE, load_preset_options
from tests.lab import models, network, paths
from tests.lab.models import ModelSpec

CATALOGUE = paths.REPOSITORY / "tests/lab/models.yaml"
LOCK = paths.REPOSITORY / "tests/lab/models.lock"


def first_file(spec: ModelSpec) -> str:
    """File name of the model on the hub, of its first shard."""
    return models.ensure(spec)[0].name


def entry(spec: ModelSpec) -> str:
    """What a person writes to add the model."""
    return f"  {spec.name}:\n    repo: {spec.repo}\n    revision: main\n    file: {first_file(spec)}\n"


def extended(
    folder: Path, *specs: ModelSpec, hub: str = network.HUB_URL, token: str | None = None
) -> dict[str, object]:
    """Data of a deploy whose catalogue has these models too, pinned as `hub` has them."""
    catalogue, lock = folder / "models.yaml", folder / "models.lock"
    catalogue.write_text(CATALOGUE.read_text() + "".join(f"\n{entry(spec)}" for spec in specs))
    found = load_catalogue(catalogue, load_preset_options(PRESET_OPTIONS_FILE))
    pinned, outcomes = pin_models(load_lock(LOCK), found.enabled, HubClient(hub, token), anew=False)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    assert not failed, failed
    write_lock(lock, pinned)
    return {"catalogue": str(catalogue), "models_lock": str(lock)}
