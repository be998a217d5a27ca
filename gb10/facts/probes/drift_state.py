"""What a plan of operations cannot see of a box, in one look: see DriftState in gb10/facts/drift.py.

The deploy also puts this file on the box, for the nightly look: it is the same look.
"""

from __future__ import annotations

import glob
import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

from gb10.facts.probes._container import Docker, container_of, process_environment
from gb10.facts.probes._deploy_lock import deploy_lock
from gb10.facts.probes._marks import content, digest, file_state, key_state
from gb10.facts.probes._others_file import others_text
from gb10.facts.probes._since_start import key_newer, models_newer
from gb10.facts.probes._strangers import native_tables, open_ports, vllm_processes

LIMIT_SECONDS = 60
# What need not be on a box, or on every one: without it the fact is that nothing is known. That apt cannot
# read its lists is a reading of its own.
OPTIONAL = ("policy", "driver", "input", "user", "input6", "user6", "nft")
# Where an administrator's drop-ins lie, read by systemd already or not.
UNIT_FOLDERS = (
    "/etc/systemd/system", "/etc/systemd/system.control", "/run/systemd/system",
    "/run/systemd/system.control", "/run/systemd/transient", "/usr/local/lib/systemd/system",
)  # fmt: skip
FIREWALL_FILES = ("/etc/ufw/ufw.conf", "/etc/ufw/user.rules", "/etc/nftables.conf", "/etc/iptables/rules.v4")
UNIT = (
    "LoadState,ActiveState,UnitFileState,NeedDaemonReload,FragmentPath,DropInPaths,NRestarts,"
    "ExecMainStartTimestampMonotonic"
)


def outputs(commands: dict[str, list[str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Standard output of commands that run side by side, and why those failed that did: missing, without an
    end, or ended with an error. What failed has no output, and may not pass for "none"."""
    running, failed = {}, {}
    for name, command in commands.items():
        try:
            running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            failed[name] = str(error.strerror)
    found = dict.fromkeys(commands, "")
    for name, process in running.items():
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            failed[name] = f"no end within {LIMIT_SECONDS} s"
            continue
        # Some end so when there is nothing to list, and say nothing.
        if process.returncode and (errors.strip() or output.strip()):
            failed[name] = (errors.strip() or output.strip()).splitlines()[-1]
        elif not process.returncode:
            found[name] = output
    return found, {name: f"{' '.join(commands[name][:2])}: {why}" for name, why in failed.items()}


def age_of(path: str) -> float | None:
    """Seconds since the file was written, None where there is none."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return None


def age_since(monotonic: str) -> float | None:
    """Seconds since a time that systemd gives in microseconds since boot, None for never."""
    if not monotonic.isdigit() or monotonic == "0":
        return None
    return time.clock_gettime(time.CLOCK_MONOTONIC) - int(monotonic) / 1e6


def stopped_by_watch(path: str) -> bool:
    """True where the watch says that it has stopped the lane, since nothing else helped."""
    try:
        reasons = json.loads(others_text(path)).get("reasons", [])
        return any(reason["key"] == "lane.stopped" for reason in reasons)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


# -- the router ------------------------------------------------------------------------------------------


def router_models(host: str, port: int, key_file: str) -> dict[str, dict[str, str]]:
    """Each model's settings as the router runs it. Loads nothing. Raises OSError where it does not answer."""
    key = (content(key_file) or b"").decode(errors="replace").strip()
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        # Never as a query that loads: /models only lists.
        connection.request("GET", "/models", headers={"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"GET /models answered {response.status}")
        return settings_of(json.loads(response.read()))
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise OSError(f"GET /models: {type(error).__name__}") from None


def settings_of(answer: Any) -> dict[str, dict[str, str]]:
    """Model name to its keys, with its other names as ``alias``, from the answer of ``/models``."""
    found = {}
    for model in answer["data"]:
        lines = (line.split(" = ", 1) for line in model["status"]["preset"].splitlines() if " = " in line)
        found[str(model["id"])] = {**dict(lines), "alias": ",".join(sorted(model.get("aliases") or []))}
    return found


# -- units, packages, disks, models ----------------------------------------------------------------------


def drop_ins(units: list[str], loaded: list[str] | None = None) -> dict[str, str]:
    """Digest of each drop-in of the units: of those that systemd has read, and of those that it will."""
    lying = [glob.glob(f"{folder}/{unit}.d/*.conf") for folder in UNIT_FOLDERS for unit in units]
    paths = {*(loaded or []), *(path for found in lying for path in found)}
    return {path: digest(content(path) or b"") for path in sorted(paths)}


def would_move(policy: str) -> dict[str, list[str]]:
    """Package to [installed, candidate] where apt's next upgrade would move it: ``apt-cache policy``."""
    found, package, installed = {}, "", ""
    for line in policy.splitlines():
        word, _, value = line.strip().partition(": ")
        if line and not line[0].isspace():
            package = line.rstrip(":")
        elif word == "Installed":
            installed = value
        elif word == "Candidate" and value != installed and installed != "(none)":
            found[package] = [installed, value]
    return found


def found_at(*places: str) -> list[str]:
    """Every file at, or directly below, the places (with wildcards)."""
    tops = [path for place in places for path in glob.glob(place)]
    inside = [path for top in tops for path in glob.glob(f"{top}/*")]
    return sorted(path for path in {*tops, *inside} if os.path.isfile(path))


def disk_of(path: str) -> list[int]:
    """[bytes free, bytes in all] of the disk that ``path`` lies on."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    figures = os.statvfs(path)
    return [figures.f_bavail * figures.f_frsize, figures.f_blocks * figures.f_frsize]


def models_state(paths: list[str], models_dir: str, deep: bool) -> dict[str, str]:
    """Digest of each model file: as it was read once (size, mtime and inode say whether it is still that
    one), read anew if ``deep``; "unverified" or "missing" where there is none."""
    try:
        known = json.loads(content(f"{models_dir}/.gb10-verified.json") or b"{}")
    except ValueError:
        known = {}
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found[path] = "missing"
            continue
        mark = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
        entry = known.get(path) or {}
        same = all(entry.get(name) == value for name, value in mark.items())
        found[path] = str(entry.get("sha256")) if same else "unverified"
        if deep:
            with open(path, "rb") as file:
                read = hashlib.sha256()
                while chunk := file.read(8 << 20):
                    read.update(chunk)
            found[path] = read.hexdigest()
    return found


# -- all together --------------------------------------------------------------------------------------------


def rolled_back(folder: str) -> dict[str, Any] | None:
    """The last change of the lane, where that was a rollback: its number and time."""
    for line in reversed((content(f"{folder}/changes.jsonl") or b"").decode(errors="replace").splitlines()):
        try:
            entry = json.loads(line)
            if entry["what"] in ("kept", "back"):
                back = {"number": int(entry["number"]), "time": str(entry["time"])}
                return back if entry["what"] == "back" else None
        except (ValueError, KeyError, TypeError):
            continue
    return None


def first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def main(question: dict[str, Any]) -> dict[str, Any]:
    docker, lane = Docker(), question["lane"]
    said, failed = outputs(
        {
            "driver": ["timeout", "20", "nvidia-smi"],
            "policy": ["apt-cache", "policy", *question["packages"]],
            "unit": ["systemctl", "show", f"--property={UNIT}", question["unit"]],
            "timer": [
                "systemctl", "show", f"--property={UNIT},ActiveEnterTimestampMonotonic", "gb10-drift.timer"
            ],
            "night": ["systemctl", "show", "--property=Result", "gb10-drift.service"],
            "units": ["systemctl", "list-units", "--all", "--plain", "--no-legend", "*vllm*"],
            "unit_files": ["systemctl", "list-unit-files", "--plain", "--no-legend", "*vllm*"],
            "sockets": ["ss", "-Hltnp"],
            "input": ["iptables", "-S", "INPUT"],
            "user": ["iptables", "-S", "DOCKER-USER"],
            "input6": ["ip6tables", "-S", "INPUT"],
            "user6": ["ip6tables", "-S", "DOCKER-USER"],
            "nft": ["nft", "--stateless", "list", "ruleset"],
        }
    )  # fmt: skip
    unit, timer = properties(said["unit"]), properties(said["timer"])
    info, inspected = docker.ask("/info") or {}, docker.ask(f"/containers/{lane}/json")
    image = docker.ask(f"/images/{question['image']}/json")
    container, environment = None, {}
    if inspected is not None:
        # Its own image, which the tag may no longer name.
        container = container_of(inspected, docker.ask(f"/images/{inspected['Image']}/json"), info)
        if inspected["State"].get("Pid"):
            environment = process_environment(inspected["State"]["Pid"], question["environment"])
    models, error = {}, ""
    try:
        models = router_models(question["host"], question["port"], question["key"])
    except OSError as reason:
        error = str(reason)
    old = {line.split()[0] for line in (said["units"] + said["unit_files"]).splitlines() if line.split()}
    containers = [
        f"{entry['Names'][0].lstrip('/')} ({entry['Image']})"
        for entry in docker.ask("/containers/json") or []
        if "vllm" in f"{entry['Names']} {entry['Image']} {entry['Command']}".lower()
        and entry["Names"][0].lstrip("/") not in question["containers_out"]
    ]
    files = {path: file_state(path) for path in question["paths"]}
    rules = [text for path in FIREWALL_FILES if (text := (content(path) or b"").decode(errors="replace"))]
    facts: dict[str, Any] = {
        "lanes: old lanes": sorted(old & set(question["units_out"])),
        "lanes: vLLM units": sorted(old - set(question["units_out"])),
        "lanes: vLLM containers": sorted(containers),
        "lanes: vLLM processes": vllm_processes(),
        "toolkit: packages": dict(re.findall(r"^(\S+):\n\s+Installed: (\S+)", said["policy"], re.MULTILINE)),
        "toolkit: daemon.json": file_state("/etc/docker/daemon.json"),
        "toolkit: keyring": file_state(question["keyring"]),
        "toolkit: apt sources": {path: file_state(path) for path in found_at("/etc/apt/sources.list*")},
        "toolkit: CDI specs": found_at("/etc/cdi", "/var/run/cdi"),
        "image: id": (image or {}).get("Id", ""),
        "router: unit": {
            "enabled": unit.get("UnitFileState", ""),
            "active": unit.get("ActiveState", ""),
            "loaded": unit.get("LoadState", ""),
            "file": unit.get("FragmentPath", ""),
            "needs_reload": unit.get("NeedDaemonReload", "no"),
        },
        "router: drop-ins": drop_ins([question["unit"]], unit.get("DropInPaths", "").split()),
        **{f"{stage}: drop-ins": drop_ins(units) for stage, units in question["units"].items()},
        "router: container": container,
        "router: process environment": environment,
        "router: presets read": first(
            r"([0-9a-f]{64})", (content(f"/run/{lane}/presets.sha256") or b"").decode()
        ),
        "router: API key": key_state(question["key"]),
        "record: timer": {
            "enabled": timer.get("UnitFileState", ""),
            "active": timer.get("ActiveState", ""),
            "loaded": timer.get("LoadState", ""),
            "needs_reload": timer.get("NeedDaemonReload", "no"),
        },
        "box: driver": first(r"Driver Version: (\S+)", said["driver"]),
        "box: CUDA": first(r"CUDA Version: (\S+)", said["driver"]),
        "box: kernel": os.uname().release,
        "box: Docker": str(info.get("ServerVersion", "")),
        "box: firewall": [
            *(line for name in ("input", "user") for line in said[name].splitlines()),
            *(f"IPv6 {line}" for name in ("input6", "user6") for line in said[name].splitlines()),
            *native_tables(said["nft"]),
            *map(digest, rules),
        ],
        "box: open ports": open_ports(said["sockets"]),
    }
    started = unit.get("ExecMainStartTimestampMonotonic", "0")
    digests = models_state(question["models"], question["models_dir"], bool(question.get("deep")))
    facts |= {f"models: {path}": state for path, state in digests.items()}
    facts |= {
        f"router: model {name}": digest(json.dumps(keys, sort_keys=True)) for name, keys in models.items()
    }
    try:
        record = json.loads(content(question["record"]) or b"null")
    except ValueError:
        record = None
    reboot = content("/run/reboot-required.pkgs") or b""
    oom = first(r"oom_kill (\d+)", (content("/proc/vmstat") or b"").decode())
    return {
        "facts": facts,
        "files": files,
        "models": models,
        "models_error": error,
        "readings": {
            "boot": (content("/proc/sys/kernel/random/boot_id") or b"").decode().strip(),
            "kernel": time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
            "time": time.time(),
            "oom_kills": int(oom or 0),
            "restarts": int(unit.get("NRestarts") or 0),
            "stopped_by_watch": stopped_by_watch(question.get("watch_status", "")),
            "disks": {path: disk_of(path) for path in question["disks"]},
            "reboot": sorted(set(reboot.decode().split()))
            if os.path.exists("/run/reboot-required")
            else None,
            "would_move": would_move(said["policy"]),
            "apt": failed.get("policy", ""),
            "rolled_back": rolled_back(question.get("generations", "")),
            "night": {
                "unit": properties(said["night"]).get("Result", ""),
                "result": age_of(question.get("night", "")),
                "deploy": age_of(question["record"]),
                "timer": age_since(timer.get("ActiveEnterTimestampMonotonic", "0")),
            },
        },
        "record": record if isinstance(record, dict) else None,
        "record_state": file_state(question["record"]),
        "key_newer": key_newer(question["key"], started),
        "models_newer": models_newer(question["models_dir"], started),
        "lock": deploy_lock(),
        "failed": [why for name, why in failed.items() if name not in OPTIONAL],
    }


if __name__ == "__main__":
    try:
        print(json.dumps(main(json.loads(sys.argv[1]))))
    except OSError as failure:
        # Docker does not answer, a disk is gone: nothing here may pass for "nothing there".
        sys.exit(f"the box cannot be looked at: {failure}")
