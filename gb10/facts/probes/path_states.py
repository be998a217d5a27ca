"""Many paths in one look: see PathReports in gb10/facts/shared.py for question and answer."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys

KINDS = {stat.S_IFREG: "regular file", stat.S_IFDIR: "directory", stat.S_IFCHR: "character special file"}


def state_of(path: str) -> dict[str, str] | None:
    """As PathReport has it: a symbolic link is followed, a reader gets what is compared."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind, digest = KINDS.get(stat.S_IFMT(status.st_mode), "other"), ""
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        kind = kind if status.st_size else "regular empty file"
    return {
        "kind": kind,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "owner": f"{status.st_uid}:{status.st_gid}",
        "sha256": digest,
    }


def main(question: dict[str, list[str]]) -> dict[str, object]:
    return {"paths": {path: state_of(path) for path in question["paths"]}}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
