"""Models beside the catalogue's: see FoundModels in gb10/facts/found.py for question and answer.

Of each file only the beginning is read: its metadata up to the token list, some tens of KB. What llama.cpp's
tools write of the architecture comes before that list; a file with another order is read on behind it.
Format: ``ggml/include/gguf.h`` of llama.cpp. Which files are parts of a model and no model of their own, and
how a cached one is called: ``common/download.cpp`` there.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from typing import Any, BinaryIO

SHARD = re.compile(r"^(.+)-(\d{5})-of-(\d{5})\.gguf$")
HELPERS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")
COMMIT = re.compile(r"^[0-9a-fA-F]{40}$")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MOST_KEYS, LONGEST_KEY, LONGEST_TEXT, LONGEST_LIST = 65_536, 65_535, 65_536, 8_192
BUFFER = 1 << 16


class Passed(Exception):
    """This file is not served; the text says why."""


class Head:
    """Reads one header, front to back, skipping what nobody asks for."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def take(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) < count:
            raise Passed("it is cut off inside its header")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def skip(self, count: int) -> None:
        if self.file.tell() + count > self.size:
            raise Passed("it is cut off inside its header")
        # Within what is read already a seek costs nothing, and over a long list it saves reading it.
        self.file.seek(count, os.SEEK_CUR)

    def text(self, most: int) -> str | None:
        """A text, or None where it is longer than anybody needs."""
        count = self.number("Q")
        if count > most:
            self.skip(count)
            return None
        return self.take(count).decode("utf-8", errors="replace")

    def array(self) -> tuple[int, int]:
        kind, count = self.number("I"), self.number("Q")
        if kind != STRING and kind not in SCALARS:
            raise Passed("its header is damaged")
        if count > self.size:
            raise Passed("its header is damaged")
        return kind, count


def read_header(path: str) -> dict[str, Any]:
    """The header as the lock keeps one (weight_bytes and shards are the caller's). Raises Passed."""
    try:
        with open(path, "rb", buffering=BUFFER) as file:
            return _read(Head(file, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise Passed(f"it cannot be read: {error.strerror}") from None


def _read(head: Head) -> dict[str, Any]:
    if head.take(4) != b"GGUF":
        raise Passed("it is no GGUF file")
    if head.number("I") not in (2, 3):
        raise Passed("its version of the format is not known")
    tensors, keys = head.number("Q"), head.number("Q")
    if keys > MOST_KEYS:
        raise Passed("its header is damaged")
    metadata: dict[str, Any] = {}
    tokens = 0
    for _ in range(keys):
        key = head.text(LONGEST_KEY)
        if key is None:
            raise Passed("its header is damaged")
        kind = head.number("I")
        if kind == STRING:
            value: Any = head.text(LONGEST_TEXT)
        elif kind in SCALARS:
            value = head.number(SCALARS[kind])
        elif kind == ARRAY:
            inner, count = head.array()
            if key == "tokenizer.ggml.tokens":
                tokens = count
                # All that is asked for has come: the long lists stay unread.
                if f"{metadata.get('general.architecture')}.block_count" in metadata:
                    break
            value = _listed(head, inner, count)
        else:
            raise Passed("its header is damaged")
        if value is not None:
            metadata[key] = value
    architecture = metadata.get("general.architecture")
    kind_of = metadata.get("general.type", "model")
    if kind_of != "model" or architecture == "clip":
        raise Passed(f"it is no model of its own, but: {kind_of if kind_of != 'model' else 'projector'}")
    if not isinstance(architecture, str) or not tensors:
        raise Passed("it holds no weights" if not tensors else "it does not say its architecture")
    wanted = ("general.architecture", "general.name", "general.type")
    kept = {
        key: metadata[key] for key in sorted(metadata) if key.startswith(architecture + ".") or key in wanted
    }
    return {
        "architecture": architecture,
        "metadata": kept,
        "vocabulary": tokens or kept.get(f"{architecture}.vocab_size", 0),
    }


def _listed(head: Head, kind: int, count: int) -> list[Any] | None:
    if kind == STRING:
        for _ in range(count):
            head.skip(head.number("Q"))
        return None
    code = SCALARS[kind]
    if count > LONGEST_LIST:
        head.skip(count * struct.calcsize("<" + code))
        return None
    values = head.take(count * struct.calcsize("<" + code))
    return list(struct.unpack(f"<{count}{code}", values))


# -- places ---------------------------------------------------------------------------------------------


def ref_of(repository: str) -> str:
    """The commit whose snapshot counts: that of main, else of any branch, else the newest snapshot."""
    refs, snapshots = os.path.join(repository, "refs"), os.path.join(repository, "snapshots")
    names = sorted(names_in(refs), key=lambda name: (name != "main", name))
    for name in names:
        try:
            with open(os.path.join(refs, name), encoding="ascii") as file:
                commit = file.readline().strip()
        except (OSError, ValueError):
            continue
        if COMMIT.match(commit) and os.path.isdir(os.path.join(snapshots, commit)):
            return commit
    commits = [name for name in names_in(snapshots) if COMMIT.match(name)]
    return max(commits, key=lambda name: (os.stat(os.path.join(snapshots, name)).st_mtime, name), default="")


def names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def ggufs_below(folder: str) -> list[str]:
    """Paths of all GGUF files, relative to the folder."""
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
    return sorted(name for name in found if name.endswith(".gguf"))


def is_model(file: str) -> bool:
    """Whether a GGUF is a model of its own by its name: no part of one, and no shard but the first."""
    shard = SHARD.match(file)
    name = os.path.basename(file)
    return not any(word in name for word in HELPERS) and (shard is None or int(shard[2]) == 1)


def shards_of(file: str) -> list[str]:
    shard = SHARD.match(file)
    if shard is None:
        return [file]
    return [f"{shard[1]}-{number:05d}-of-{shard[3]}.gguf" for number in range(1, int(shard[3]) + 1)]


def stem_of(file: str) -> str:
    shard = SHARD.match(file)
    return shard[1] if shard else file[: -len(".gguf")]


def bits(file: str) -> int:
    """Bits of the quantization in a file's name: 4 for Q4_K_M, 0 when it does not say."""
    tag = TAG.search(stem_of(file))
    number = re.search(r"\d+", tag[1]) if tag else None
    return int(number[0]) if number else 0


def projector_of(model: str, files: list[str]) -> str:
    """The projector that llama.cpp would take: of the nearest folder upwards, the closest quantization."""

    def depth(file: str) -> int:
        folder = os.path.dirname(file)
        inside = folder == "" or (os.path.dirname(model) + "/").startswith(folder + "/")
        return (folder.count("/") + 1 if folder else 0) if inside else -1

    ranked = [
        (-depth(file), abs(bits(file) - bits(model)), file)
        for file in files
        if "mmproj" in os.path.basename(file) and depth(file) >= 0
    ]
    return min(ranked, default=(0, 0, ""))[2]


def cached_name(repo: str, file: str) -> str:
    """As llama.cpp's router calls a cached model, REPO:TAG; REPO/FILE where there is no tag."""
    tag = TAG.search(stem_of(file))
    return f"{repo}:{tag[1].upper()}" if tag else f"{repo}/{stem_of(file)}"


def candidates(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Every model in the two places: ``base`` lies below ``root``, the files below ``base``."""
    found = []
    root = question["cache"]
    for name in names_in(root) if root else ():
        repo = name[len("models--") :].replace("--", "/")
        commit = ref_of(os.path.join(root, name)) if name.startswith("models--") else ""
        if not commit:
            continue
        base = f"{name}/snapshots/{commit}"
        files = ggufs_below(os.path.join(root, base))
        for file in filter(is_model, files):
            found.append(
                {
                    "place": "cache",
                    "root": root,
                    "base": base,
                    "repo": repo,
                    "file": file,
                    "name": cached_name(repo, file),
                    "other": f"{repo}/{stem_of(file)}",
                    "projector": projector_of(file, files),
                }
            )
    root = question["folder"]
    for name in names_in(root) if root else ():
        below = os.path.isdir(os.path.join(root, name))
        files = [f"{name}/{file}" for file in names_in(os.path.join(root, name))] if below else [name]
        files = [file for file in files if file.endswith(".gguf")]
        for file in filter(is_model, files):
            single = below and sum(map(is_model, files)) == 1
            found.append(
                {
                    "place": "folder",
                    "root": root,
                    "base": "",
                    "repo": "",
                    "file": file,
                    "name": name if single else stem_of(os.path.basename(file)),
                    "other": stem_of(file),
                    "projector": projector_of(file, files) if below else "",
                }
            )
    return found


# -- one model ------------------------------------------------------------------------------------------


class Known:
    """The catalogue's own files, under every name that they can have on the box."""

    def __init__(self, question: dict[str, Any]) -> None:
        files = question["known"]
        self.files = {(entry["repo"], entry["file"]) for entry in files}
        self.sizes = {(os.path.basename(entry["file"]), entry["size"]) for entry in files if entry["size"]}
        self.digests = {entry["sha256"] for entry in files if entry["sha256"]}
        self.inodes = {mark for mark in map(inode, question["paths"]) if mark}

    def has(self, entry: dict[str, Any], path: str) -> bool:
        if (entry["repo"], entry["file"]) in self.files or inode(path) in self.inodes:
            return True
        # A cache names its blobs by their sha256.
        if os.path.basename(os.path.realpath(path)) in self.digests:
            return True
        if entry["place"] == "cache" or not os.path.exists(path):
            return False
        return (os.path.basename(path), os.path.getsize(path)) in self.sizes


def inode(path: str) -> tuple[int, int] | None:
    try:
        figures = os.stat(path)
    except OSError:
        return None
    return figures.st_dev, figures.st_ino


def size_for_server(root: str, file: str) -> int:
    """Bytes of a file that a server which sees nothing but ``root``, as nobody special, can read. Raises
    Passed."""
    path, home = os.path.join(root, file), os.path.realpath(root)
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        raise Passed(f"{os.path.basename(file)} is missing")
    if not real.startswith(home + "/"):
        raise Passed(f"it is a link to {real}, outside of {root}, where the server does not see it")
    hop = path
    while os.path.islink(hop):
        target = os.readlink(hop)
        if os.path.isabs(target):
            raise Passed(f"it is a link by a full path, {target}, which means nothing to the server")
        hop = os.path.join(os.path.dirname(hop), target)
    if not os.stat(real).st_mode & 0o004:
        raise Passed(f"the server may not read it: chmod o+r {real}")
    for start in (os.path.join(home, file), real):
        folder = os.path.dirname(start)
        while folder.startswith(home):
            if not os.stat(folder).st_mode & 0o001:
                raise Passed(f"the server may not enter its folder: chmod o+x {folder}")
            folder = os.path.dirname(folder)
    return os.path.getsize(real)


def describe(entry: dict[str, Any]) -> dict[str, Any]:
    """What the answer says of one model. Raises Passed."""
    root, base = entry["root"], entry["base"]
    inside = [os.path.join(base, name) for name in shards_of(entry["file"])]
    size = sum(size_for_server(root, file) for file in inside)
    projector = os.path.join(base, entry["projector"]) if entry["projector"] else ""
    header = read_header(os.path.join(root, inside[0]))
    return {
        "name": entry["name"],
        "other": entry["other"],
        "place": entry["place"],
        "file": inside[0],
        "paths": [os.path.join(root, file) for file in inside],
        "bytes": size,
        "projector": projector,
        "projector_bytes": size_for_server(root, projector) if projector else 0,
        "header": {**header, "weight_bytes": size, "shards": len(inside)},
    }


def main(question: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    known = Known(question)
    models, passed = [], []
    seen: set[tuple[int, int] | None] = set()
    for entry in candidates(question):
        path = os.path.join(entry["root"], entry["base"], entry["file"])
        mark = inode(path)
        if known.has(entry, path) or (mark in seen and mark):
            continue
        seen.add(mark)
        try:
            models.append(describe(entry))
        except Passed as reason:
            size = os.path.getsize(path) if os.path.isfile(path) else 0
            passed.append({"name": entry["name"], "path": path, "bytes": size, "why": str(reason)})
    return {"models": models, "passed": passed}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
