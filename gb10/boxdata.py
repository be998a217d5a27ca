"""The data of one box (group_data and inventory), typed: one field for each key.

`gb10.boxdata_source` reads and checks it; what is derived from it is in `gb10.desired`.
"""

from __future__ import annotations

import ipaddress
import json
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
)

# lane_models_max: as many as surely fit.
AUTO = "auto"


def _single_line(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    if value != value.strip() or any(character in value for character in "\n\r\0"):
        raise ValueError("must be one line without spaces at its ends")
    return value


def _absolute(value: str) -> str:
    # It stands in a shell's line, in a unit, between the colons of docker's --volume, and in the preset file,
    # where ; and # begin a comment.
    if not re.fullmatch(r"/[\w/.+=@,-]*", value) or ".." in value.split("/"):
        raise ValueError("must be an absolute path without .. and without signs but . _ + = @ , -")
    return value.rstrip("/") or "/"


def _not_too_high(value: str) -> str:
    # A path this short would hand the whole disk, or the system, to an operation that sets an owner.
    if len(Path(value).parts) < 3:
        raise ValueError("must lie at least two folders below /")
    return value


def _seen_by_the_lane(value: str) -> str:
    # It has the same path in the container, and there too /root is closed to all but root.
    if Path(value).parts[1:2] == ("root",):
        raise ValueError("must not lie in /root, which the server's own user may not enter")
    return value


def _fetchable(value: str) -> str:
    if not re.fullmatch(
        r"(https?|git|ssh|file)://[^\s\"'`$\\]*[^\s\"'`\\]", value.replace("$(ARCH)", "ARCH")
    ):
        raise ValueError("must be a URL (https://, http://, git://, ssh:// or file://)")
    return value


def _url_or_nothing(value: str) -> str:
    return _fetchable(_single_line(value)) if value else value


def _address(value: str) -> str:
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("must be an IPv4 address") from None
    return value


def _models_max(value: int | str) -> int | str:
    # The router takes 0 for no limit at all.
    if value != AUTO and (isinstance(value, str) or not 1 <= value <= 64):
        raise ValueError(f"must be a whole number from 1 to 64, or {AUTO!r}")
    return value


def _path_or_nothing(value: str) -> str:
    return _absolute(value) if value else value


def _mounted_or_nothing(value: str) -> str:
    if "," in value:
        raise ValueError("must have no comma: docker run --mount ends the path there")
    return _not_too_high(value) if value else value


def _json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"must be what JSON can say ({error})") from None
    return value


def _day(value: str) -> str:
    try:
        date.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a day: YYYY-MM-DD") from None
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression ({error})") from None
    return value


Line = Annotated[str, AfterValidator(_single_line)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]+$")]
ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)*$")]
ImageReference = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9_./:-]*(@sha256:[0-9a-f]{64})?$")
]
AbsolutePath = Annotated[str, AfterValidator(_absolute), AfterValidator(_not_too_high)]
MountedPath = Annotated[AbsolutePath, AfterValidator(_seen_by_the_lane)]
FolderOrNothing = Annotated[str, AfterValidator(_path_or_nothing), AfterValidator(_mounted_or_nothing)]
Url = Annotated[str, AfterValidator(_single_line), AfterValidator(_fetchable)]
UrlOrNothing = Annotated[str, AfterValidator(_url_or_nothing)]
# To one version: another one would be another image under the same tag.
Requirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*==[0-9][\w.+-]*$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
Flag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Address = Annotated[str, AfterValidator(_address)]
Hex40 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


# A space at its end may be part of what is looked for.
Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]
WatchAction = Literal["restart-lost", "restart-hung", "unload", "stop-crash-loop"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OldLane(_Frozen):
    """A serving unit of an earlier time, to be taken out: its unit, container and TCP port."""

    unit: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@-]+\.service$")]
    container: Name
    port: Port


class IgnoredDrift(_Frozen):
    """A difference that `gb10 drift` does not count: ``item`` as it shows it, why, who answers for it, and
    the day (``YYYY-MM-DD``) from which on it counts again."""

    item: Line
    reason: Line
    owner: Line
    expires: Annotated[str, AfterValidator(_day)]


class FileSignal(_Frozen):
    """A model is on the accelerator when its process has ``path`` mapped or open."""

    kind: Literal["file"]
    path: Annotated[str, AfterValidator(_absolute)]


class PeerSignal(_Frozen):
    """A model is on the accelerator when its process has a TCP connection to ``port``."""

    kind: Literal["peer"]
    port: Port


class BuildProof(_Frozen):
    """A shell command of the build stage; its output must match ``expect``, a regular expression of CMake."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]*$")]
    command: Line
    expect: Line


class BoxData(_Frozen):
    """All data of one box. The comments in group_data/all.py say what each key is for."""

    state_dir: AbsolutePath
    program_dir: AbsolutePath

    lanes_out: tuple[OldLane, ...]

    toolkit_version: Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+~:-]*$")]
    toolkit_packages: Annotated[tuple[Package, ...], Field(min_length=1)]
    toolkit_apt_url: Url
    toolkit_key_url: Url
    toolkit_key_fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]
    docker_daemon: Annotated[dict[str, Any], AfterValidator(_json)]

    image_name: ImageName
    llama_repository: Url
    llama_ref: Line
    llama_commit: Hex40
    image_build_base: ImageReference
    image_runtime_base: ImageReference
    image_build_packages: tuple[Package, ...]
    image_runtime_packages: tuple[Package, ...]
    image_cmake_targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    image_cmake_flags: dict[Flag, Line]
    image_accelerator_flags: dict[Flag, Line]
    image_build_prepare: tuple[Line, ...]
    image_runtime_prepare: tuple[Line, ...]
    image_build_proofs: tuple[BuildProof, ...]
    image_driver_stubs: Annotated[str, AfterValidator(_path_or_nothing)]
    image_system_info: tuple[Line, ...]
    image_keep: Annotated[int, Field(ge=2, le=50)]
    rollback_on_failure: bool
    image_build_jobs: Annotated[int, Field(ge=0, le=512)]

    appliance_name: ImageName
    appliance_base: ImageReference
    appliance_free_gib: Annotated[int, Field(ge=0)]
    appliance_packages: Annotated[tuple[Package, ...], Field(min_length=1)]
    appliance_index: UrlOrNothing
    appliance_torch_index: UrlOrNothing
    appliance_torch: Requirement
    appliance_requirements: tuple[Requirement, ...]

    catalogue: Line
    models_lock: Line
    models_dir: MountedPath
    models_hub: Url
    models_token_file: Annotated[str, AfterValidator(_path_or_nothing)]
    models_parallel: Annotated[int, Field(ge=1, le=16)]
    models_reserve_gib: Annotated[int, Field(ge=0)]
    models_search: tuple[AbsolutePath, ...]
    models_found_cache: FolderOrNothing
    models_found_folder: FolderOrNothing

    lane_name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]+$")]
    lane_config_dir: MountedPath
    lane_address: Address
    lane_port: Port
    lane_user_id: Annotated[int, Field(ge=1, le=60000)]
    lane_models_max: Annotated[int | str, AfterValidator(_models_max)]
    memory_total_mib: Annotated[int, Field(gt=0)]
    memory_reserve_mib: Annotated[int, Field(ge=0)]
    memory_overhead_mib: Annotated[int, Field(ge=0)]
    lane_pids_limit: Annotated[int, Field(ge=64)]
    lane_stop_seconds: Annotated[int, Field(ge=1, le=600)]
    lane_environment: dict[EnvironmentName, Line]

    accelerator_device: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    accelerator_cdi: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+=[A-Za-z0-9:._-]+$")]
    accelerator_signal: Annotated[FileSignal | PeerSignal, Field(discriminator="kind")]
    accelerator_wait_seconds: Annotated[int, Field(ge=0, le=600)]

    open_ports: tuple[Port, ...]
    drift_ignore: tuple[IgnoredDrift, ...]
    drift_disk_percent: Annotated[int, Field(ge=1, le=100)]
    drift_calendar: Line
    notify_command: tuple[Line, ...]

    watch_interval_seconds: Annotated[int, Field(ge=1, le=30)]
    watch_probe: Annotated[tuple[Line, ...], Field(min_length=1)]
    watch_probe_expect: Pattern
    watch_probe_seconds: Annotated[int, Field(ge=1, le=3600)]
    watch_processes: tuple[Line, ...]
    watch_processes_allowed: tuple[Pattern, ...]
    watch_rivals: tuple[Pattern, ...]
    watch_kernel_log: Annotated[str, AfterValidator(_absolute)]
    watch_memory_reserve_mib: Annotated[int, Field(ge=0)]
    watch_pressure_percent: Annotated[float, Field(gt=0, le=100)]
    watch_slow_ratio: Annotated[float, Field(gt=0, lt=1)]
    watch_canary_seconds: Annotated[int, Field(ge=0)]
    watch_canary_tokens: Annotated[int, Field(ge=8, le=1024)]
    watch_baselines: Line
    watch_actions: tuple[WatchAction, ...]
    watch_restarts_an_hour: Annotated[int, Field(ge=1, le=10)]
    watch_backoff_seconds: Annotated[int, Field(ge=1, le=600)]
    watch_crash_restarts: Annotated[int, Field(ge=2, le=100)]
    watch_settle_seconds: Annotated[int, Field(ge=0, le=900)]
    watch_clear_seconds: Annotated[int, Field(ge=0, le=600)]
    watch_webhook_file: Annotated[str, AfterValidator(_path_or_nothing)]

    minimum_python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]+$")]
    minimum_free_gib: Annotated[int, Field(ge=0)]
    expect_architecture: Line
    expect_os: tuple[Line, ...]
    expect_compute_capability: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
