"""Texts of files, without the secrets of the box: see FileTexts in gb10/drift/examine.py."""

from __future__ import annotations

import json
import sys

MASK = "•••"
LIMIT_BYTES = 1 << 20


def text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read(LIMIT_BYTES)
    except OSError:
        return None


def main(question: dict[str, list[str]]) -> dict[str, object]:
    secrets = [(text_of(path) or "").strip() for path in question["secrets"]]
    texts = {path: text_of(path) for path in question["paths"]}
    for secret in secrets:
        if len(secret) >= 4:
            texts = {path: text and text.replace(secret, MASK) for path, text in texts.items()}
    return {"texts": texts}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
