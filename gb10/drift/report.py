"""The result of a look for drift: the shape of ``gb10 drift --json`` (docs/drift.schema.json is made from
it)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gb10.printable import LINES, printable

SCHEMA_VERSION = 1
CLEAN, UNKNOWN, DRIFT = 0, 1, 2
STAGES = ("lanes", "toolkit", "image", "models", "router", "verify", "history", "watch", "record", "box")


class Class(StrEnum):
    """Who made a difference."""

    BY_HAND = "by-hand"
    REPOSITORY = "repository"
    BOTH = "both"
    NEW = "new"


IN_WORDS = {
    Class.BY_HAND: "by hand",
    Class.REPOSITORY: "repository moved on",
    Class.BOTH: "both",
    Class.NEW: "new",
}


# What a box says may hold control characters: here none gets in.
Text = Annotated[str, AfterValidator(printable)]
Texts = Annotated[str, AfterValidator(lambda text: printable(text, LINES))]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Item(_Frozen):
    """One difference. Secrets are masked in every text."""

    id: Annotated[Text, Field(description="Name, the same from look to look: STAGE: WHAT.")]
    stage: Literal[
        "lanes", "toolkit", "image", "models", "router", "verify", "history", "watch", "record", "box"
    ]
    should: Annotated[Text, Field(description="What should be, or was when the box was deployed.")]
    is_: Annotated[Text, Field(alias="is", description="What is.")]
    made: Annotated[
        Class,
        Field(
            alias="class",
            description="by-hand: the box was changed since the last deploy; repository: what is wanted has"
            " changed; both; new: neither, it came up by itself, or no deploy is recorded.",
        ),
    ]
    fix: Annotated[Literal["deploy", "hand"], Field(description="What puts it right.")]
    do: Annotated[Text, Field(description="The same in words.")]
    commands: Annotated[
        tuple[Text, ...], Field(description="What a deploy would run for it, shortened.")
    ] = ()
    diff: Annotated[Texts, Field(description="With --diff: from what is to what should be.")] = ""


class Ignored(_Frozen):
    """A difference that the data's drift_ignore does not count for a time."""

    item: Item
    reason: Text
    owner: Text
    expires: Annotated[str, Field(description="YYYY-MM-DD")]


class Deployed(_Frozen):
    """The last deploy, as it is recorded on the box."""

    time: Text
    by: Text
    revision: Text
    dirty: bool


class HostReport(_Frozen):
    """One box. ``reason`` says why it is unknown."""

    host: str
    state: Literal["clean", "drift", "unknown"]
    reason: Text = ""
    deployed: Deployed | None = None
    items: tuple[Item, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    deploy: Annotated[
        Literal["", "done", "failed"], Field(description="With --fix: how the deploy of this box ended.")
    ] = ""
    remote_commands: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0


class Report(_Frozen):
    """All boxes that were asked. ``exit`` is the exit status: 0 clean, 2 drift, 1 could not tell or a deploy
    failed."""

    version: Annotated[Literal[1], Field(alias="schema")] = 1
    time: Annotated[str, Field(description="UTC, ISO 8601")]
    revision: Annotated[str, Field(description="Commit of the repository; empty without git.")]
    dirty: bool
    exit: Literal[0, 1, 2]
    hosts: tuple[HostReport, ...]


def exit_status(hosts: Sequence[HostReport]) -> Literal[0, 1, 2]:
    """0 only when every box is known to be clean: one that is unknown, or whose deploy failed, beats any
    drift."""
    states = {host.state for host in hosts}
    if "unknown" in states or not hosts or any(host.deploy == "failed" for host in hosts):
        return 1
    return 2 if "drift" in states else 0


def schema_text() -> str:
    """The JSON schema of `Report`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(by_alias=True, mode="serialization"),
        "title": "gb10 drift --json",
    }
    return json.dumps(schema, indent=2) + "\n"
