"""An old router's unit, container and arguments as data of a lane, and what a deploy changes on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gb10.adopt_docker import ANY_ADDRESS, Container
from gb10.adopt_environment import kept_environment
from gb10.adopt_paths import Place, usual_root
from gb10.adopt_report import HIDDEN, Kind, Note
from gb10.adopt_settings import Setting, whole_number
from gb10.adopt_unit import Launch
from gb10.boxdata import AUTO
from gb10.preset_options import PresetOptions

LLAMA_PORT, LLAMA_MODELS_MAX = 8080, 4
"""llama-server's own defaults."""

LOOPBACK = "127.0.0.1"
_ANY = (ANY_ADDRESS, "::", "[::]", "")
# Arguments that say what the lane says anyway, or that have no use in a router.
_SAME = frozenset(
    {"offline", "metrics", "log-colors", "log-timestamps", "log-prefix", "alias", "models-preset"}
)
# Arguments that are the router's own and have a variable: they go on as environment.
_AS_ENVIRONMENT = frozenset(
    {
        "timeout",
        "threads-http",
        "api-prefix",
        "cors-origins",
        "cors-methods",
        "cors-headers",
        "cors-credentials",
    }
    | {"sse-ping-interval", "slots", "props"}
)
_OF_THE_ROUTER = frozenset(
    {
        "host",
        "port",
        "models-dir",
        "models-max",
        "models-autoload",
        "api-key",
        "api-key-file",
        "device",
        "fit",
    }
    | {"ssl-key-file", "ssl-cert-file", "path", "reuse-port", "webui", "webui-config", "webui-config-file"}
    | {"webui-mcp-proxy", "log-file", "log-disable", "model", "hf-repo", "hf-file", "mmproj", "hf-token"}
)


@dataclass
class Found:
    """Data by its key, in the order to write, with the place of each; and the report."""

    notes: list[Note]
    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def take(self, key: str, value: object, where: str, what: str) -> None:
        """A value for the data."""
        self.values[key], self.places[key] = value, where
        self.notes.append(Note("taken", where, what, key))

    def note(self, kind: Kind, where: str, what: str, why: str) -> None:
        """A line of the report."""
        self.notes.append(Note(kind, where, what, why))


@dataclass(frozen=True)
class Old:
    """The old router as it was read. ``arguments`` and ``variables`` are its settings by option."""

    launch: Launch
    container: Container
    arguments: Mapping[str, Setting]
    variables: Mapping[str, Setting]

    @property
    def where(self) -> str:
        """``file:line`` of its command."""
        return f"{self.launch.file}:{self.launch.line}"

    def setting(self, key: str) -> Setting | None:
        """An option of the router: its command line wins over its environment."""
        return self.arguments.get(key) or self.variables.get(key)


def preset_arguments(arguments: Mapping[str, Setting]) -> dict[str, Setting]:
    """The arguments that the router hands to every model."""
    not_presets = _SAME | _AS_ENVIRONMENT | _OF_THE_ROUTER
    return {key: setting for key, setting in arguments.items() if key not in not_presets}


def lane_data(old: Old, options: PresetOptions, notes: list[Note]) -> Found:
    """The data of the lane, as far as unit, container and arguments tell it."""
    found = Found(notes)
    _name(old, found)
    _address(old, found)
    _key(old, found)
    _router(old, found)
    environment = kept_environment(old.container.environment, old.where, options, notes)
    environment |= _argument_variables(old, found)
    if environment:
        found.values["lane_environment"], found.places["lane_environment"] = environment, old.where
    for name in dict.fromkeys((*old.launch.open, *old.container.passed_on)):
        found.note("to do", old.where, name, "what it stands for is not in the file: see what it was for")
    return found


def file_data(found: Found, places: Sequence[Place], where: str, device: Setting | None) -> None:
    """The models folder, where else to look for files, and the device, from the preset file."""
    root = usual_root(places)
    if root and _deep(root):
        found.take("models_dir", root, where, f"the models are below {root}")
    folders = dict.fromkeys(place.search for place in places if place.search)
    search = [folder for folder in folders if folder and _deep(folder) and folder != root]
    if search:
        found.take("models_search", search, where, f"files in {', '.join(search)} are used in place")
    for high in dict.fromkeys(filter(None, (root, *folders))):
        if not _deep(high):
            why = "too near to / for a lane: move it (/srv/models), or its files come from the hub"
            found.note("to do", where, high, why)
    if device is None:
        return
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", device.value) and device.value != "none":
        found.take("accelerator_device", device.value, device.where, device.what)
    else:
        found.note("changed", device.where, device.what, "the lane has one device: accelerator_device")


def _deep(folder: str) -> bool:
    return len(PurePosixPath(folder).parts) >= 3


def _name(old: Old, found: Found) -> None:
    unit, container = old.launch.name, old.container.name
    wanted = unit or container
    name = re.sub(r"[^a-z0-9-]+", "-", wanted.lower()).strip("-")
    if not re.fullmatch(r"[a-z][a-z0-9-]+", name):
        return
    found.take("lane_name", name, old.where, f"unit {unit}" if unit else f"container {container}")
    if name != wanted:
        why = f"the lane is called {name}: stop and disable the old one before the deploy"
        found.note("to do", old.where, wanted, why)
    elif unit and container and container != unit:
        why = f"the lane's container is called {name}, like its unit; stop the old unit before the deploy"
        found.note("changed", old.where, f"container {container}", why)


def _address(old: Old, found: Found) -> None:
    container = old.container
    host, port = old.setting("host"), old.setting("port")
    inner = whole_number(port, 1) or LLAMA_PORT
    address, outer, what = host.value if host else LOOPBACK, inner, f"port {inner}"
    if container.image is not None and not container.host_network:
        published = sorted(container.published, key=lambda entry: entry.container_port != inner)
        if not published:
            found.note("changed", old.where, "no port is published", "the lane publishes lane_port")
            return
        address, outer = published[0].address, published[0].host_port
        what = f"published {address}:{outer}:{published[0].container_port}"
        for other in published[1:]:
            found.note("dropped", old.where, f"published port {other.host_port}", "a lane has one port")
    found.take("lane_port", outer, old.where, what)
    open_to_all, keyed = address in _ANY, old.setting("api-key") or old.setting("api-key-file")
    if open_to_all and not keyed:
        why = f"{LOOPBACK}: it was open to the network with no API key; to open it with one, set lane_address"
        found.note("changed", old.where, what, why)
    address = ANY_ADDRESS if open_to_all and keyed else LOOPBACK if open_to_all else address
    address = LOOPBACK if address == "localhost" else address
    if re.fullmatch(r"\d+(\.\d+){3}", address):
        found.take("lane_address", address, old.where, what)
    else:
        found.note("changed", old.where, what, "lane_address takes an IPv4 address; the port is on loopback")


def _key(old: Old, found: Found) -> None:
    key, file = old.setting("api-key"), old.setting("api-key-file")
    if key:
        why = "a key in the open: not taken; put it into api-key of lane_config_dir, or give out the new one"
        found.note("to do", key.where, f"api-key = {HIDDEN}", why)
    elif file is None:
        why = "the lane has one, made on the box: clients must send it (Authorization: Bearer ...)"
        found.note("changed", old.where, "no API key", why)
    elif PurePosixPath(file.value).name != "api-key":
        why = "copy it to api-key of lane_config_dir before the deploy, or clients need the new key"
        found.note("to do", file.where, file.what, why)


def _router(old: Old, found: Found) -> None:
    most = old.setting("models-max")
    number = whole_number(most, 0)
    where, what = (most.where, most.what) if most else (old.where, "models-max is not set")
    if number and number <= 64:
        found.take("lane_models_max", number, where, what)
    elif number == 0 or number:
        found.take("lane_models_max", AUTO, where, what)
        found.note("changed", where, what, f"{AUTO}: no limit is how memory runs out")
    else:
        found.take("lane_models_max", LLAMA_MODELS_MAX, where, f"{what}: llama.cpp's own default")
    for key, why in _NOT_CARRIED.items():
        setting = old.setting(key)
        if setting and not (key == "webui" and setting.value == "false"):
            found.note("dropped", setting.where, setting.what, why)
    page = old.setting("webui")
    if page is None or page.value != "false":
        found.note("changed", old.where, "web page of llama-server", "the lane serves the API only")


_NOT_CARRIED: Mapping[str, str] = {
    "models-autoload": "a lane loads on demand",
    "ssl-key-file": "end TLS in front of the lane",
    "ssl-cert-file": "end TLS in front of the lane",
    "path": "the lane serves the API only",
    "webui-config": "the lane serves the API only",
    "webui-config-file": "the lane serves the API only",
    "webui-mcp-proxy": "not in a lane: it reaches out for whoever asks",
    "log-file": "the journal has the log",
    "log-disable": "the journal has the log",
    "reuse-port": "one router has the port",
    "model": "a router takes no model: with one it serves only that; write it into the catalogue",
    "hf-repo": "a router takes no model; write it into the catalogue",
    "hf-file": "a router takes no model; write it into the catalogue",
    "mmproj": "a router takes no projector; write it into the catalogue",
    "fit": "`fit = off` stands in [*]",
}


def _argument_variables(old: Old, found: Found) -> dict[str, str]:
    """Arguments of the router itself as variables: the router and all its children read them."""
    return dict(_as_variables(old.arguments, found))


def _as_variables(arguments: Mapping[str, Setting], found: Found) -> Iterator[tuple[str, str]]:
    for key in sorted(_AS_ENVIRONMENT & set(arguments)):
        setting = arguments[key]
        names = [name for name in setting.option.names if name.startswith("LLAMA_ARG_")]
        names = [name for name in names if name not in setting.option.negated]
        if names:
            found.note("taken", setting.where, setting.what, f"lane_environment {names[0]}")
            yield names[0], setting.value
