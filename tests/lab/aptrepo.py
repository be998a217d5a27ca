"""The stand-in of NVIDIA's package repository: its paths, names and versions, and the lab's own key."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.lab import paths, recipe
from tests.lab.errors import LabError
from tests.lab.progress import say

# Two versions, so that a deploy that forgets to pin one of the four packages gets the wrong one.
VERSIONS = ("1.19.1-1", "1.20.0-1")
ARCHITECTURE = "amd64"
_PARTS = paths.STANDINS / "toolkit"
_KEY_NAME = "gb10 lab stand-in repository"
_EPOCH = "1767225600"  # 2026-01-01, so that the same files make the same packages


@dataclass(frozen=True)
class Package:
    """A package: what it depends on (`{v}`: its own version) and its files as (stand-in, folder, mode)."""

    name: str
    depends: str
    files: tuple[tuple[str, str, int], ...] = ()
    scripts: tuple[str, ...] = ()


PACKAGES = (
    Package("libnvidia-container1", "libc6"),
    Package(
        "libnvidia-container-tools",
        "libc6, libnvidia-container1 (>= {v})",
        (("nvidia-container-cli", "usr/bin", 0o755),),
    ),
    Package(
        "nvidia-container-toolkit-base",
        "python3",
        (
            ("nvidia-ctk", "usr/bin", 0o755),
            ("nvidia-container-runtime", "usr/bin", 0o755),
            ("nvidia-cdi-refresh.service", "usr/lib/systemd/system", 0o644),
            ("nvidia-cdi-refresh.path", "usr/lib/systemd/system", 0o644),
        ),
        ("postinst", "prerm"),
    ),
    Package(
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base (= {v}), libnvidia-container-tools (>= {v})",
    ),
)


def ensure() -> Path:
    """The folder to serve as /libnvidia-container, made when absent."""
    final = paths.cache() / "apt" / recipe.content_key(_PARTS, Path(__file__))
    if not final.exists():
        say("make the stand-in package repository")
        part = final.with_name(final.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        flat = part / "stable/deb" / ARCHITECTURE
        flat.mkdir(parents=True)
        for version in VERSIONS:
            for package in PACKAGES:
                _build(package, version, flat)
        _index(flat)
        _sign(flat, part / "gpgkey")
        part.replace(final)
    return final


def _build(package: Package, version: str, flat: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        for source, folder, mode in package.files:
            _fill(source, version, root / folder / source, mode)
        for script in package.scripts:
            _fill(script, version, root / "DEBIAN" / script, 0o755)
        control = (
            f"Package: {package.name}\nVersion: {version}\nArchitecture: {ARCHITECTURE}\n"
            "Section: utils\nPriority: optional\nMaintainer: gb10 lab <lab@localhost>\n"
            f"Depends: {package.depends.format(v=version)}\n"
            f"Description: stand-in for {package.name}\n"
            " For test hosts without an NVIDIA GPU; holds nothing of NVIDIA's.\n"
        )
        (root / "DEBIAN").mkdir(exist_ok=True)
        (root / "DEBIAN/control").write_text(control)
        _run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(flat)])


def _fill(source: str, version: str, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    text = (_PARTS / source).read_text().replace("@VERSION@", version.partition("-")[0])
    target.write_text(text)
    target.chmod(mode)


def _index(flat: Path) -> None:
    stanzas = []
    for deb in sorted(flat.glob("*.deb")):
        control = _run(["dpkg-deb", "--field", str(deb)]).rstrip("\n")
        content = deb.read_bytes()
        stanzas.append(
            f"{control}\nFilename: ./{deb.name}\nSize: {len(content)}\n"
            f"MD5sum: {hashlib.md5(content, usedforsecurity=False).hexdigest()}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    packages = "\n".join(stanzas).encode()
    (flat / "Packages").write_bytes(packages)
    (flat / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))
    lines = [
        "Origin: gb10 lab", "Label: stand-in of libnvidia-container", "Suite: stable",
        f"Architectures: {ARCHITECTURE}", f"Date: {formatdate(usegmt=True)}", "SHA256:",
    ]  # fmt: skip
    for name in ("Packages", "Packages.gz"):
        content = (flat / name).read_bytes()
        lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
    (flat / "Release").write_text("\n".join(lines) + "\n")


def _sign(flat: Path, public: Path) -> None:
    home = paths.cache() / "gnupg"
    home.mkdir(mode=0o700, exist_ok=True)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback"]
    gpg += ["--passphrase", ""]  # the key signs nothing but the lab's own repository
    try:
        if not _run([*gpg, "--list-secret-keys", "--with-colons"]):
            _run([*gpg, "--quick-generate-key", _KEY_NAME, "rsa3072", "sign", "never"])
        _run([*gpg, "--clearsign", "--output", str(flat / "InRelease"), str(flat / "Release")])
        release = [str(flat / "Release.gpg"), str(flat / "Release")]
        _run([*gpg, "--armor", "--detach-sign", "--output", *release])
        public.write_text(_run([*gpg, "--armor", "--export", _KEY_NAME]))
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)


def _run(command: list[str]) -> str:
    stable = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=stable)
    if done.returncode:
        raise LabError(f"{' '.join(command[:2])} failed: {done.stderr.strip()}")
    return done.stdout
