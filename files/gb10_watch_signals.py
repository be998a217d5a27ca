"""What the watch reads of router, unit and processes. Nothing here loads, evicts or slows a model.

Each function reads one thing and gives plain values; what they mean is decided in gb10_watch_judge.py.
Imported by gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gb10_router as router
from gb10_watch_state import Model, Unit

MODELS_SECONDS = 3.0
# For the list and the figures of all models: a child in the middle of a large batch answers late or not at
# all. Less than gb10_watch_eyes.py waits.
ALL_SECONDS = 3.4
LEAST_SECONDS = 0.2
MOST_MODELS = 500
NAME_LENGTH = 200
ASKED_LENGTH = 2000  # of a name in a URL
TOKENS = "llamacpp:tokens_predicted_total"
SECONDS = "llamacpp:tokens_predicted_seconds_total"
PROCESSING = "llamacpp:requests_processing"
DEFERRED = "llamacpp:requests_deferred"
DECODES = "llamacpp:n_decode_total"
BUSY = "llamacpp:n_busy_slots_per_decode"
PROMPTS = "llamacpp:prompt_tokens_total"
READING = "llamacpp:prompt_seconds_total"
CACHED = "llamacpp:prompt_tokens_cached_total"
RATE = "llamacpp:predicted_tokens_seconds"
FIGURES = frozenset({TOKENS, SECONDS, PROCESSING, DEFERRED, DECODES, BUSY, PROMPTS, READING, CACHED, RATE})
MOST_TOKENS = 10**9  # of one answer
MOST_SPEED = 1e6
# Programs that only run another, and what may stand before its name: options, settings, numbers.
_RUNS_ANOTHER = re.compile(r"env|ionice|nice|nohup|setsid|sudo|timeout|uv|uvx")
_NO_PROGRAM = re.compile(r"-.*|\w+=.*|[0-9.]+[smhd]?|run")
_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z)?sh")
_MODULE = re.compile(r"-[bBdEiIOPqsSuv]*m(.*)")
_COMMAND = re.compile(r"-[a-zA-Z]*c")
_CONTAINER = re.compile(r"(?:docker[-/])([0-9a-f]{64})(?:\.scope)?$")


class Unasked(Exception):
    """The watch itself could not ask."""


# -- the router ---------------------------------------------------------------------------------------


def router_models(lane: dict[str, Any], skip: frozenset[str] = frozenset()) -> tuple[Model, ...]:
    """The router's models, those that are loaded with their figures, as far as they come in time.

    ``skip`` are models that have not answered just now: they are not asked again at once. Raises
    ``RouterError``, `Unasked` where it could not be asked, ConnectionError or TimeoutError where nothing
    answers.
    """
    try:
        return _router_models(lane, skip)
    except (ConnectionError, TimeoutError, router.RouterError):
        raise
    except OSError as error:
        # The key that is not there, no file left to open, no port, no name: of the router it says nothing.
        at = lane["key_file"] if error.filename is not None else "the router"
        what = "read the API key" if error.filename is not None else "ask it"
        raise Unasked(f"the watch cannot {what} ({at}: {error.strerror or error})") from None


def _router_models(lane: dict[str, Any], skip: frozenset[str]) -> tuple[Model, ...]:
    until = time.monotonic() + ALL_SECONDS
    states = router.model_states(router.request(lane, "GET", "/models", timeout=MODELS_SECONDS))
    if len(states) > MOST_MODELS:
        raise router.RouterError(f"GET /models names {len(states)} models: is this llama.cpp?")
    models = []
    for own, (state, failed) in states.items():
        name = Name(clean(own))
        name.called = own
        figures: dict[str, float] = {}
        if state == "loaded" and 0 < len(own) <= ASKED_LENGTH and name not in skip:
            # One that is busy, or on its way out, gives none: the next look tells.
            with contextlib.suppress(router.RouterError, OSError):
                figures = read_metrics(_metrics(lane, name, until))
        models.append(with_figures(Model(name, clean(state), failed), figures))
    # The counters move when an answer ends; one that is long and alone shows its speed before.
    if sum(model.requests or 0 for model in models) == 1:
        models = [_written(lane, model, until) if model.requests else model for model in models]
    return tuple(models)


def with_figures(model: Model, figures: Mapping[str, float]) -> Model:
    """The model with what `read_metrics` has read of it."""
    requests = busy = None
    if PROCESSING in figures:
        requests = int(figures[PROCESSING] + figures.get(DEFERRED, 0))
    if BUSY in figures and DECODES in figures:
        # Printed as a mean with six digits; a whole number as long as these are enough for it.
        busy = round(figures[BUSY] * figures[DECODES])
    return replace(
        model,
        tokens=figures.get(TOKENS),
        seconds=figures.get(SECONDS),
        requests=requests,
        decodes=figures.get(DECODES),
        busy=busy,
        prompts=figures[PROMPTS] + figures.get(CACHED, 0) if PROMPTS in figures else None,
        reading=figures.get(READING),
        rate=figures.get(RATE),
        read=time.monotonic() if figures else None,
    )


class Name(str):
    """A model's name as it is shown, and the router's own with it."""

    called: str


def called(name: str) -> str:
    """What the router calls the model that is shown as ``name``."""
    return name.called if isinstance(name, Name) else name


def clean(name: str) -> str:
    """A name as it may stand in a journal, a file and a message to systemd."""
    return router.one_line(name)[:NAME_LENGTH] or "?"


def _written(lane: dict[str, Any], model: Model, until: float) -> Model:
    try:
        slots = router.request(lane, "GET", f"/slots?{_query(model.name)}", timeout=_left(until))
    except (router.RouterError, OSError):
        return model  # not served, or busy
    return replace(model, answer=read_answer(slots), depth=read_depth(slots))


def read_answer(slots: Any) -> tuple[int, int] | None:
    """Number and tokens so far of the one answer that is being written; None while a prompt is read, and
    for any other shape."""
    try:
        ((task, tokens),) = [
            (int(slot["id_task"]), int(slot["next_token"][0]["n_decoded"]))
            for slot in slots
            if slot["is_processing"]
        ]
    except (LookupError, TypeError, ValueError, OverflowError):
        return None
    return (task, tokens) if 0 < tokens < MOST_TOKENS else None


def read_depth(slots: Any) -> int | None:
    """Tokens of the longest sequence that is worked on, its prompt among them; None for any other shape."""
    try:
        return max(int(slot["n_prompt_tokens"]) for slot in slots if slot["is_processing"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def _left(until: float) -> float:
    return max(LEAST_SECONDS, until - time.monotonic())


def _metrics(lane: dict[str, Any], model: str, until: float) -> str:
    content = router.fetch(lane, "GET", f"/metrics?{_query(model)}", timeout=_left(until))
    return content.decode(errors="replace")


def _query(model: str) -> str:
    # Without autoload=false the look itself would load a model that has just been evicted.
    asked = {"model": called(model), "autoload": "false"}
    return urllib.parse.urlencode(asked, errors="replace")


def read_metrics(text: str) -> dict[str, float]:
    """The figures that the watch needs out of a text in Prometheus' format. What is no number is left
    out, and so is what is negative or without end."""
    figures = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in FIGURES:
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number) and 0 <= number < 1e15:
                figures[name] = number
    return figures


def canary(lane: dict[str, Any], model: str, tokens: int, timeout: float = 60) -> float:
    """Tokens per second of one short answer of a model that is loaded. Raises ``RouterError``, OSError.

    Never loads: a model that was evicted meanwhile gives an error.
    """
    body = {
        "model": called(model),
        "prompt": "Count from one to twenty in words.",
        "n_predict": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
    }
    answer = router.request(lane, "POST", "/completion?autoload=false", body, timeout)
    try:
        speed = float(answer["timings"]["predicted_per_second"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise router.RouterError("a completion has no timings") from None
    if not 0 < speed < MOST_SPEED:
        raise router.RouterError("a completion has no speed")
    return speed


# -- the unit ---------------------------------------------------------------------------------------


def unit_of(name: str) -> Unit:
    """The unit's state, from systemd. A systemd that does not answer gives the state ``unknown``."""
    wanted = "ActiveState,Result,NRestarts,ActiveEnterTimestampMonotonic,InvocationID,ExecMainStatus"
    command = ["systemctl", "show", f"--property={wanted}", name]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    return read_unit(shown)


def read_unit(shown: str) -> Unit:
    """What ``systemctl show`` printed."""
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def number(key: str) -> int:
        return int(values[key]) if values.get(key, "").isdigit() else 0

    return Unit(
        active=values.get("ActiveState", "") or "unknown",
        result=values.get("Result", ""),
        restarts=number("NRestarts"),
        since=number("ActiveEnterTimestampMonotonic") / 1e6,
        invocation=values.get("InvocationID", ""),
        status=number("ExecMainStatus"),
    )


def stale_baselines(
    measured: Mapping[str, Mapping[str, str]], lane: Mapping[str, Any], run: str
) -> dict[str, str]:
    """Model to what is another one since its baseline: the image, or the presets that the router has read."""
    presets = text_of(f"{run}/{lane['lane']}/presets.sha256", 200).partition(" ")[0]
    found = {}
    for name, one in measured.items():
        others = ["another image"] if one["image"] not in ("", lane.get("image", "")) else []
        others += ["other presets"] if presets and one["presets"] not in ("", presets) else []
        if others:
            found[name] = " and ".join(others)
    return found


# -- processes --------------------------------------------------------------------------------------


def text_of(path: str, most: int = 1 << 20) -> str:
    """The content of a small file, empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def arguments_of(pid: int, proc: str = "/proc") -> list[str]:
    """A process's command line, empty for one that has gone."""
    return text_of(f"{proc}/{pid}/cmdline", 65536).split("\0")[:-1]


def processes(proc: str = "/proc") -> list[int]:
    """All process ids."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def cgroup_of(pid: int, proc: str = "/proc") -> str:
    """The path of a process's cgroup below /sys/fs/cgroup, empty when it is not known."""
    for line in text_of(f"{proc}/{pid}/cgroup", 65536).splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def find_container(presets: str, proc: str = "/proc") -> tuple[str, str]:
    """Id and cgroup of the container whose router reads the preset file ``presets``; empty when none runs.

    Docker is not asked: its socket would make the watch as good as root.
    """
    for pid in processes(proc):
        # Its cgroup first: a stranger's command line could keep us waiting (see gb10_watch_eyes.py).
        cgroup = cgroup_of(pid, proc)
        found = _CONTAINER.search(cgroup)
        if found and presets in arguments_of(pid, proc):
            return found[1], cgroup
    return "", ""


def children_of(cgroup: str, proc: str = "/proc", sys: str = "/sys") -> dict[str, int]:
    """Model name to process id of the servers in the container. Empty when the container has gone."""
    found = {}
    for line in text_of(f"{sys}/fs/cgroup{cgroup}/cgroup.procs").split():
        arguments = arguments_of(int(line), proc)
        # docker-init and the router itself have no alias.
        if "--alias" in arguments[:-1]:
            alias = arguments[arguments.index("--alias") + 1]
            found[clean(alias.partition(",")[0])] = int(line)
    return found


def container_alive(cgroup: str, sys: str = "/sys") -> bool:
    """True while a process is left in the container's cgroup."""
    return bool(cgroup) and bool(text_of(f"{sys}/fs/cgroup{cgroup}/cgroup.procs"))


def holder_of(pid: int, signal: dict[str, Any], proc: str = "/proc") -> str | None:
    """How the process holds the accelerator, empty when it does not, None when it cannot be seen."""
    try:
        return router.accelerator_holder(pid, signal, proc)
    except (OSError, ValueError, LookupError):
        return None


def swapped_mib(pid: int, proc: str = "/proc") -> int:
    """MiB of the process that are swapped out."""
    found = re.search(r"^VmSwap:\s+(\d+) kB$", text_of(f"{proc}/{pid}/status", 65536), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


def rivals(
    units: Iterable[str], patterns: Iterable[str], ours: str, proc: str = "/proc", sys: str = "/sys"
) -> tuple[str, ...]:
    """Units that run, and processes whose program's name begins like a pattern.

    ``ours`` is the container's cgroup: what runs in it is no rival. A kernel shows a title that a process
    gives itself (``VLLM::EngineCore``) as its command line.
    """
    found = [f"unit {unit}" for unit in units if text_of(f"{sys}/fs/cgroup/system.slice/{unit}/cgroup.procs")]
    wanted = [re.compile(pattern) for pattern in patterns]
    seen: dict[str, None] = {}
    for pid in processes(proc) if wanted else ():
        arguments = arguments_of(pid, proc)
        program = program_of(arguments)
        named = any(pattern.match(program) for pattern in wanted)
        if named and (not ours or cgroup_of(pid, proc) != ours):
            shown = " ".join(map(_last_part, arguments[:4]))
            seen[f"process {router.one_line(shown[:60])}"] = None
    return (*found, *seen)


def program_of(arguments: Sequence[str]) -> str:
    """The name of the program that a command line runs: of an interpreter that of its script or module."""
    words = list(arguments)
    name = _last_part(words.pop(0)) if words else ""
    while _RUNS_ANOTHER.fullmatch(name):
        while words and _NO_PROGRAM.fullmatch(words[0]):
            words.pop(0)
        if not words:
            break
        name = _last_part(words.pop(0))
    if not _INTERPRETER.fullmatch(name):
        return name
    while words and words[0].startswith("-"):
        option = words.pop(0)
        module = _MODULE.fullmatch(option)
        if module:
            return module[1] or "".join(words[:1])
        if _COMMAND.fullmatch(option):
            return name  # what that runs is a process of its own
        if option in ("-X", "-W", "-o"):
            words = words[1:]
    return _last_part(words[0]) if words else name


def _last_part(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def accelerator_users(listed: str, allowed: Iterable[str]) -> dict[int, str]:
    """Process id to name of who holds GPU memory, from lines of ``PID, NAME, ...`` as nvidia-smi prints
    them."""
    patterns = [re.compile(pattern) for pattern in allowed]
    found = {}
    for line in listed.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 2 or not fields[0].isdigit():
            continue
        if not any(pattern.search(fields[1]) for pattern in patterns):
            found[int(fields[0])] = router.one_line(fields[1].rsplit("/", 1)[-1][:60])
    return found


def accelerator_rivals(users: Mapping[int, str], ours: str, proc: str = "/proc") -> tuple[str, ...]:
    """Those of the users who are still there and not in the container, whose cgroup is ``ours``.

    The list may be half a minute old: a model that was evicted since is no rival.
    """
    return tuple(
        f"{name} (process {pid}) on the GPU"
        for pid, name in users.items()
        if (cgroup := cgroup_of(pid, proc)) and cgroup != ours
    )
