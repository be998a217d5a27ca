"""`gb10 status` as one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gb10.requirements import under_way

COLOURS = {"healthy": "green", "degraded": "yellow", "failed": "red", "unknown": "magenta"}
_BAR = 40


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: ``3 d 4 h``, ``12 min``."""
    if seconds is None:
        return "?"
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // smaller)} {small}"
    return f"{int(seconds // 60)} min" if seconds >= 60 else f"{int(seconds)} s"


def status_view(name: str, status: Mapping[str, Any]) -> RenderableType:
    """``status`` as `status_json` gives it, or ``state`` and ``reasons`` alone of a box that went away."""
    state = status["state"]
    if "lane" not in status:
        why = [Text(f"  {reason}") for reason in status["reasons"]]
        return Group(Text.assemble((f" {state} ", "bold black on red"), f"  {name}"), *why)
    head = Text.assemble((f" {state} ", f"bold black on {COLOURS.get(state, 'magenta')}"), f"  {name}")
    if status["since"]:
        head.append(f", since {status['since']}")
    reasons = [Text(f"  {reason}", style=COLOURS.get(state, "")) for reason in status["reasons"]]
    return Group(head, *reasons, _facts(status), _models(status), *_actions(status))


def _facts(status: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    lane, image, watch = status["lane"], status["image"], status["watch"]
    # Text: what a box says must not be read as markup.
    table.add_row("lane", _lane(lane, by_hand=not status["deploy"]))
    if status["deploy"]:
        table.add_row("deploy", Text(under_way(status["deploy"]), style="yellow"))
    if status["router"]:
        table.add_row("router", Text(status["router"], style="red"))
    running = Text(image["running"] or "no container runs")
    if image["same"] is False:
        running.append(f"  (described: {image['described']})", style="yellow")
    table.add_row("image", running)
    table.add_row("memory", _memory(status["memory"]))
    table.add_row("watch", _watch(watch))
    stale = [f"{one['name']} ({one['baseline_stale']})" for one in status["models"] if one["baseline_stale"]]
    if stale:
        what = f"of something else: {', '.join(stale)}; gb10 bench --save-baseline measures again"
        table.add_row("baselines", Text(what, style="yellow"))
    found = [one["name"] for one in status["models"] if not one["in_catalogue"]]
    if found:
        what = f"on the box and in no catalogue: {', '.join(found)}; gb10 plan --on-box has their MiB"
        table.add_row("found", Text(what))
    table.add_row("drift", _night(status["drift"]))
    table.add_row("up", duration(status["uptime_seconds"]))
    return table


def _lane(lane: Mapping[str, Any], by_hand: bool) -> Text:
    if not lane["enabled"] and lane["active"] == "inactive":
        return Text(f"there is no {lane['unit']} on this box", style="yellow")
    if lane["active"] in ("inactive", "failed") and by_hand:
        return Text(f"{lane['unit']} {lane['active']}: systemctl start {lane['unit']} starts it", style="red")
    since = "" if lane["seconds"] is None else f" for {duration(lane['seconds'])}"
    return Text(
        f"{lane['unit']} {lane['active']}{since} on {lane['address']}, {lane['restarts']} restarts by systemd"
    )


def _night(night: Mapping[str, Any] | None) -> Text:
    """What the nightly look has found, with the way to know more."""
    if night is None:
        return Text("the box has not looked at itself yet: gb10 drift looks now", style="dim")
    on = f" on {night['time']}" if night["time"] else ""
    if night["state"] == "unknown":
        last = f"last look{on}; " if on else ""
        return Text(f"could not tell: {night['reason']} ({last}gb10 drift)", style=COLOURS["unknown"])
    told = "; notify_command did not take it" if night["untold"] else ""
    if night["state"] == "clean":
        return Text(f"none{on}{told}", style="yellow" if told else COLOURS["healthy"])
    shown = ", ".join(night["items"][:3]) + (", …" if len(night["items"]) > 3 else "")
    count = len(night["items"])
    what = f"{count} difference{'s' if count != 1 else ''}{on}: {shown} (gb10 drift){told}"
    return Text(what, style="yellow")


def _memory(memory: Mapping[str, Any]) -> Text:
    total, available = memory["total"], memory["available"]
    used = max(0, total - available)
    filled = round(_BAR * used / total) if total else 0
    low = available < memory["reserve"]
    text = Text.assemble(
        ("█" * filled, "red" if low else "blue"),
        ("░" * (_BAR - filled), "dim"),
        f" {available} MiB available",
    )
    plan = memory["planned_loaded"]
    text.append(f" of {total}; planned: {'?' if plan is None else plan} MiB for what is loaded")
    if memory["planned_worst"] is not None:
        text.append(f", {memory['planned_worst']} at worst of {memory['budget']}")
    return text.append(f"; a model is unloaded below {memory['reserve']}")


def _watch(watch: Mapping[str, Any]) -> Text:
    if watch["note"]:
        return Text(watch["note"], style="yellow")
    text = Text(f"{watch['active']} for {duration(watch['seconds'])}")
    if watch["restarts"]:
        text.append(f", started again {watch['restarts']} times", style="yellow")
    probe = watch["probe"]
    if probe:
        style = "" if probe["answer"] == "yes" else "red"
        text.append(f"; a new process gets the accelerator: {probe['answer']} ({probe['text']})", style=style)
    if not watch["described"]:
        text.append("; another version than described: run the deploy", style="yellow")
    return text


def _models(status: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("state")
    for heading in ("tok/s", "baseline", "%", "requests\nnow", "planned\nMiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in sorted(status["models"], key=lambda model: (model["state"] != "loaded", model["name"])):
        speed, baseline = model["tokens_per_second"], model["baseline"]
        share = f"{100 * speed / baseline:.0f}" if speed is not None and baseline else ""
        table.add_row(
            Text(model["name"]),
            _state(model),
            "" if speed is None else f"{speed:.1f}",
            "" if baseline is None else f"{baseline:.1f}",
            share,
            "" if model["requests"] is None else str(model["requests"]),
            "" if model["planned_mib"] is None else str(model["planned_mib"]),
        )
    return table


def _state(model: Mapping[str, Any]) -> Text:
    if model["failed"]:
        return Text(f"{model['state']}, failed", style="red")
    if model["on_accelerator"] is False:
        return Text(f"{model['state']} ON THE CPU", style="bold red")
    return Text(model["state"], style="green" if model["state"] == "loaded" else "")


def _actions(status: Mapping[str, Any]) -> list[RenderableType]:
    if not status["actions"]:
        return [Text("the watch has done nothing so far", style="dim")]
    table = Table.grid(padding=(0, 2))
    for action in status["actions"]:
        what = f"{action.get('action', '?')} {action.get('target', '')}".strip()
        text = action["result"] if "result" in action else f"begun: {action.get('reason', '')}"
        table.add_row(*(Text(str(cell)) for cell in (action.get("at", ""), what, text)))
    return [Text("last actions"), table]
