"""The base of the appliance for hosts that convert models: Debian's PyTorch, and a package index in a folder.

It is large, so it is no part of the bare root: a host gets it when a test asks for it. The packages are those
of the box's own data at the same versions, fetched once by pip for the stand-in's Python.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from group_data.all import appliance_requirements
from tests.lab import disk, paths, recipe, roots
from tests.lab.errors import LabError
from tests.lab.host import LabHost
from tests.lab.progress import run_logged, say

# The Python of trixie on this machine's architecture.
_PYTHON = "3.13"
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
    "any",
)


def ensure() -> Path:
    """The root of today's recipe, made when absent (minutes)."""
    with disk.lock():
        return roots.ensure_torch(_furnish)


def give(host: LabHost) -> None:
    """The host's Docker has the base of today's recipe."""
    key = recipe.torch_root()
    label = f'{{{{index .Config.Labels "{recipe.LABEL}"}}}}'
    shown = f"docker image inspect --format '{label}' {recipe.TORCH_IMAGE}"
    if host.ssh(shown, sudo=True, check=False).stdout.strip() == key:
        return
    root = ensure()
    say(f"{host.name} gets {recipe.TORCH_IMAGE} (about 40 s)")
    line = f"sudo -n docker import --change 'LABEL {recipe.LABEL}={key}' - {recipe.TORCH_IMAGE}"
    with subprocess.Popen(
        ["tar", "-C", str(root), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE
    ) as packed:
        done = subprocess.run(
            [*host.ssh_command(), line],
            stdin=packed.stdout,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    if done.returncode or packed.returncode:
        raise LabError(f"{host.name}: docker import: {done.stderr.strip() or packed.returncode}")


def _furnish(root: Path) -> None:
    """Lay the wheels out as a package index does."""
    for wheel in sorted(_wheels().iterdir()):
        name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        folder = root / "opt/index/simple" / name
        folder.mkdir(parents=True)
        shutil.copyfile(wheel, folder / wheel.name)
        (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')


def _wheels() -> Path:
    final = paths.cache() / "wheels" / recipe.content_key(appliance_requirements, _PYTHON)
    if not final.exists():
        part = final.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            f"--python-version={_PYTHON}", *(f"--platform={name}" for name in _PLATFORMS),
            f"--dest={part}", *appliance_requirements,
        ]  # fmt: skip
        run_logged("packages of the appliance (about 30 s)", command, paths.logs() / "wheels.log", limit=600)
        part.replace(final)
    return final
