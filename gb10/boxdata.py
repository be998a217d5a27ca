"""The data of one box (group_data and inventory), typed and checked.

`read_box_data` is the only way in: it finds every fault of the data at once and says for each in
which file and line the key stands. What is derived from the data is in `gb10.desired`.
"""

from __future__ import annotations

import ast
import difflib
import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from gb10.faults import BadInput, Fault

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


def assignments(paths: Iterable[Path], top: Path) -> dict[str, str]:
    """Where each top-level name is set: name to ``file:line``; a later file wins.

    Paths are shown relative to ``top`` where they lie below it. A file that cannot be read or parsed
    is passed over: whoever loads it says so better.
    """
    places: dict[str, str] = {}
    for path in paths:
        try:
            tree = ast.parse(path.read_text())
        except (OSError, SyntaxError):
            continue
        shown = path.relative_to(top) if path.is_relative_to(top) else path
        for node in tree.body:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    places[target.id] = f"{shown}:{node.lineno}"
    return places


def own_data(data: Mapping[str, object], connection_keys: frozenset[str]) -> dict[str, object]:
    """``data`` without pyinfra's own keys: of its connector (ssh_user, ...) and arguments (_sudo, ...)."""
    return {
        key: value for key, value in data.items() if not key.startswith("_") and key not in connection_keys
    }


def _lists_as_tuples(value: object) -> object:
    # Data files are written with lists; the checked data is frozen.
    if isinstance(value, list):
        return tuple(_lists_as_tuples(item) for item in value)
    return value


def read_box_data(
    data: Mapping[str, object],
    *,
    host: str,
    places: Mapping[str, str],
    connection_keys: frozenset[str] = frozenset(),
) -> BoxData:
    """Check the merged data of ``host`` and return it typed.

    ``places`` says where a key is set (see `assignments`), ``connection_keys`` are those that belong
    to pyinfra. Raises `BadInput` with every fault found.
    """
    own = own_data(data, connection_keys)
    clashes = [
        Fault(f"{_place(key, host, places)} {key}", what, "change one of the two")
        for key, what in _clashes(own)
    ]
    try:
        checked = BoxData.model_validate({key: _lists_as_tuples(value) for key, value in own.items()})
    except ValidationError as error:
        faults = [_fault(detail, host, places) for detail in error.errors(include_url=False)]
        raise BadInput(faults + clashes) from None
    if clashes:
        raise BadInput(clashes)
    return checked


# Environment of the container that must not be set a second time: the lane would serve from the CPU, or
# have its key in the unit file.
_OWN_VARIABLES = {"LLAMA_ARG_DEVICE": "accelerator_device", "LLAMA_API_KEY": "the key is a file on the box"}


def _clashes(own: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Rules over several keys: the key, and what it clashes with. Passes over what has another shape."""
    environment = own.get("lane_environment")
    for variable, key in _OWN_VARIABLES.items():
        if isinstance(environment, Mapping) and variable in environment:
            yield "lane_environment", f"{variable} is set by the deploy itself ({key})"
    port, lane = own.get("lane_port"), own.get("lane_name")
    lanes_out = own.get("lanes_out")
    total, reserve = own.get("memory_total_mib"), own.get("memory_reserve_mib")
    if isinstance(total, int) and isinstance(reserve, int) and reserve >= total:
        yield "memory_reserve_mib", f"{reserve} of {total} MiB in memory_total_mib leaves nothing for models"
    watched = own.get("watch_memory_reserve_mib")
    if isinstance(watched, int) and isinstance(reserve, int) and watched > reserve:
        yield (
            "watch_memory_reserve_mib",
            f"{watched} is more than memory_reserve_mib ({reserve}): a plan that fits would be unloaded",
        )
    models_dir = own.get("models_dir")
    for key in ("models_found_cache", "models_found_folder"):
        found = own.get(key)
        if found and isinstance(found, str) and isinstance(models_dir, str):
            both = {Path(found), Path(models_dir)}
            # A path that is too short has its own fault.
            if min(len(path.parts) for path in both) > 2 and (len(both) == 1 or _nested(*both)):
                yield key, f"{found} and models_dir ({models_dir}) lie in each other"
    for old in lanes_out if isinstance(lanes_out, (list, tuple)) else ():
        if not isinstance(old, Mapping):
            continue
        if "port" in old and old["port"] == port:
            yield "lane_port", f"{port} is also the port of {old.get('unit')} in lanes_out"
        # What lanes_out names is taken out by every deploy.
        for kind, name in (("unit", f"{lane}.service"), ("container", lane)):
            if kind in old and old[kind] == name:
                yield "lane_name", f"the {kind} {name} is listed in lanes_out: it cannot be both"


def _nested(one: Path, other: Path) -> bool:
    return one in other.parents or other in one.parents


def _place(key: str, host: str, places: Mapping[str, str]) -> str:
    return places.get(key, f"data of host {host}")


# What pydantic calls a wrong type, in the words of a data file.
_TYPES = {
    "int_type": ("is not a whole number", "write it without quotes"),
    "string_type": ("is not text", "put it in quotes"),
    "tuple_type": ("is not a list", "write [...], also for a single entry"),
    "dict_type": ("is not a mapping", "write {name: value}"),
    "model_type": ("is not a mapping", "write {name: value}"),
    "model_attributes_type": ("is not a mapping", "write {name: value}"),
}

_BOUNDS = (
    ("ge", "too small", "it must be at least"),
    ("gt", "too small", "it must be more than"),
    ("le", "too large", "it must be at most"),
)


def _fault(detail: Any, host: str, places: Mapping[str, str]) -> Fault:
    key = str(detail["loc"][0])
    tags = ("file", "peer") if key == "accelerator_signal" else ()
    location = [str(part) for part in detail["loc"] if part not in (*tags, "[key]")]
    where = f"{_place(key, host, places)} {'.'.join(location)}"
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "union_tag_not_found":
        return Fault(f"{where}.kind", "is missing", "set it to 'file' or 'peer'")
    if kind == "missing":
        if len(location) > 1:
            return Fault(where, "is missing", f"add {location[-1]!r}")
        return Fault(where, "is missing", f"set {key} in group_data or for the host in the inventory")
    if kind == "union_tag_invalid":
        return Fault(f"{where}.kind", f"{context['tag']!r} is not known", "set it to 'file' or 'peer'")
    if kind == "extra_forbidden":
        known = list(BoxData.model_fields) if len(location) == 1 else _nested_keys(key)
        near = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "remove it, or see group_data/all.py for the keys"
        return Fault(where, "is not a known key", hint)
    if kind in _TYPES:
        what, do = _TYPES[kind]
        return Fault(where, f"{given!r} {what}", do)
    if kind == "string_pattern_mismatch":
        return Fault(where, f"{given!r} is not allowed", f"must match {context['pattern']}")
    if kind == "too_short":
        return Fault(where, "is empty", f"name at least {context['min_length']}")
    for bound, what, do in _BOUNDS:
        if bound in context:
            return Fault(where, f"{given} is {what}", f"{do} {context[bound]}")
    message = str(detail["msg"]).removeprefix("Value error, ")
    return Fault(where, f"{given!r} {message[:1].lower()}{message[1:]}", "correct the value")


def _nested_keys(key: str) -> list[str]:
    models: dict[str, tuple[type[BaseModel], ...]] = {
        "lanes_out": (OldLane,),
        "accelerator_signal": (FileSignal, PeerSignal),
        "image_build_proofs": (BuildProof,),
        "drift_ignore": (IgnoredDrift,),
    }
    return [name for model in models.get(key, ()) for name in model.model_fields]
