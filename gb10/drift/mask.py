"""No secret leaves by an output: values are masked by their names, by their looks, and as they are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "•••"
_NAME = (
    r"(?:api[_-]?key|access[_-]?key|token(?!s)|secret|passw(?:or)?d|passphrase|credential|private[_-]?key)"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
# NAME=value, "name": "value", --name value. A name that ends in file or path holds no secret.
_NAMED = re.compile(
    rf"(?P<name>(?P<option>--)?[\w-]*{_NAME}(?!\w*[_-](?:file|path|dir|url))[\w-]*[\"']?)"
    r"(?P<sign>\s*[=:]\s*|(?(option)\s+|(?!)))(?P<quote>[\"']?)(?P<value>[^\s\"',;}\]]{4,})",
    re.IGNORECASE,
)
_LOOKS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|xox[abp]-[A-Za-z0-9-]{10,})"
    r"|(?<=Bearer )\S+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


def is_secret_name(name: str) -> bool:
    """True for the name of a variable whose value nobody should see."""
    return bool(_SECRET_NAME.search(name)) and not re.search(r"(file|path|dir|url)$", name, re.IGNORECASE)


def known_secrets(environment: Mapping[str, str], notify_command: Iterable[str]) -> list[str]:
    """The values in a box's data that must not be shown."""
    found = [value for name, value in environment.items() if is_secret_name(name)]
    # A hook's address is often all that guards it.
    found += [word.partition("://")[2] for word in notify_command if "://" in word]
    return sorted((value for value in found if len(value) >= 4), key=len, reverse=True)


def masked(text: str, known: Iterable[str] = ()) -> str:
    """``text`` without what is, or looks like, a secret."""
    for value in known:
        text = text.replace(value, MASK)
    text = _LOOKS.sub(MASK, text)
    return _NAMED.sub(
        lambda match: (
            match[0] if match["value"] == MASK else f"{match['name']}{match['sign']}{match['quote']}{MASK}"
        ),
        text,
    )
