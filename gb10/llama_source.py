"""llama.cpp's repository, asked with git: the commit of a ref, and the option lists of a commit.

Only the wanted files travel, where the server knows how (partial clone); a server that does not sends one
commit's tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gb10.cmake_source import CMAKE_FILE, options_from_cmake
from gb10.option_source import options_from_source

OPTIONS_IN = "common/arg.cpp"


class LlamaSourceError(Exception):
    """The repository cannot say it: one line."""


def commit_of(repository: str, ref: str) -> str:
    """The commit that a tag or branch stands for now. Raises `LlamaSourceError`."""
    # An annotated tag is an object of its own: ^{} is the commit behind it.
    patterns = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
    listed = {}
    for line in _git("ls-remote", "--", repository, *patterns, timeout=60).splitlines():
        commit, _, name = line.partition("\t")
        listed[name] = commit
    for pattern in patterns:
        if pattern in listed:
            return listed[pattern]
    raise LlamaSourceError(f"{repository}: no tag or branch {ref}: check `llama_ref`")


def read_options(repository: str, *, ref: str, commit: str) -> dict[str, object]:
    """The preset options of a commit, read from its source. Raises `LlamaSourceError`."""
    with _fetched(repository, commit) as folder:
        source = _git("-C", folder, "show", f"{commit}:{OPTIONS_IN}", timeout=120)
    try:
        return options_from_source(source, ref=ref, commit=commit)
    except ValueError as error:
        raise LlamaSourceError(f"{repository}: {OPTIONS_IN} of {commit[:12]}: {error}") from None


def read_cmake_options(repository: str, *, ref: str, commit: str) -> dict[str, object]:
    """The build options of a commit, read from its CMake files. Raises `LlamaSourceError`."""
    with _fetched(repository, commit) as folder:
        paths = _git("-C", folder, "ls-tree", "-r", "--name-only", commit, timeout=120).splitlines()
        files = {
            path: _git("-C", folder, "show", f"{commit}:{path}", timeout=120)
            for path in paths
            if CMAKE_FILE.fullmatch(path)
        }
    try:
        return options_from_cmake(files, ref=ref, commit=commit)
    except ValueError as error:
        raise LlamaSourceError(f"{repository}: {commit[:12]}: {error}") from None


@contextmanager
def _fetched(repository: str, commit: str) -> Iterator[str]:
    """A folder with a bare repository that has ``commit`` and fetches its files when they are asked for."""
    with tempfile.TemporaryDirectory(prefix="gb10-pin-") as folder:
        _git("init", "--quiet", "--bare", folder)
        _git("-C", folder, "remote", "add", "origin", repository)
        _git("-C", folder, "config", "remote.origin.promisor", "true")
        _git("-C", folder, "config", "remote.origin.partialclonefilter", "blob:none")
        fetch = ("fetch", "--quiet", "--depth", "1", "--no-tags", "--filter=blob:none", "origin", commit)
        _git("-C", folder, *fetch, timeout=600)
        yield folder


def render_options(options: Mapping[str, object]) -> str:
    """An option list as the text that is committed: one option a line."""
    rows = options["options"]
    assert isinstance(rows, list)
    head = {key: value for key, value in options.items() if key != "options"}
    listed = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "options": [\n{listed}\n ]\n}}\n'


def write_options(path: Path, options: Mapping[str, object]) -> None:
    """Writes the option list so that an interrupted write leaves the old file."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(render_options(options), encoding="utf-8")
    fresh.replace(path)


def _git(*arguments: str, timeout: float = 30) -> str:
    """Runs git without any prompt and returns what it prints."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except FileNotFoundError:
        raise LlamaSourceError("git is not installed: install it") from None
    except subprocess.TimeoutExpired:
        raise LlamaSourceError(f"git {arguments[0]}: no answer in {timeout:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LlamaSourceError(f"git: {last}")
    return done.stdout
