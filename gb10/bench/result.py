"""The file that a bench leaves: its shape, version 1. Speeds are tok/s, times seconds, memory MiB."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from gb10.faults import BadInput, Fault
from gb10.printable import printable

LINE_CHARS = 500


def _line(text: str) -> str:
    return printable(text)[:LINE_CHARS]


# What a model, a router or a program on the box has said may be of any length, and hold what no file and no
# terminal takes.
Line = Annotated[str, AfterValidator(_line)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Figure(_Part):
    """Several runs of the same: median, and spread: how far the farthest run is from the median."""

    median: float
    spread: float = Field(ge=0)
    runs: list[float] = Field(min_length=1)

    @classmethod
    def of(cls, runs: Sequence[float]) -> Figure:
        """Of at least one run."""
        middle = statistics.median(runs)
        return cls(
            median=round(middle, 3),
            spread=round(max(abs(run - middle) for run in runs), 3),
            runs=[round(run, 3) for run in runs],
        )

    @property
    def lowest(self) -> float:
        return self.median - self.spread

    @property
    def highest(self) -> float:
        return self.median + self.spread

    @property
    def usual(self) -> float:
        """The spread without what one outlier makes of it: a run that is more than three times as far from
        the median as every other counts as three times as far."""
        far = sorted((abs(run - self.median) for run in self.runs), reverse=True)
        return min(self.spread, 3 * far[1]) if len(far) > 1 else self.spread

    @property
    def words(self) -> str:
        """For a person: ``50.0 ± 0.4``. One run has no spread."""
        return f"{self.median:.1f} " + (f"± {self.spread:.1f}" if len(self.runs) > 1 else "(1 run)")


class LoadTime(_Part):
    """``memory_mib``: by how much MemAvailable fell while the model loaded (others on the box move it
    too)."""

    seconds: float
    memory_mib: int | None = None


class Speed(_Part):
    """One client, nothing else: ``prompt`` and ``generation`` in tok/s as the server measured them."""

    prompt: Figure
    generation: Figure
    prompt_tokens: int
    tokens: int


class Device(_Part):
    """Where the model ran: ``state`` answered (on the accelerator) or wrong."""

    state: Line
    name: Line = ""
    holder: Line = ""


class ClientsRow(_Part):
    """``clients`` requests at once. ``aggregate``: generated tokens of all for each second, tok/s; ``total``:
    the same with the prompts' tokens. ``skipped`` says why it was not asked."""

    clients: int
    kind: Literal["short", "long"]
    prompt_tokens: int
    tokens: int
    skipped: Line | None = None
    seconds: float | None = None
    aggregate: float | None = None
    total: float | None = None
    first_token: Figure | None = None
    failures: int = 0
    reasons: list[Line] = Field(default_factory=list)


class Verdict(_Part):
    """One task or scenario. ``why`` is empty when it passed."""

    passed: bool
    why: Line = ""
    seconds: float = 0.0


class Rate(_Part):
    """How many of the tasks passed. ``broken_off``: there are others, to which no answer came."""

    passed: int
    of: int
    tasks: dict[Line, Verdict]
    broken_off: bool = False

    @classmethod
    def of_tasks(cls, tasks: dict[str, Verdict], wanted: int | None = None) -> Rate:
        """Of the tasks that were tried, of ``wanted``, if these are more."""
        passed = sum(task.passed for task in tasks.values())
        return cls(passed=passed, of=len(tasks), tasks=tasks, broken_off=len(tasks) < (wanted or 0))

    @property
    def words(self) -> str:
        """For a person: ``9/10``."""
        return f"{self.passed}/{self.of}" + (", broken off" if self.broken_off else "")


class ModelResult(_Part):
    """What was measured of one model; None was not asked, or not reached. ``faults``: one line each."""

    load: LoadTime | None = None
    speed: Speed | None = None
    device: Device | None = None
    clients: list[ClientsRow] = Field(default_factory=list)
    slots: dict[Line, list[ClientsRow]] = Field(default_factory=dict)
    coding: Rate | None = None
    tools: Rate | None = None
    faults: list[Line] = Field(default_factory=list)

    @property
    def on_accelerator(self) -> bool:
        """Whether the figures are of the accelerator, by all that was looked at."""
        return self.device is not None and self.device.state == "answered"


class StoryRun(_Part):
    """One side of a claim of the story, measured: ``value`` in the claim's unit, or ``why`` it was not."""

    value: float | None = None
    spread: float = 0.0
    why: Line = ""


class Image(_Part):
    tag: Line = ""
    id: Line = ""


class Llama(_Part):
    ref: Line
    commit: Line


class Settings(_Part):
    """What was asked. Lengths in tokens; ``tasks`` how many of each kind, None: all. ``named``: the models
    that were asked for by name, none where all were."""

    parts: list[Line] | None = None
    named: list[Line] = Field(default_factory=list)
    runs: int | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    long_tokens: int | None = None
    tasks: int | None = None
    clients: list[int] | None = None
    answer_limit: int | None = None


class Plan(_Part):
    """The memory plan, MiB. ``models``: what each takes, None: not known."""

    total_mib: float = 0
    reserve_mib: float = 0
    models_max: int | None = None
    models: dict[Line, float | None] = Field(default_factory=dict)


class Result(_Part):
    """One bench of one host. ``git``: the project's revision, with ``+`` where files differ from it.
    ``interrupted``: it did not come to its end (Ctrl-C, or the router was gone). ``story``: claim to runs, by
    the names of bench/story.yaml."""

    version: Literal[1] = 1
    host: Line
    started: AwareDatetime
    finished: AwareDatetime | None = None
    interrupted: bool = False
    git: Line = ""
    image: Image = Field(default_factory=Image)
    presets: Line = ""
    llama: Llama
    driver: Line = ""
    settings: Settings = Field(default_factory=Settings)
    plan: Plan = Field(default_factory=Plan)
    models: dict[Line, ModelResult] = Field(default_factory=dict)
    story: dict[Line, dict[Line, StoryRun]] = Field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether there is a figure in it, or the fault of a model that gave none."""
        told = any(run.value is not None for sides in self.story.values() for run in sides.values())
        return told or any(found != ModelResult() for found in self.models.values())


def save(result: Result, folder: Path) -> Path:
    """Write ``HOST-TIME.json`` into ``folder``, whole or not at all; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_part(result.host)}-{result.started:%Y%m%dT%H%M%SZ}.json"
    # Once more through the model: what was added to a list since was not looked at.
    whole = Result.model_validate(result.model_dump())
    write_whole(path, whole.model_dump_json(indent=1) + "\n")
    return path


def load(path: Path) -> Result:
    """Read a result. Raises `BadInput`."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput([Fault(str(path), error.strerror or "cannot be read", "name a result file")]) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        fault = Fault(
            f"{path} {place}", f"no bench result of version 1 ({first['msg']})", "name a result file"
        )
        raise BadInput([fault]) from None


def load_all(folder: Path, host: str | None = None) -> list[Result]:
    """Every result in ``folder``, the oldest first; of one host only, where it is named. Raises
    `BadInput`."""
    found = [load(path) for path in sorted(folder.glob("*.json"))]
    found = [result for result in found if host in (None, result.host)]
    return sorted(found, key=lambda result: result.started)


def save_baselines(result: Result, folder: Path, lower: bool = False) -> tuple[Path, list[str]]:
    """Make the result's generation speeds the baselines of its host; the file, and the models taken in.

    Models that were not measured keep theirs. One that did not run on the accelerator is never taken: its
    figure would make the fallback look right. Raises `BadInput`, and writes nothing, when the file there is
    none of ours, and, unless ``lower``, when a speed has fallen by more than the spread of both: the watch
    would find it right from then on.
    """
    path = folder / f"{file_part(result.host)}.json"
    models = _baselines(path)
    taken, faults = [], []
    for name, found in result.models.items():
        if found.speed is None or not found.on_accelerator:
            continue
        generation = found.speed.generation
        taken.append(name)
        before = _baseline(models.get(name), path, name)
        # The usual spread: one outlier must hide no fall, now or next time.
        spread = round(generation.usual, 3)
        if before is not None and not lower and generation.median + spread < before[0] - before[1]:
            what = f"makes {generation.median} tok/s ± {spread}, and its baseline is {before[0]}"
            do = "find out why; --lower accepts it"
            faults.append(Fault(f"{path} {name}", what, do))
        models[name] = {
            "tokens_per_second": generation.median,
            "spread": spread,
            "image": result.image.tag,
            "presets": result.presets,
            "measured": result.started.isoformat(timespec="seconds"),
        }
    if faults:
        raise BadInput(faults)
    if taken:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"version": 1, "models": models}, indent=1, sort_keys=True) + "\n")
    return path, taken


def _baseline(entry: Any, path: Path, name: str) -> tuple[float, float] | None:
    """Speed and spread of an entry, None where there is none."""
    if entry is None:
        return None
    try:
        found = float(entry["tokens_per_second"]), float(entry.get("spread", 0.0))
        if not all(map(math.isfinite, found)):
            raise ValueError(found)
        return found
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadInput([Fault(f"{path} {name}", "is no baseline", "take its entry out")]) from None


def _baselines(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != 1:
            raise ValueError(content["version"])
        return dict(content["models"])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput([Fault(str(path), "no baselines of version 1", "move it away")]) from None


def file_part(host: str) -> str:
    """A host's name as part of a file name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in host).lstrip(".") or "host"


def write_whole(path: Path, content: str) -> None:
    """Write a file so that a reader sees the old or the new one, never half of it."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
