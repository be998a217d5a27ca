"""What is compared to tell what differs on a box, and how a difference is put into words. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gb10.desired import Desired
from gb10.drift.plan import Planned
from gb10.drift.report import Class, Item

BY_HAND = "by hand"
NOTED = "a deploy records it as it is now"


@dataclass(frozen=True)
class Case:
    """What is compared: the description, the box's answer (of `DriftState`), and the record of the last
    deploy (None where there is none that can be read). ``now`` is this machine's time in seconds since the
    epoch, when that answer was here; ``model_states`` what the downloader says of each file (see
    `ModelFiles`); ``wants`` and ``wants_alone`` as in gb10/record.py."""

    box: Desired
    seen: Mapping[str, Any]
    planned: Sequence[Planned]
    now: float
    today: str
    record: Mapping[str, Any] | None = None
    model_states: Mapping[str, str] = field(default_factory=dict)
    wants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    wants_alone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def was(self, key: str) -> Any:
        """A fact as the record has it."""
        return None if self.record is None else self.record["facts"].get(key)

    def changed(self, key: str, part: str | None = None) -> bool:
        """Whether a fact of the box, or one part of it, is another one than at the last deploy."""
        before, now = self.was(key), self.seen["facts"].get(key)
        if part is not None:
            before, now = ((value or {}).get(part) for value in (before, now))
        return bool(before != now)

    def moved(self, stage: str, path: str = "") -> bool:
        """Whether the repository wants something else than at the last deploy: of a file, or of the rest of a
        stage. What only other models on the box make it want is `grown`."""
        return self._other(stage, path, "wants_alone", self.wants_alone)

    def grown(self, stage: str, path: str = "") -> bool:
        """Whether something else is wanted since other models were found on the box than at the last
        deploy."""
        return not self.moved(stage, path) and self._other(stage, path, "wants", self.wants)

    def _other(self, stage: str, path: str, key: str, now: Mapping[str, Mapping[str, str]]) -> bool:
        record = self.record or {}
        before = record.get(key) or record.get("wants") or {}
        return bool(before.get(stage, {}).get(path) != now.get(stage, {}).get(path))

    def edited(self, path: str) -> bool:
        """Whether a file on the box is another one than at the last deploy."""
        return self.record is not None and bool(
            self.record["files"].get(path) != self.seen["files"].get(path)
        )

    @property
    def crashed(self) -> bool:
        """The lane went down by itself, or is coming up again by itself. Who stops it by hand leaves it
        inactive, and so does the watch, when nothing else has helped."""
        state = self.seen["facts"]["router: unit"].get("active", "")
        if state == "inactive":
            return bool(self.seen["readings"]["stopped_by_watch"])
        return state in ("failed", "activating", "deactivating", "reloading")

    def made(self, by_hand: bool, moved: bool) -> Class:
        if self.record is None:
            return Class.NEW
        if by_hand and moved:
            return Class.BOTH
        if by_hand:
            return Class.BY_HAND
        return Class.REPOSITORY if moved else Class.NEW


def item(
    name: str, should: object, is_: object, made: Class, do: str = "", commands: Sequence[str] = ()
) -> Item:
    """Without ``do`` a deploy of its stage puts it right."""
    stage = name.partition(":")[0]
    return Item(
        id=name,
        stage=stage,  # type: ignore[arg-type]  # pydantic checks it
        should=text_of(should),
        is_=text_of(is_),
        made=made,
        fix="hand" if do.startswith(BY_HAND) else "deploy",
        do=do or f"deploy (stage {stage})",
        commands=tuple(commands),
    )


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value) or "none"
    return json.dumps(value, sort_keys=True)


def short(state: str) -> str:
    """``0644 0:0 SHA256`` with a digest that people can compare."""
    mode, _, rest = state.partition(" ")
    owner, _, digest = rest.partition(" ")
    return " ".join(part for part in (mode, owner, digest[:12]) if part)
