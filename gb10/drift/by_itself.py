"""What came up by itself: crashes, full disks, a clock that is wrong, a look at night that does not come."""

from __future__ import annotations

from collections.abc import Iterator

from gb10.drift.case import BY_HAND, NOTED, Case, item
from gb10.drift.report import Class, Item
from gb10.record import COUNTED, events

CLOCK_SECONDS = 30
HOUR = 3600
NIGHT_SECONDS = 36 * HOUR  # a look each night, and room for a box that was off at that hour
STARTED_SECONDS = HOUR  # what a look that was missed gets after a start of the box


def of_events(case: Case) -> Iterator[Item]:
    if case.record is None:
        return
    counted = events(case.record, case.seen["readings"])
    for counter, name in COUNTED.items():
        if counted[counter]:
            yield item(name, "0 since the last deploy", f"{counted[counter]} since", Class.NEW, NOTED)


def of_readings(case: Case) -> Iterator[Item]:
    readings, percent = case.seen["readings"], case.box.data.drift_disk_percent
    said: set[tuple[int, ...]] = set()
    for path, (free, size) in readings["disks"].items():
        used = 100 * (size - free) / size if size else 0
        if used > percent and (free, size) not in said:
            said.add((free, size))
            do = f"{BY_HAND}: make room (`gb10 models`, docker image prune), or raise drift_disk_percent"
            yield item(f"box: disk {path}", f"at most {percent} % full", f"{used:.0f} % full", Class.NEW, do)
    # The box read its clock at some time of the look.
    early, late = readings["time"] - (case.now - readings["took"]), readings["time"] - case.now
    skew = min(early, 0) or max(late, 0)
    if abs(skew) > CLOCK_SECONDS:
        do = f"{BY_HAND}: timedatectl set-ntp true"
        yield item(
            "box: clock", f"within {CLOCK_SECONDS} s of this machine's", f"{skew:+.0f} s", Class.NEW, do
        )
    if readings["reboot"] is not None:
        why = " ".join(readings["reboot"]) or "an update"
        yield item("box: reboot", "not wanted", f"wanted by {why}", Class.NEW, f"{BY_HAND}: reboot it")
    files = (case.box.presets_path, case.box.lane_path, case.box.unit_file.path)
    if (back := readings["rolled_back"]) and any(case.edited(path) for path in files):
        is_ = f"lane {back['number']} since {back['time']}, by a rollback"
        yield item("router: rollback", "the lane of the last deploy", is_, Class.NEW)
    if readings["apt"]:
        made = case.made(case.changed("toolkit: apt sources"), False)
        do = f"{BY_HAND}, where a deploy does not help: `apt-get update` on the box says more"
        yield item("toolkit: apt", "can read its lists", readings["apt"], made, do)
    for package, (installed, candidate) in readings["would_move"].items():
        do = f"{BY_HAND}: look at `apt-cache policy {package}`: another pin, or a source that goes before it"
        pinned = [placed.path for placed in case.box.toolkit_files]
        made = case.made(any(case.edited(path) for path in pinned), False)
        yield item(f"toolkit: apt would move {package}", installed, f"next: {candidate}", made, do)


def of_the_night(case: Case) -> Iterator[Item]:
    """Whether the box still looks at itself: a last word of "clean" says nothing once nobody looks."""
    if case.record is None:
        return
    night = case.seen["readings"]["night"]
    if night["unit"] not in ("", "success"):
        do = f"{BY_HAND}: `journalctl -u gb10-drift` says why; then `systemctl start gb10-drift`"
        yield item("record: gb10-drift.service", "ended well", f"failed ({night['unit']})", Class.NEW, do)
    age = night["deploy"] if night["result"] is None else night["result"]
    if (age or 0) > NIGHT_SECONDS and (night["timer"] is None or night["timer"] > STARTED_SECONDS):
        is_ = f"{age / HOUR:.0f} h ago" if night["result"] is not None else "none since the deploy"
        do = f"{BY_HAND}: `systemctl start gb10-drift`, and `systemctl status gb10-drift.timer`"
        should = f"within {NIGHT_SECONDS // HOUR} h"
        yield item("record: last look at night", should, is_, Class.NEW, do)
