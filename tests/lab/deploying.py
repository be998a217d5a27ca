"""Running the deploy against a lab host as a person would: the real command, its output, its exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gb10.desired import Desired
from gb10.inventory import desired, load_inventory
from tests.lab import paths
from tests.lab.errors import LabError
from tests.lab.host import LabHost
from tests.lab.progress import say

INVENTORY = Path("tests/lab/inventory.py")
PYINFRA = Path(sys.executable).with_name("pyinfra")
_OUTCOME = re.compile(r"^\s+\[[^\]]+\]\s+(No changes|Success|Error)")
# A cold build of llama.cpp on two cores, with room.
LIMIT_SECONDS = 2400
# Built images that are kept, newest first.
KEEP_IMAGES = 2


def description(host: LabHost) -> Desired:
    """What the project's data says of this host."""
    hosts = load_inventory(paths.REPOSITORY / INVENTORY)
    found = hosts.get_host(host.name)
    return desired(found)


def command(host: LabHost, *options: str, data: Mapping[str, object] | None = None) -> list[str]:
    """The pyinfra command line; ``data`` overrides keys of the group data."""
    overrides = [f"{key}={json.dumps(value)}" for key, value in (data or {}).items()]
    line = [str(PYINFRA), str(INVENTORY), "deploy.py", "--limit", host.name, *options]
    for override in overrides:
        line += ["--data", override]
    return line


def deploy(
    host: LabHost,
    *options: str,
    data: Mapping[str, object] | None = None,
    top: Path = paths.REPOSITORY,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The deploy with ``-y``; standard output and error come together in ``stdout``. ``top`` is the
    repository that is deployed, ``env`` more environment."""
    return subprocess.run(
        command(host, "-y", *options, data=data),
        cwd=top,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env={**os.environ, "PYINFRA_PROGRESS": "off", "PYTHONPATH": str(top), **(env or {})},
    )


def gb10(host: LabHost, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A ``gb10`` command about this host, as a person runs it; output and errors together in ``stdout``."""
    line = [str(PYINFRA.with_name("gb10")), command, *arguments]
    return subprocess.run(
        [*line, "--host", host.name, "--inventory", str(INVENTORY)],
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def outcomes(output: str) -> dict[str, str]:
    """Operation name to ``Success``, ``No changes`` or ``Error``, read from pyinfra's output."""
    found: dict[str, str] = {}
    name = ""
    for line in output.splitlines():
        if line.startswith("--> Starting operation: "):
            name = line.removeprefix("--> Starting operation: ").strip()
        elif name and (word := _OUTCOME.search(line)):
            found[name] = word[1]
    return found


def changed(output: str) -> list[str]:
    """Names of the operations that did something."""
    return [name for name, word in outcomes(output).items() if word == "Success"]


# -- images that this machine has built before ----------------------------------------------------------


def _kept(tag: str) -> Path:
    return paths.cache() / "images" / f"{tag.replace('/', '_').replace(':', '_')}.tar"


def keep_image(host: LabHost, image: str) -> None:
    """Keep the image that the host has built, for hosts to come; its tag is the hash of what went in."""
    kept = _kept(image)
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(".part")
    with part.open("wb") as stream:
        line = [*host.ssh_command(), f"sudo -n docker save {image}"]
        subprocess.run(line, stdin=subprocess.DEVNULL, stdout=stream, check=True, timeout=300)
    part.replace(kept)
    by_age = sorted(kept.parent.glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_age[KEEP_IMAGES:]:
        old.unlink()


def give_image(host: LabHost, image: str) -> bool:
    """Load a kept image into the host's Docker; False when this machine has not built it yet."""
    kept = _kept(image)
    if not kept.exists():
        return False
    say(f"{host.name} gets {image}, which this machine has built before")
    kept.touch()
    with kept.open("rb") as stream:
        line = [*host.ssh_command(), "sudo -n docker load --quiet"]
        done = subprocess.run(line, stdin=stream, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise LabError(f"{host.name}: docker load: {done.stderr.strip()}")
    return True
