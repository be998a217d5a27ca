"""Model files: every file of the catalogue, checked by size and sha256 before it gets its name."""

from __future__ import annotations

from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.desired import Desired
from gb10.facts.models import ModelFiles
from gb10.facts.shared import look
from gb10.fetch_progress import FetchProgress
from gb10.operations import Commands, detached, placed
from gb10.stages import stage

_PROGRAM = "gb10_fetch.py"


@stage("models")
def fetch(box: Desired) -> None:
    """Nothing is ever deleted here, and a file that is right is never fetched again."""
    placed.file(name="models: downloader", placed=box.program_files[_PROGRAM])
    placed.file(name="models: list of files", placed=box.fetch_manifest_file)
    fetched(name="models: files", box=box)


def fetch_job(box: Desired) -> detached.Job:
    """The download as a job that outlives the connection."""
    return detached.Job(
        title="model files",
        unit="gb10-models.service",
        folder=f"{box.data.state_dir}/models",
        command=("python3", box.program_files[_PROGRAM].path, box.fetch_manifest_file.path),
    )


@operation()
def fetched(box: Desired) -> Commands:
    """All files are there and proven."""
    program = box.program_files[_PROGRAM].content
    if not look(host, ModelFiles, program=program, manifest=box.fetch_manifest)["ok"]:
        yield from detached.commands(fetch_job(box), FetchProgress())
