"""From templates and values to the text of a file on the box. Pure; knows nothing of what it renders."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TOP = Path(__file__).resolve().parent.parent


def shown(path: Path) -> str:
    """A file of this machine for people: from the repository's folder, else from the one that they are in.

    Never the bare name: another file may have the same.
    """
    whole = path.absolute()
    for folder in (TOP, Path.cwd()):
        if whole.is_relative_to(folder):
            return str(whole.relative_to(folder))
    return str(whole)


@dataclass(frozen=True)
class PlacedFile:
    """A file as it should be on the box. ``mode`` is octal text, ``owner`` is ``uid:gid`` in numbers."""

    path: str
    content: str
    mode: str = "0644"
    owner: str = "0:0"


def _label(text: str) -> str:
    # In a LABEL, Docker reads $ as a variable between any quotes but single ones, and those have no escape.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def _compact_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TOP / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (unit files and Dockerfiles are not HTML)
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["label"] = _label
    environment.filters["compact_json"] = _compact_json
    return environment


_TEMPLATES = _environment()


def render(template: str, **values: object) -> str:
    """A template of ``templates/`` with its values; one that is missing raises jinja2's UndefinedError."""
    return _TEMPLATES.get_template(template).render(**values)


def json_text(content: object) -> str:
    """JSON as it stands in a file that people read too: the same content is the same text."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def tag_part(text: str) -> str:
    """What Docker takes in a tag, with room for a hash behind it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip(".-")[:100] or "ref"


def unit_escape(text: str) -> str:
    """An argument as it stands in a unit."""
    # In ExecStart systemd reads % as a specifier, $ as a variable, and a backslash also between quotes.
    return text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
