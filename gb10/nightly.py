"""What the nightly look on the box is told (files/gb10_drift.py): who hears of it, what does not count, and
how `gb10 drift` names what it finds. It stands in a file of its own: where the record of the last deploy is
damaged, somebody must still hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gb10 import watch_config

if TYPE_CHECKING:
    from gb10.boxdata import BoxData
    from gb10.desired import Desired


def settings(box: Desired, own: Sequence[str]) -> dict[str, Any]:
    """The content of the file; ``own`` are the paths of the look's own files."""
    data = box.data
    secrets = (box.key_path, data.models_token_file, data.watch_webhook_file)
    return {
        "notify_command": list(data.notify_command),
        "ignore": [entry.model_dump() for entry in data.drift_ignore],
        "disk_percent": data.drift_disk_percent,
        "open_ports": allowed_ports(data),
        "names": names(box, own),
        "secrets": [path for path in secrets if path],
    }


def allowed_ports(data: BoxData) -> list[str]:
    """TCP ports that may be open on all addresses."""
    lane = [data.lane_port] if data.lane_address == "0.0.0.0" else []  # noqa: S104
    return [str(port) for port in sorted({*data.open_ports, *lane})]


def names(box: Desired, own: Sequence[str]) -> dict[str, str]:
    """Path, or fact of the look, to the operation that puts it right: `gb10 drift` names it so."""
    data, programs = box.data, box.program_files
    source, pin = (placed.path for placed in box.toolkit_files)
    watch = (*(programs[name] for name in watch_config.PROGRAMS), *box.watch_files)
    return {
        source: "toolkit: apt source",
        pin: "toolkit: version pin",
        "toolkit: packages": f"toolkit: packages {data.toolkit_version}",
        programs["gb10_gate.py"].path: "image: gb10_gate.py",
        programs["gb10_image.py"].path: "image: gb10_image.py",
        box.dockerfile_file.path: "image: Dockerfile",
        box.image_file.path: "image: description",
        "image: id": "image: the tag is the deploy's",
        programs["gb10_fetch.py"].path: "models: downloader",
        box.fetch_manifest_file.path: "models: list of files",
        programs["gb10_router.py"].path: "router: gb10_router.py",
        programs["gb10_history.py"].path: "router: gb10_history.py",
        programs["gb10_generations.py"].path: "router: gb10_generations.py",
        **{folder: f"router: {folder}" for folder in box.folders},
        box.presets_path: "router: presets",
        box.lane_path: "router: lane description",
        box.unit_file.path: f"router: {box.unit}",
        "router: presets read": "router: runs what is described",
        f"box: open port {data.lane_port}": f"router: open port {data.lane_port}",
        **{placed.path: "watch: programs, settings and units" for placed in watch},
        **{path: f"record: {path.rpartition('/')[2]}" for path in own},
        "record: timer": "record: a look each night",
    }
