"""A lane that is well, one thing after the other going wrong, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gb10_watch_judge import judge
from gb10_watch_state import History, Model, Observation, Probe, Settings, Unit, Verdict

INTERVAL = 5.0
ACTIONS = frozenset({"restart-lost", "restart-hung", "unload", "stop-crash-loop"})
SETTINGS = Settings(
    reserve_mib=6000,
    pressure_percent=10.0,
    slow_ratio=0.5,
    minimum_tokens=32,
    canary_seconds=1800,
    baselines={"fast": 40.0},
    actions=ACTIONS,
    restarts_an_hour=3,
    backoff_seconds=30,
    crash_restarts=6,
    settle_seconds=60,
    clear_seconds=15,
)
CONTAINER = "c" * 64
UNIT = Unit(since=-10_000.0, invocation="first")
LOADED = Model(
    "fast", "loaded", pid=77, holder="process 77 has it mapped", tokens=0.0, seconds=0.0, requests=0
)


class Lane:
    """``see`` is one look after the next interval; keywords change what is seen, for this look only."""

    def __init__(self, **settings: Any) -> None:
        self.settings = replace(SETTINGS, **settings)
        self.history = History()
        self.at = 1000.0
        self.models: tuple[Model, ...] = (LOADED,)
        self.unit = UNIT
        self.container = CONTAINER
        self.probe = "yes"
        self.devices = ""  # what llama.cpp's own list says, where it is another answer
        self.fully = False
        self.verdicts: list[Verdict] = []

    def see(self, **seen: Any) -> Verdict:
        self.at += INTERVAL
        answer = (self.devices if self.fully else "") or self.probe
        probe = Probe(self.at, answer, "GPU 0", self.fully) if answer else None
        now = Observation(
            at=self.at,
            unit=self.unit,
            container=self.container,
            models=self.models,
            available_mib=20_000,
            pressure_percent=0.0,
            probe=probe,
        )
        verdict = judge(self.history, replace(now, **seen), self.settings)
        self.history = verdict.history
        self.fully = verdict.ask_fully
        self.verdicts.append(verdict)
        return verdict

    def see_for(self, seconds: float, **seen: Any) -> Verdict:
        verdict = None
        for _ in range(int(seconds / INTERVAL)):
            verdict = self.see(**seen)
        assert verdict is not None
        return verdict

    def until(self, wanted: Callable[[Verdict], bool], limit: float = 600, **seen: Any) -> float:
        """Seconds until a verdict is as ``wanted``."""
        began = self.at
        while not wanted(self.see(**seen)):
            assert self.at - began < limit, self.verdicts[-1]
        return self.at - began

    def change(self, name: str = "fast", **values: Any) -> None:
        self.models = tuple(
            replace(model, **values) if model.name == name else model for model in self.models
        )

    def traffic(self, tokens: float, speed: float, name: str = "fast") -> None:
        """The counters move as after that many tokens at that speed."""
        (model,) = [model for model in self.models if model.name == name]
        assert model.tokens is not None
        assert model.seconds is not None
        self.change(name, tokens=model.tokens + tokens, seconds=model.seconds + tokens / speed)

    def restarted(self, invocation: str = "second", container: str = "d" * 64, **values: Any) -> None:
        """The unit has just become active again."""
        self.unit = replace(self.unit, active="active", since=self.at, invocation=invocation, **values)
        self.container = container


def keys(verdict: Verdict) -> list[str]:
    return [reason.key for reason in verdict.reasons]


def kinds(verdict: Verdict) -> list[str]:
    return [action.kind for action in verdict.actions]
