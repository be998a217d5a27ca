"""What the watch sees and remembers: values only. Imported by the programs of the watch.

Times are seconds of one clock that only goes forward, memory is MiB, speed is tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTHY, DEGRADED, FAILED = "healthy", "degraded", "failed"
RANK = {HEALTHY: 0, DEGRADED: 1, FAILED: 2}


@dataclass(frozen=True)
class Settings:
    """What of the box's data the judgement needs: see `watch_*` in group_data/all.py."""

    reserve_mib: int
    pressure_percent: float
    slow_ratio: float
    minimum_tokens: int
    canary_seconds: int
    baselines: Mapping[str, float]
    actions: frozenset[str]
    restarts_an_hour: int
    backoff_seconds: int
    crash_restarts: int
    settle_seconds: int
    clear_seconds: int
    start_seconds: int = 0  # how long a start may take: the gate waits for the accelerator
    probe_seconds: int = 10


@dataclass(frozen=True)
class Unit:
    """The lane's unit as systemd says. ``since``: when it got active, ``restarts``: by systemd itself,
    ``status``: with which its main process ended last."""

    active: str = "active"
    result: str = "success"
    restarts: int = 0
    since: float = 0.0
    invocation: str = ""
    status: int = 0


@dataclass(frozen=True)
class Model:
    """One model of the router. None is "not known": not loaded, or the look did not succeed.

    ``holder`` is how its process holds the accelerator, in words, empty when it does not.
    """

    name: str
    state: str
    failed: bool = False
    pid: int | None = None
    holder: str | None = None
    tokens: float | None = None
    seconds: float | None = None
    requests: int | None = None
    decodes: float | None = None  # steps of the model, each for all its clients at once
    busy: float | None = None  # clients at a step, summed over the steps
    prompts: float | None = None  # tokens of prompts, those that were in the cache among them
    reading: float | None = None  # seconds of steps with prompts
    rate: float | None = None  # tokens per second of the answers that ended since it was last asked for
    answer: tuple[int, int] | None = None  # the one that is being written: its number, tokens so far
    depth: int | None = None  # tokens of its whole sequence, the prompt among them
    read: float | None = None  # when these figures were: a look may have waited for another model's
    swap_mib: int = 0
    file_gone: str = ""

    @property
    def loaded(self) -> bool:
        return self.state == "loaded"

    @property
    def changing(self) -> bool:
        """On the way from one state to another."""
        return self.state not in ("loaded", "unloaded", "sleeping", "downloaded")


@dataclass(frozen=True)
class Probe:
    """Whether a new process in the container gets the accelerator: yes, no, or unknown with the reason.

    ``full``: asked of llama.cpp itself, and not of the driver's tool.
    """

    at: float
    answer: str
    text: str
    full: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened since the last look: ``kind`` is oom or driver."""

    kind: str
    text: str
    pid: int = 0


@dataclass(frozen=True)
class Done:
    """An action that has ended. ``error`` is empty when it did what it should. ``left``: it was not begun,
    since the unit had changed."""

    kind: str
    target: str
    error: str = ""
    left: bool = False


@dataclass(frozen=True)
class Observation:
    """One look."""

    at: float
    unit: Unit
    container: str = ""
    router_fault: str = ""  # it gives no answer
    refusal: str = ""  # it answers, and not as it should; or it could not be asked
    waiting: bool = False  # its answer is still to come: the models are as they were
    models: tuple[Model, ...] = ()
    available_mib: int | None = None
    pressure_percent: float | None = None
    events: tuple[Event, ...] = ()
    rivals: tuple[str, ...] = ()
    probe: Probe | None = None
    canaries: Mapping[str, float] = field(default_factory=dict)  # speeds that have come in since
    asking: frozenset[str] = frozenset()  # models that a canary is asking now
    busy: bool = False  # an action is under way
    done: tuple[Done, ...] = ()
    blind: Mapping[str, str] = field(default_factory=dict)  # what gives no answer, and why
    stale: Mapping[str, str] = field(default_factory=dict)  # model to what has changed since its baseline


@dataclass(frozen=True)
class Reason:
    """Why the lane is not healthy. ``key`` stays the same while the text may change."""

    key: str
    state: str
    text: str
    confirm: float = 0.0  # seconds that it must last before it counts


@dataclass(frozen=True)
class Raised:
    """A reason that counts, since when, and when it was last seen."""

    reason: Reason
    since: float
    seen: float


@dataclass(frozen=True)
class Speed:
    """What is known of one loaded model's speed.

    The model as it was at the last look that gave figures (``seen``), at the last figure of counters
    (``counted``), and where the answer in the works was followed from (``followed``), the last two with the
    look's time.
    ``steps`` and ``took`` (seconds) have been gathered since ``counted``, and ``deepest`` is the longest
    sequence since. ``company_at``: when anybody else than one client was last seen at work on the lane.
    ``low``: the last slow figures of one client alone, each with its time; ``slow``: they have lasted.
    ``canaries`` counts slow canaries in a row.
    """

    seen: Model
    counted: Model
    followed: Model
    counted_at: float
    followed_at: float
    used: float  # when somebody last used the model
    worked: float  # when it last did more for somebody than a step now and then
    company_at: float
    steps: float = 0.0
    took: float = 0.0
    deepest: int = 0
    figure: float | None = None
    figure_at: float = 0.0
    suspect: bool = False
    low: tuple[tuple[float, float], ...] = ()
    slow: bool = False
    canaries: int = 0
    asked: float = 0.0  # when a canary was last wanted
    cleared: float = float("-inf")  # when a canary last said that it is sound


@dataclass(frozen=True)
class Action:
    """``kind``: restart, stop or unload (``target`` is the model)."""

    kind: str
    reason: str
    target: str = ""


@dataclass(frozen=True)
class Recovery:
    """A restart by the watch of which is not known yet whether it helped.

    ``proven``: the probe had succeeded in the container before. ``ended``: the restart itself is over.
    """

    began: float
    why: str
    proven: bool = False
    ended: bool = False


@dataclass(frozen=True)
class History:
    """All that is remembered from look to look."""

    waiting: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # first seen, how often
    raised: Mapping[str, Raised] = field(default_factory=dict)
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    deaths: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()
    crashes: tuple[float, ...] = ()  # restarts by systemd itself
    restarts: int | None = None  # its count of them
    attempts: tuple[float, ...] = ()  # restarts by the watch
    stopped: str = ""  # why the watch stopped the lane
    unstopped: tuple[tuple[float, str], ...] = ()  # its stops that have failed: when, and why
    kept: Mapping[str, float] = field(default_factory=dict)  # model to when its unload has failed
    recovery: Recovery | None = None
    answered: str = ""  # the invocation of the unit whose router has answered
    unanswered: float = float("-inf")  # when the router last gave no answer
    ran: str = ""  # the invocation of the unit in which the main process has run
    invocation: str = ""  # of the unit at the last look, and the container in it
    container: str = ""
    full: float = float("-inf")  # when llama.cpp itself was last asked for the accelerator
    proven: str = ""  # the container in which the probe has succeeded
    proven_full: str = ""  # and the one in which llama.cpp has listed the accelerator
    unloaded: float = float("-inf")  # when the watch last unloaded a model


@dataclass(frozen=True)
class Verdict:
    """The outcome of a look. ``recovered`` is set once a restart by the watch has shown its effect."""

    history: History
    state: str
    reasons: tuple[Reason, ...]
    actions: tuple[Action, ...] = ()
    canaries: tuple[str, ...] = ()
    recovered: str = ""
    ask_fully: bool = False  # the next probe is to ask llama.cpp itself
