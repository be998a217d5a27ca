"""Toolkit, apt sources and CDI: see ToolkitState in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import time


def run(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def installed(listing: str) -> dict[str, str]:
    """Package to version from ``dpkg-query`` lines ``package status version``; only what is installed."""
    found = {}
    for line in listing.splitlines():
        name, state, version = [*line.split("\t"), "", ""][:3]
        # Wanted or on hold (the first letter), and installed as a whole.
        if state.rstrip() in ("ii", "hi"):
            found[name] = version
    return found


# What apt takes for "no".
_OFF = re.compile(r"^Enabled:\s*(no|false|without|off|disable)\s*$", re.MULTILINE | re.IGNORECASE)


def names_repository(content: str, repository: str) -> bool:
    """True when a source that is switched on names ``repository`` in its URI, in either format."""
    lines = [line for line in content.splitlines() if not line.lstrip().startswith("#")]
    # Each stanza of a deb822 file is switched off by itself; a one-line source has no such field.
    stanzas = re.split(r"\n[ \t]*\n", "\n".join(lines))
    return any(repository in stanza and not _OFF.search(stanza) for stanza in stanzas)


def rivals(repository: str, own: str) -> dict[str, str]:
    paths = ["/etc/apt/sources.list"]
    paths += sorted(
        glob.glob("/etc/apt/sources.list.d/*.list") + glob.glob("/etc/apt/sources.list.d/*.sources")
    )
    contents = {path: read(path) for path in paths if path != own}
    return {path: text for path, text in contents.items() if names_repository(text, repository)}


def fingerprints(listing: str) -> list[str]:
    """Fingerprints of the primary keys in ``gpg --show-keys --with-colons``."""
    found, primary = [], False
    for line in listing.splitlines():
        fields = line.split(":")
        if fields[0] in ("pub", "sub"):
            primary = fields[0] == "pub"
        elif fields[0] == "fpr" and primary:
            found.append(fields[9])
    return found


def docker_stale() -> bool:
    """True when daemon.json was written after dockerd started."""
    wanted = "--property=ExecMainStartTimestampMonotonic"
    shown = run("systemctl", "show", "docker.service", wanted, "--value").strip()
    if not shown.isdigit() or shown == "0":
        return False
    started = time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - int(shown) / 1e6)
    try:
        return os.stat("/etc/docker/daemon.json").st_mtime > started
    except OSError:
        return False


def spec_of(device: str) -> str:
    """The CDI spec file that names the device ``vendor/class=name``; empty when there is none."""
    kind, _, name = device.partition("=")
    for folder in ("/var/run/cdi", "/etc/cdi"):
        for path in sorted(glob.glob(f"{folder}/*.yaml") + glob.glob(f"{folder}/*.json")):
            text = read(path)
            has_kind = re.search(rf"""["']?kind["']?\s*:\s*["']?{re.escape(kind)}["'\s,]""", text)
            if has_kind and re.search(rf"""["']?name["']?\s*:\s*["']?{re.escape(name)}["'\s,]""", text):
                return path
    return ""


def main(question: dict[str, object]) -> dict[str, object]:
    packages = [str(name) for name in question["packages"]]  # type: ignore[attr-defined]
    daemon = "/etc/docker/daemon.json"
    spec = spec_of(str(question["cdi"]))
    kind = str(question["cdi"]).partition("=")[0].replace("/", "-")
    copies = glob.glob("/etc/cdi/nvidia.*") if spec.startswith("/var/run/cdi") and "nvidia" in kind else []
    return {
        "installed": installed(
            run(
                "dpkg-query",
                "--show",
                "--showformat",
                "${Package}\t${db:Status-Abbrev}\t${Version}\n",
                *packages,
            )
        ),
        "rivals": rivals(str(question["repository"]), str(question["source"])),
        "fingerprints": fingerprints(run("gpg", "--show-keys", "--with-colons", str(question["keyring"]))),
        "daemon": read(daemon) if os.path.exists(daemon) else None,
        "docker_stale": docker_stale(),
        "docker_cdi": run("docker", "info", "--format", "{{json .CDISpecDirs}}").strip()
        not in ("", "null", "[]"),
        "cdi_spec": spec,
        "stale_spec": copies[0] if copies else "",
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
