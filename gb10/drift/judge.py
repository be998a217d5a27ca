"""Every difference between what should be and what is, and who made it. Pure: answers in, items out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gb10.container import differences, preset_differences
from gb10.desired import NIGHTLY_UNITS, Desired
from gb10.drift.mask import known_secrets, masked
from gb10.drift.plan import Planned, shortened
from gb10.drift.report import Class, Ignored, Item
from gb10.record import events, readable, state_of, wants
from gb10.watch_config import UNITS

CLOCK_SECONDS = 30
FOLDER = "0755 0:0"
TEXT = 160  # characters of a value in a table; the whole is in --json
BY_HAND = "by hand"


@dataclass(frozen=True)
class Case:
    """What is compared: the description, the box's answer (of `DriftState`), and the record of the last
    deploy (None where there is none that can be read). ``now`` is this machine's time in seconds since the
    epoch, ``model_states`` what the downloader says of each file (see `ModelFiles`)."""

    box: Desired
    seen: Mapping[str, Any]
    planned: Sequence[Planned]
    now: float
    today: str
    record: Mapping[str, Any] | None = None
    model_states: Mapping[str, str] = field(default_factory=dict)
    wants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
        """Whether something else is wanted than at the last deploy: of a file, or of the rest of a stage."""
        before = {} if self.record is None else self.record["wants"].get(stage, {})
        return bool(before.get(path) != self.wants.get(stage, {}).get(path))

    def made(self, by_hand: bool, moved: bool) -> Class:
        if self.record is None:
            return Class.NEW
        if by_hand and moved:
            return Class.BOTH
        if by_hand:
            return Class.BY_HAND
        return Class.REPOSITORY if moved else Class.NEW


def case_of(
    box: Desired,
    seen: Mapping[str, Any],
    planned: Sequence[Planned],
    files: Sequence[Mapping[str, Any]],
    now: float,
    today: str,
) -> Case:
    """A `Case` with the record that is in the answer; ``files`` are those of `ModelFiles`."""
    record = seen["record"] if readable(seen["record"]) else None
    states = {
        # Right, and of no use: the server is another user.
        file["path"]: "closed" if file["state"] == "ok" and file.get("closed") else file["state"]
        for file in files
    }
    return Case(box, seen, planned, now, today, record, states, wants(box))


def judge(case: Case) -> tuple[list[Item], list[Ignored]]:
    """All differences, and those that the data ignores until a later day."""
    data = case.box.data
    known = known_secrets(case.box.environment, data.notify_command)
    items: dict[str, Item] = {}
    for part in (_plan, _unit, _container, _router, _strangers, _model_files, _box, _events, _readings):
        for item in part(case):
            items.setdefault(item.id, _masked(item, known))
    ignored = []
    for entry in data.drift_ignore:
        if entry.expires <= case.today:
            name = f"box: ignored {entry.item}"
            do = "by hand: put it right, or give its entry in drift_ignore another day"
            is_ = f"it expired on {entry.expires} ({entry.owner}: {entry.reason})"
            expired = _item(name, "an entry that holds", is_, Class.NEW, do)
            items[name] = _masked(expired, known)
        elif entry.item in items:
            item = items.pop(entry.item)
            ignored.append(Ignored(item=item, reason=entry.reason, owner=entry.owner, expires=entry.expires))
    return list(items.values()), ignored


def _item(
    name: str, should: object, is_: object, made: Class, do: str = "", commands: Sequence[str] = ()
) -> Item:
    """Without ``do`` a deploy of its stage puts it right."""
    stage = name.partition(":")[0]
    return Item(
        id=name,
        stage=stage,  # type: ignore[arg-type]  # pydantic checks it
        should=_text(should),
        is_=_text(is_),
        made=made,
        fix="hand" if do.startswith(BY_HAND) else "deploy",
        do=do or f"deploy (stage {stage})",
        commands=tuple(commands),
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value) or "none"
    return json.dumps(value, sort_keys=True)


def _masked(item: Item, known: Sequence[str]) -> Item:
    return item.model_copy(
        update={
            "id": masked(item.id, known),
            "should": masked(item.should, known),
            "is_": masked(item.is_, known),
            "commands": tuple(masked(command, known) for command in item.commands),
        }
    )


NOTED = "a deploy records it as it is now"


def _plan(case: Case) -> Iterator[Item]:
    """What a deploy would change: the operations themselves say so."""
    states = {placed.path: state_of(placed) for placed in case.box.files()}
    states |= dict.fromkeys(case.box.folders, FOLDER)
    for one in case.planned:
        if one.name == "record: this deploy":
            if case.record is None:
                yield _item("record: this deploy", "recorded on the box", "no record", Class.NEW)
            continue
        if one.name == "models: files" and any(state != "ok" for state in case.model_states.values()):
            continue  # each file says so itself
        commands = [shortened(command) for command in one.commands]
        name, path = one.id, one.target(states)
        if path is not None:
            should, is_ = states[path], case.seen["files"].get(path, "")
            before = "" if case.record is None else case.record["files"].get(path, "")
            made = case.made(before != is_, case.moved(one.stage, path))
            yield _item(name, _short(should), _short(is_) or "nothing", made, commands=commands)
        else:
            made = _made_in_stage(case, one)
            yield _item(name, "nothing to do", "; ".join(commands)[:TEXT], made, commands=commands)


def _made_in_stage(case: Case, one: Planned) -> Class:
    # What comes after the router is about the lane that it serves.
    stage = "router" if one.stage in ("verify", "history") else one.stage
    facts = {key for key in case.seen["facts"] if key.startswith(f"{stage}:")}
    facts |= {key for key in (case.record or {"facts": {}})["facts"] if key.startswith(f"{stage}:")}
    files = case.wants.get(stage, {}).keys() - {""}
    by_hand = any(case.changed(key) for key in facts) or any(
        case.record is not None and case.record["files"].get(path) != case.seen["files"].get(path)
        for path in files
    )
    moved = any(case.moved(stage, path) for path in ("", *files))
    # Models or an image that somebody asks for anew change the router's file too.
    return case.made(by_hand, moved)


def _short(state: str) -> str:
    """``0644 0:0 SHA256`` with a digest that people can compare."""
    mode, _, rest = state.partition(" ")
    owner, _, digest = rest.partition(" ")
    return " ".join(part for part in (mode, owner, digest[:12]) if part)


def _unit(case: Case) -> Iterator[Item]:
    key = "router: unit"
    should = {
        "enabled": "enabled",
        "active": "active",
        "loaded": "loaded",
        "file": case.box.unit_file.path,
        "needs_reload": "no",
    }
    for part, wanted in should.items():
        is_ = case.seen["facts"][key].get(part, "")
        if is_ != wanted:
            yield _item(f"{key} {part}", wanted, is_ or "nothing", case.made(case.changed(key, part), False))
    for stage in ("router", "watch", "record"):
        for path in case.seen["facts"][f"{stage}: drop-ins"]:
            made = case.made(case.changed(f"{stage}: drop-ins", path), False)
            ours = path.split("/")[-2].removesuffix(".d") in (case.box.unit, *UNITS, *NIGHTLY_UNITS)
            ours = ours and not path.startswith(("/usr/lib/", "/lib/"))
            do = "" if ours else f"{BY_HAND}: it is a package's, or for a whole kind of units"
            yield _item(f"{stage}: drop-in {path}", "none", "alters the unit", made, do)


def _container(case: Case) -> Iterator[Item]:
    key, facts = "router: container", case.seen["facts"]
    running = facts[key]
    if running is None:
        yield _item(key, "running", "there is none", case.made(case.changed(key), False))
        return
    moved = case.moved("router") or case.moved("image")
    for what, (should, is_) in differences(case.box, running, facts["image: id"]).items():
        by_hand = case.changed(key, what) or (what == "image" and case.changed("image: id"))
        made = case.made(by_hand, moved)
        if what == "environment":
            for name in sorted(should.keys() | (is_ or {}).keys()):
                if should.get(name) != (is_ or {}).get(name):
                    yield _item(f"{key} environment {name}", *_values(should.get(name), is_.get(name)), made)
            continue
        yield _item(f"{key} {what}", should, is_, made)
    environment, name_of = facts["router: process environment"], "router: process environment"
    wanted = running["environment"]
    for name in case.box.environment:
        if environment and (environment.get(name) or None) != wanted.get(name):
            made = case.made(case.changed(name_of, name), moved)
            yield _item(f"{name_of} {name}", *_values(wanted.get(name), environment.get(name)), made)


def _values(should: str | None, is_: str | None) -> tuple[str, str]:
    """Of variables only whether they are there, and the same: what they hold may be secret."""
    return (
        "set as described" if should else "not set",
        ("set to something else" if should else "set") if is_ else "not set",
    )


def _router(case: Case) -> Iterator[Item]:
    if case.seen["facts"]["router: container"] is None:
        return
    if case.seen["models_error"]:
        made = case.made(case.changed("router: container") or case.changed("router: API key"), False)
        yield _item("router: models", "listed by the router", case.seen["models_error"], made)
        return
    moved = case.moved("router", case.box.presets_path)
    for model, keys in sorted(preset_differences(case.box, case.seen["models"]).items()):
        made = case.made(case.changed(f"router: model {model}"), moved)
        should = ", ".join(f"{key} {pair[0] or 'unset'}".strip() for key, pair in sorted(keys.items()))
        is_ = ", ".join(f"{key} {pair[1] or 'unset'}".strip() for key, pair in sorted(keys.items()))
        yield _item(f"router: model {model}", should, is_, made)


def _strangers(case: Case) -> Iterator[Item]:
    for kind in ("unit", "container", "process"):
        key = f"lanes: vLLM {'processes' if kind == 'process' else f'{kind}s'}"
        for name in case.seen["facts"][key]:
            made = case.made(name not in (case.was(key) or []), False)
            do = f"{BY_HAND}: stop it, or name it in lanes_out"
            yield _item(f"lanes: vLLM {kind} {name}", "none", "there", made, do)


def _model_files(case: Case) -> Iterator[Item]:
    """Each file that is not, or is not known to be, what the lock says."""
    for file in case.box.fetch_manifest["files"]:
        path, should = file["path"], f"{file['size']} bytes, sha256 {file['sha256'][:12]}"
        key = f"models: {path}"
        digest, state = case.seen["facts"].get(key, "missing"), case.model_states.get(path, "ok")
        made = case.made(case.changed(key), case.moved("models"))
        other = digest not in (file["sha256"], "unverified", "missing")
        if state == "wrong" or other:
            if file.get("made"):
                do = f"{BY_HAND}: `gb10 models rm` its model, then `{file['made']}`"
            elif state == "wrong":
                do = "a deploy (stage models) fetches the right one and sets this one aside"
            else:  # a look that reads it all (--deep) found what its size and times do not show
                do = f"{BY_HAND}: `touch {path}` on the box; then a deploy (stage models) reads it again"
            yield _item(key, should, f"sha256 {digest[:12]}" if other else "another file", made, do)
        elif state == "unverified":
            yield _item(
                key, should, "changed since it was read", made, "a deploy (stage models) reads it again"
            )
        elif state == "closed":
            yield _item(key, should, "not readable for the server", case.made(True, case.moved("models")))
        elif state != "ok":
            yield _item(key, should, state, made)


def _box(case: Case) -> Iterator[Item]:
    """What no stage puts there and a deploy only records."""
    facts = case.seen["facts"]
    if case.record is not None:
        for key in ("box: driver", "box: CUDA", "box: kernel", "box: Docker", "box: firewall"):
            if case.changed(key):
                yield _item(key, case.was(key), facts[key], Class.BY_HAND, NOTED)
        for key in ("toolkit: daemon.json", "toolkit: keyring", "toolkit: CDI specs"):
            if case.changed(key):
                should, is_ = case.was(key), facts[key]
                if isinstance(should, str) and isinstance(is_, str):
                    should, is_ = _short(should) or "nothing", _short(is_) or "nothing"
                yield _item(key, should, is_, Class.BY_HAND, NOTED)
        key = "toolkit: apt sources"
        before, now = case.was(key) or {}, facts[key]
        ours = {placed.path for placed in case.box.toolkit_files}
        for path in sorted((before.keys() | now.keys()) - ours):
            if before.get(path) != now.get(path):
                should, is_ = (_short(one.get(path, "")) or "nothing" for one in (before, now))
                yield _item(f"toolkit: apt source {path}", should, is_, Class.BY_HAND, NOTED)
    allowed = {str(port) for port in case.box.data.open_ports}
    if case.box.data.lane_address == "0.0.0.0":  # noqa: S104
        allowed.add(str(case.box.data.lane_port))
    for entry in facts["box: open ports"]:
        port, _, process = entry.partition(" ")
        if port not in allowed:
            made = case.made(entry not in (case.was("box: open ports") or []), False)
            do = f"{BY_HAND}: close it, or add it to open_ports"
            if process == "docker-proxy" and port == str(case.box.data.lane_port):
                do = ""
            yield _item(
                f"{'box' if do else 'router'}: open port {port}",
                "closed",
                f"open on all addresses ({process})",
                made,
                do,
            )


def _events(case: Case) -> Iterator[Item]:
    if case.record is None:
        return
    counted = events(case.record, case.seen["readings"])
    for name, item in (("oom_kills", "box: OOM kills"), ("restarts", "router: restarts")):
        if counted[name]:
            yield _item(item, "0 since the last deploy", f"{counted[name]} since", Class.NEW, NOTED)


def _readings(case: Case) -> Iterator[Item]:
    readings, percent = case.seen["readings"], case.box.data.drift_disk_percent
    said: set[tuple[int, ...]] = set()
    for path, (free, size) in readings["disks"].items():
        used = 100 * (size - free) / size if size else 0
        if used > percent and (free, size) not in said:
            said.add((free, size))
            do = f"{BY_HAND}: make room (`gb10 models`, docker image prune), or raise drift_disk_percent"
            yield _item(f"box: disk {path}", f"at most {percent} % full", f"{used:.0f} % full", Class.NEW, do)
    skew = readings["time"] - case.now
    if abs(skew) > CLOCK_SECONDS:
        do = f"{BY_HAND}: timedatectl set-ntp true"
        yield _item(
            "box: clock", f"within {CLOCK_SECONDS} s of this machine's", f"{skew:+.0f} s", Class.NEW, do
        )
    if readings["reboot"] is not None:
        why = " ".join(readings["reboot"]) or "an update"
        yield _item("box: reboot", "not wanted", f"wanted by {why}", Class.NEW, f"{BY_HAND}: reboot it")
    if readings["apt"]:
        made = case.made(case.changed("toolkit: apt sources"), False)
        do = f"{BY_HAND}, where a deploy does not help: `apt-get update` on the box says more"
        yield _item("toolkit: apt", "can read its lists", readings["apt"], made, do)
    for package, (installed, candidate) in readings["would_move"].items():
        do = f"{BY_HAND}: look at `apt-cache policy {package}`: another pin, or a source that goes before it"
        pinned = [placed.path for placed in case.box.toolkit_files]
        by_hand = any(
            case.record is not None and case.record["files"].get(path) != case.seen["files"].get(path)
            for path in pinned
        )
        made = case.made(by_hand, False)
        yield _item(f"toolkit: apt would move {package}", installed, f"next: {candidate}", made, do)
