"""Every difference between what should be and what is, and who made it. Pure: answers in, items out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gb10.container import differences, preset_differences
from gb10.desired import NIGHTLY_UNITS, Desired
from gb10.drift.by_itself import of_events, of_readings, of_the_night
from gb10.drift.case import BY_HAND, NOTED, Case, item, short
from gb10.drift.files import targets
from gb10.drift.mask import known_secrets, masked
from gb10.drift.plan import Planned, shortened
from gb10.drift.report import Class, Ignored, Item
from gb10.nightly import allowed_ports
from gb10.record import readable, state_of, wants, wants_alone
from gb10.watch_config import UNITS

RECORD = "record: this deploy"
FOLDER = "0755 0:0"
TEXT = 160  # characters of a value in a table; the whole is in --json


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
    return Case(box, seen, planned, now, today, record, states, wants(box), wants_alone(box))


def judge(case: Case) -> tuple[list[Item], list[Ignored]]:
    """All differences, and those that the data ignores until a later day."""
    data = case.box.data
    known = known_secrets(case.box.environment, data.notify_command)
    items: dict[str, Item] = {}
    for part in (
        _plan,
        _unit,
        _container,
        _router,
        _key,
        _strangers,
        _model_files,
        _box,
        of_events,
        of_readings,
        of_the_night,
    ):
        for one in part(case):
            items.setdefault(one.id, _masked(one, known))
    for one in _record(case, {one.stage for one in items.values()}):
        items[one.id] = one
    ignored = []
    for entry in data.drift_ignore:
        if entry.expires <= case.today:
            name = f"box: ignored {entry.item}"
            do = "by hand: put it right, or give its entry in drift_ignore another day"
            is_ = f"it expired on {entry.expires} ({entry.owner}: {entry.reason})"
            expired = item(name, "an entry that holds", is_, Class.NEW, do)
            items[name] = _masked(expired, known)
        elif entry.item in items:
            one = items.pop(entry.item)
            ignored.append(Ignored(item=one, reason=entry.reason, owner=entry.owner, expires=entry.expires))
    return list(items.values()), ignored


def _masked(item: Item, known: Sequence[str]) -> Item:
    return item.model_copy(
        update={
            "id": masked(item.id, known),
            "should": masked(item.should, known),
            "is_": masked(item.is_, known),
            "commands": tuple(masked(command, known) for command in item.commands),
        }
    )


def _plan(case: Case) -> Iterator[Item]:
    """What a deploy would change: the operations themselves say so."""
    states = {placed.path: state_of(placed) for placed in case.box.files()}
    states |= dict.fromkeys(case.box.folders, FOLDER)
    for one in case.planned:
        if one.name == RECORD:
            if case.record is None:
                yield item(RECORD, "recorded on the box", "no record", Class.NEW)
            continue
        if one.name == "models: files" and any(state != "ok" for state in case.model_states.values()):
            continue  # each file says so itself
        commands = [shortened(command) for command in one.commands]
        name, paths = one.id, targets(one, states)
        if paths:
            by_hand = any(case.edited(path) or case.grown(one.stage, path) for path in paths)
            made = case.made(by_hand, any(case.moved(one.stage, path) for path in paths))
            should, is_ = states[paths[0]], case.seen["files"].get(paths[0], "")
            if len(paths) == 1:
                yield item(name, short(should), short(is_) or "nothing", made, commands=commands)
            else:
                yield item(
                    name, f"{len(paths)} files as described", ", ".join(paths), made, commands=commands
                )
        else:
            made = _made_in_stage(case, one)
            yield item(name, "nothing to do", "; ".join(commands)[:TEXT], made, commands=commands)


def _made_in_stage(case: Case, one: Planned) -> Class:
    # What comes after the router is about the lane that it serves.
    stage = "router" if one.stage in ("verify", "history") else one.stage
    facts = {key for key in case.seen["facts"] if key.startswith(f"{stage}:")}
    facts |= {key for key in (case.record or {"facts": {}})["facts"] if key.startswith(f"{stage}:")}
    files = case.wants.get(stage, {}).keys() - {""}
    by_hand = any(_changed_by_hand(case, key) for key in facts)
    by_hand = by_hand or any(case.edited(path) or case.grown(stage, path) for path in files)
    moved = any(case.moved(stage, path) for path in ("", *files))
    # Models or an image that somebody asks for anew change the router's file too.
    return case.made(by_hand, moved)


def _changed_by_hand(case: Case, key: str) -> bool:
    """A crash takes along what is only there while the lane runs."""
    if not case.crashed:
        return case.changed(key)
    if key == "router: unit":
        parts = {*(case.was(key) or {}), *case.seen["facts"][key]} - {"active"}
        return any(case.changed(key, part) for part in parts)
    gone = case.seen["facts"]["router: container"] is None
    fleeting = ("router: container", "router: process environment", "router: presets read", "router: model ")
    return case.changed(key) and not (gone and key.startswith(fleeting))


def _record(case: Case, said: Collection[str]) -> Iterator[Item]:
    """The stages, but for those in ``said``, of which something else is wanted than is recorded: nothing on
    the box need be changed for it, and yet a deploy has something to do."""
    if case.record is None or not any(one.name == RECORD for one in case.planned):
        return
    for stage in sorted(case.wants.keys() - said):
        paths = case.wants[stage].keys() | case.record["wants"].get(stage, {}).keys()
        grown, moved = (any(ask(stage, path) for path in paths) for ask in (case.grown, case.moved))
        if grown or moved:
            made = case.made(grown, moved)
            yield item(f"{stage}: as recorded", "as it is described now", "as it was described before", made)


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
            by_hand = case.changed(key, part) and not (part == "active" and case.crashed)
            yield item(f"{key} {part}", wanted, is_ or "nothing", case.made(by_hand, False))
    for stage in ("router", "watch", "record"):
        for path in case.seen["facts"][f"{stage}: drop-ins"]:
            made = case.made(case.changed(f"{stage}: drop-ins", path), False)
            ours = path.split("/")[-2].removesuffix(".d") in (case.box.unit, *UNITS, *NIGHTLY_UNITS)
            ours = ours and not path.startswith(("/usr/lib/", "/lib/"))
            do = "" if ours else f"{BY_HAND}: it is a package's, or for a whole kind of units"
            yield item(f"{stage}: drop-in {path}", "none", "alters the unit", made, do)


def _container(case: Case) -> Iterator[Item]:
    key, facts = "router: container", case.seen["facts"]
    running = facts[key]
    if running is None:
        by_hand = case.changed(key) and not case.crashed
        yield item(key, "running", "there is none", case.made(by_hand, False))
        return
    moved = case.moved("router") or case.moved("image")
    for what, (should, is_) in differences(case.box, running, facts["image: id"]).items():
        by_hand = case.changed(key, what) or (what == "image" and case.changed("image: id"))
        # Nobody's hand, and no description, makes a container end; only a hand pauses one.
        ended = what == "status" and is_ != "paused"
        made = Class.NEW if ended else case.made(by_hand or case.grown("router"), moved)
        if what == "environment":
            for name in sorted(should.keys() | (is_ or {}).keys()):
                if should.get(name) != (is_ or {}).get(name):
                    yield item(f"{key} environment {name}", *_values(should.get(name), is_.get(name)), made)
            continue
        yield item(f"{key} {what}", should, is_, made)
    environment, name_of = facts["router: process environment"], "router: process environment"
    wanted = running["environment"]
    for name in case.box.environment:
        if environment and (environment.get(name) or None) != wanted.get(name):
            made = case.made(case.changed(name_of, name), moved)
            yield item(f"{name_of} {name}", *_values(wanted.get(name), environment.get(name)), made)


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
        yield item("router: models", "listed by the router", case.seen["models_error"], made)
        return
    path = case.box.presets_path
    moved, grown = case.moved("router", path), case.grown("router", path)
    for model, keys in sorted(preset_differences(case.box, case.seen["models"]).items()):
        made = case.made(case.changed(f"router: model {model}") or grown, moved)
        should = ", ".join(f"{key} {pair[0] or 'unset'}".strip() for key, pair in sorted(keys.items()))
        is_ = ", ".join(f"{key} {pair[1] or 'unset'}".strip() for key, pair in sorted(keys.items()))
        yield item(f"router: model {model}", should, is_, made)


def _key(case: Case) -> Iterator[Item]:
    key = "router: API key"
    if case.seen["facts"][key].partition(" -> ")[0].endswith(" short"):
        do = f"{BY_HAND}: remove {case.box.key_path} and deploy: a new one is made"
        yield item(
            f"{key}, its length", "16 characters or more", "less", case.made(case.changed(key), False), do
        )


def _strangers(case: Case) -> Iterator[Item]:
    for kind in ("unit", "container", "process"):
        key = f"lanes: vLLM {'processes' if kind == 'process' else f'{kind}s'}"
        for name in case.seen["facts"][key]:
            made = case.made(name not in (case.was(key) or []), False)
            do = f"{BY_HAND}: stop it, or name it in lanes_out"
            yield item(f"lanes: vLLM {kind} {name}", "none", "there", made, do)


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
            yield item(key, should, f"sha256 {digest[:12]}" if other else "another file", made, do)
        elif state == "unverified":
            yield item(
                key, should, "changed since it was read", made, "a deploy (stage models) reads it again"
            )
        elif state == "closed":
            yield item(key, should, "not readable for the server", case.made(True, case.moved("models")))
        elif state != "ok":
            yield item(key, should, state, made)


def _box(case: Case) -> Iterator[Item]:
    """What no stage puts there and a deploy only records."""
    facts = case.seen["facts"]
    if case.record is not None:
        for key in ("box: driver", "box: CUDA", "box: kernel", "box: Docker", "box: firewall"):
            if case.changed(key):
                yield item(key, case.was(key), facts[key], Class.BY_HAND, NOTED)
        for key in ("toolkit: daemon.json", "toolkit: keyring", "toolkit: CDI specs"):
            if case.changed(key):
                should, is_ = case.was(key), facts[key]
                if isinstance(should, str) and isinstance(is_, str):
                    should, is_ = short(should) or "nothing", short(is_) or "nothing"
                yield item(key, should, is_, Class.BY_HAND, NOTED)
        key = "toolkit: apt sources"
        before, now = case.was(key) or {}, facts[key]
        ours = {placed.path for placed in case.box.toolkit_files}
        for path in sorted((before.keys() | now.keys()) - ours):
            if before.get(path) != now.get(path):
                should, is_ = (short(one.get(path, "")) or "nothing" for one in (before, now))
                yield item(f"toolkit: apt source {path}", should, is_, Class.BY_HAND, NOTED)
    allowed = allowed_ports(case.box.data)
    for entry in facts["box: open ports"]:
        port, _, process = entry.partition(" ")
        if port not in allowed:
            made = case.made(entry not in (case.was("box: open ports") or []), False)
            do = f"{BY_HAND}: close it, or add it to open_ports"
            if process == "docker-proxy" and port == str(case.box.data.lane_port):
                do = ""
            yield item(
                f"{'box' if do else 'router'}: open port {port}",
                "closed",
                f"open on all addresses ({process})",
                made,
                do,
            )
