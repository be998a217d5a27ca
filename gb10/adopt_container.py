"""What of an old container and its unit a lane keeps, and what it does otherwise on purpose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from gb10.adopt_data import Found, Old
from gb10.adopt_paths import Places
from gb10.found import MOUNTS

# Flags of `docker run` that a lane has itself, or that say nothing about serving.
_SAME = frozenset(
    {"rm", "init", "detach", "interactive", "tty", "pull", "read-only", "tmpfs", "cap-drop", "security-opt"}
    | {"label", "hostname", "quiet", "sig-proxy", "workdir", "network", "log-driver", "log-opt"}
)
_OF_DATA = frozenset({"device", "gpus", "runtime", "privileged", "user", "pids-limit", "stop-timeout"})
_CDI = re.compile(r"[a-z0-9.-]+/[a-z0-9.-]+=[A-Za-z0-9:._-]+")
_OWN_STEPS = re.compile(
    r"\b(docker|podman)\b.*\b(rm|stop|kill|pull)\b|gb10_gate\.py|presets\.sha256|/bin/true"
)
_MEMORY = ("MemoryMax", "MemoryHigh", "MemoryLimit", "MemorySwapMax")


def container_data(old: Old, found: Found) -> None:
    """User, accelerator, limits and time to stop; the rest of the unit becomes lines of the report."""
    container = old.container
    if container.image is not None:
        _image(old, found)
        _accelerator(old, found)
        _user(old, found)
        _limits(old, found)
    else:
        why = "it runs in a container, with no rights but to its files and the accelerator"
        found.note("changed", old.where, "llama-server on the host itself", why)
    _unit(old, found)
    _volumes(old, found)


def found_folders(old: Old, found: Found, places: Places, models_dir: str) -> None:
    """Where the old router found models by itself: its models folder, and its Hugging Face cache."""
    mounts = dict(old.container.mounts)
    for kind, target in MOUNTS.items():
        if target in mounts:
            found.take(f"models_found_{kind}", mounts[target], old.where, f"{mounts[target]} as {target}")
    folder = old.setting("models-dir")
    if folder:
        path = places.on_host(folder.value)
        if _apart(path, models_dir):
            found.take("models_found_folder", path, folder.where, folder.what)
        else:
            why = (
                "the models folder holds the catalogue's files only; `gb10 models` lists what else lies there"
            )
            found.note("changed", folder.where, folder.what, why)
    cache = _cache(old)
    path = places.on_host(cache) if cache else ""
    if cache and (path != cache or old.container.image is None) and _apart(path, models_dir):
        found.take("models_found_cache", path, old.where, f"its Hugging Face cache {cache}")


def _cache(old: Old) -> str | None:
    """The cache as llama.cpp looks for it: the first of these variables, else the home's."""
    values = old.container.environment
    for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if name in values:
            return values[name]
    return f"{values['HF_HOME']}/hub" if "HF_HOME" in values else "/root/.cache/huggingface/hub"


def _apart(path: str, models_dir: str) -> bool:
    """Whether a folder can be one to find models in: deep enough, and not one with the models folder."""
    one, other = PurePosixPath(path), PurePosixPath(models_dir)
    return len(one.parts) >= 3 and not one.is_relative_to(other) and not other.is_relative_to(one)


def preset_path(old: Old) -> str | None:
    """The preset file as the router names it, or None."""
    setting = old.setting("models-preset")
    return setting.value if setting else None


def config_data(old: Old, found: Found, host_path: str | None) -> None:
    """The folder of the preset file, where it can be the lane's own."""
    if host_path is None:
        return
    path = PurePosixPath(host_path)
    if path.name == "models.ini" and len(path.parent.parts) >= 3 and path.parts[1] == "etc":
        found.take("lane_config_dir", str(path.parent), old.where, f"models-preset {host_path}")
    else:
        why = "the lane has its own preset file, models.ini of lane_config_dir; this one is not read any more"
        found.note("changed", old.where, host_path, why)


def _image(old: Old, found: Found) -> None:
    image = old.container.image or ""
    if not image.startswith("gb10/"):
        found.note("changed", old.where, f"image {image}", "llama.cpp of the pin, built on the box")
    if old.container.host_network:
        found.note("changed", old.where, "--network host", "the lane publishes its one port")
    if "privileged" in old.container.options:
        found.note("changed", old.where, "--privileged", "no rights but to its files and the accelerator")


def _accelerator(old: Old, found: Found) -> None:
    container = old.container
    devices = container.options.get("device", ())
    cdi = next((name for name in devices if _CDI.fullmatch(name)), None)
    if cdi:
        found.take("accelerator_cdi", cdi, old.where, f"--device {cdi}")
    for name in devices:
        if name != cdi:
            found.note("changed", old.where, f"--device {name}", "the accelerator is named by CDI only")
    hook = [f"--{flag} {value}" for flag in ("gpus", "runtime") for value in container.options.get(flag, ())]
    for what in hook:
        why = "by CDI: devices of the old hook are lost at a daemon-reload, and models fall to the CPU"
        found.note("changed", old.where, what, why)
    if not devices and not hook:
        why = "by CDI, and without it the lane does not start"
        found.note("changed", old.where, "no accelerator is named", why)


def _user(old: Old, found: Found) -> None:
    user = old.container.option("user")
    match = re.fullmatch(r"(\d+)(?::(\d+))?", user or "")
    if match and 1 <= int(match[1]) <= 60000 and match[2] in (None, match[1]):
        found.take("lane_user_id", int(match[1]), old.where, f"--user {user}")
    else:
        what = f"--user {user}" if user else "it runs as root in its container"
        found.note("changed", old.where, what, "user and group are lane_user_id")


def _limits(old: Old, found: Found) -> None:
    container = old.container
    pids = container.option("pids-limit")
    if pids and pids.isdigit() and int(pids) >= 64:
        found.take("lane_pids_limit", int(pids), old.where, f"--pids-limit {pids}")
    for name, values in container.options.items():
        if name in _SAME | _OF_DATA or (name == "restart" and old.launch.directives):
            continue
        for value in values:
            found.note("dropped", old.where, f"--{name} {value}".strip(), _WHY.get(name, _NO_SUCH))


_NO_SUCH = "a lane has no such option"
_WHY: Mapping[str, str] = {
    "restart": "systemd restarts the lane after a crash; a router that refuses stays down and says why",
    "memory": "allocations of the GPU escape it; the memory plan keeps the reserve",
    "memory-swap": "allocations of the GPU escape it; the memory plan keeps the reserve",
    "env-file": "write what it holds into lane_environment; secrets stay out of it",
    "publish-all": "a lane publishes its one port",
    "shm-size": "llama.cpp does not use it",
    "ipc": "llama.cpp does not use it",
    "ulimit": "llama.cpp does not need it: `load-mode` locks no memory",
    "cap-add": "a lane has no rights but to its files and the accelerator",
}


def _unit(old: Old, found: Found) -> None:
    launch = old.launch
    stop = [directive for directive in launch.values("ExecStop") if "stop" in directive.value]
    seconds = [re.search(r"(?:--time|--timeout|-t)[ =](\d+)", directive.value) for directive in stop]
    timeout = next((match[1] for match in seconds if match), None) or old.container.option("stop-timeout")
    if timeout and 1 <= int(timeout) <= 600:
        found.take("lane_stop_seconds", int(timeout), old.where, f"time to stop: {timeout} s")
    for key in ("ExecStartPre", "ExecStartPost", "ExecStopPost", "ExecReload"):
        for directive in launch.values(key):
            if not _OWN_STEPS.search(directive.value):
                where = f"{launch.file}:{directive.line}"
                found.note("dropped", where, f"{key}={directive.value}", "the lane's unit has its own steps")
    for directive in launch.directives:
        where, what = f"{launch.file}:{directive.line}", f"{directive.key}={directive.value}"
        if directive.key in _MEMORY:
            why = "it limits nothing: the container is not in the unit's cgroup; the memory plan does"
            found.note("dropped", where, what, why)
        elif directive.key == "Restart" and directive.value != "on-abnormal":
            why = "only a crash is worth another try; a router that refuses stays down and says why"
            found.note("changed", where, what, why)
        elif directive.key == "EnvironmentFile":
            why = "not read: write what the router needs into lane_environment; secrets stay out of it"
            found.note("to do", where, what, why)
        elif directive.key in ("User", "Group") and old.container.image is None:
            found.note("changed", where, what, "user and group are lane_user_id")


def _volumes(old: Old, found: Found) -> None:
    kept = {found.values.get("models_dir"), found.values.get("lane_config_dir")}
    searched = found.values.get("models_search")
    read = {value for key, value in found.values.items() if key.startswith("models_found_")}
    read |= set(searched) if isinstance(searched, list) else set()
    for inside, outside in old.container.mounts:
        if any(PurePosixPath(str(folder)).is_relative_to(outside) for folder in read):
            continue
        if outside in kept and inside == outside:
            continue
        if outside in kept:
            found.note("changed", old.where, f"{outside} as {inside}", "the same path inside and outside")
        else:
            why = "a lane mounts models_dir and lane_config_dir, and nothing else"
            found.note("dropped", old.where, f"--volume {outside}:{inside}", why)
