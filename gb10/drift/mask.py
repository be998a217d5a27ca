"""No secret leaves by an output: values are masked by their names, by their looks, and as they are known.

The deploy also puts this file on the box, for the nightly look: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "•••"
# "pass" and "pwd" only as words of their own, or in capitals: there is also a bypass, and a working folder.
_NAME = (
    r"(?:api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|(?:encryption|signing|master|auth)[_-]?key"
    r"|token(?!s)|secret|passw(?:or)?d|passphrase|(?<![a-z])pass(?![a-z-])|(?-i:[A-Z]PASS(?![A-Za-z]))"
    r"|(?<=[_-])pwd(?![a-z])|credential|webhook|cookie)"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
# What such a name ends in when it only says where the secret is. A hook's address is the secret itself.
_PLACE = r"(?!\w{0,80}[_-](?:file|path|dir)\b)(?!(?<!webhook)[\w-]{0,80}[_-]url\b)"
# "NAME": "value", 'NAME=value', NAME=value, --name value: to the end of the quotes that it stands in, else
# of the word, and at the beginning of a line to the end of that line. Names are bounded: what a box says may
# be a word without end.
_NAMED = re.compile(
    r"(?P<head>(?<![\w-])(?P<line>^[+\- ]?[ \t]*)?(?P<outer>[\"'])?(?P<option>--)?"
    rf"[\w-]{{0,80}}{_NAME}{_PLACE}[\w-]{{0,80}}"
    r"(?P<inner>[\"'])?(?P<sign>\s*[=:]\s*|(?(option)\s+|(?!))))"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|(?(outer)(?(inner)[^\s\"']+|(?:(?!(?P=outer)).)+)"
    r"|(?(option)[^\s\"']+|(?(line)[^\n]+|[^\s\"']+))))",
    re.IGNORECASE | re.MULTILINE,
)
_LOOKS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"
    r"|xox[abps]-[A-Za-z0-9-]{10,}|nvapi-[\w-]{16,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{8,1000}\.[\w-]+\.[\w-]+)"
    r"|(?<=://)[^/\s@\"']+(?=@)"  # user and password, or a token alone, in an address
    r"|(?<=[?&]key=)[^\s&\"']+|(?<=[?&]sig=)[^\s&\"']+|(?<=[?&]auth=)[^\s&\"']+"
)
_SCHEME = re.compile(
    r"(?P<head>\b(?:Bearer|Basic|authorization[\"']?\s*[:=]\s*[\"']?(?:[A-Za-z]+(?=\s))?)\s+"
    # As curl takes them; a container's user is numbers.
    r"|\s(?:-u|--user|--proxy-user)[ =]+[\"']?(?!\d+:\d+\b)[^\s:\"']+:)[^\s\"']+",
    re.IGNORECASE,
)
# An address that takes messages from whoever knows it: all behind the host.
_HOOK = re.compile(
    r"(?P<head>https?://(?:[^\s\"'/]*hook[^\s\"'/]*/|api\.telegram\.org/|ntfy\.sh/|[^\s\"'/]+/(?=[^\s\"']{0,300}hook)))"
    r"[^\s\"']+",
    re.IGNORECASE,
)
# Also the address of before, in a file that the box still has: nobody's data know it any more.
_NOTIFY = re.compile(r"\"notify_command\": *\[[^\]]*\]")
_KEY_BLOCK = re.compile(r"(?P<head>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """True for the name of a variable whose value nobody should see."""
    where = r"(file|path|dir)$" if re.search("webhook", name, re.IGNORECASE) else r"(file|path|dir|url)$"
    return bool(_SECRET_NAME.search(name)) and not re.search(where, name, re.IGNORECASE)


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
    text = _KEY_BLOCK.sub(rf"\g<head>{MASK}", text)
    text = _NOTIFY.sub(lambda match: re.sub(r"(?<=://)[^\"]+", MASK, match[0]), text)
    text = _HOOK.sub(rf"\g<head>{MASK}", text)
    text = _LOOKS.sub(MASK, text)
    text = _SCHEME.sub(rf"\g<head>{MASK}", text)
    return _NAMED.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    closing = quote if len(value) > 1 and value.endswith(quote) else ""
    bare = value.strip("\"' ,;}]")
    if len(bare) < 3 or bare.lower() in ("true", "false", "null", "none"):
        return match[0]
    return f"{match['head']}{quote}{MASK}{closing}"
