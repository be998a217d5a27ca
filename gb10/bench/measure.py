"""The measurements themselves: load time, one client alone, and several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gb10.bench.prompts import ClientLoad, PromptSource
from gb10.bench.residents import alone, residents
from gb10.bench.result import ClientsRow, Figure, LoadTime, Speed
from gb10.bench.router import Completion, Router, RouterFault, Work

TRIES = 4

Step = Callable[[str], None]
"""Called with what is done now, for the progress."""
Done = TypeVar("Done")


def undisturbed(
    router: Router, model: str, run: Callable[[], Done], tokens: Callable[[Done], int | None]
) -> Done:
    """What ``run`` gives once nobody else was answered beside it, by any model: after a few tries.

    ``tokens``: how many of prompt and answer were ours. More than these in a model's own counters were
    somebody else's, however short. None: not all of it was answered, and nobody knows. Raises `RouterFault`.
    """
    for _ in range(TRIES):
        alone(router)
        before = router.work()
        done = run()
        ours = tokens(done)
        if ours is None or not (
            any(residents(router).busy.values()) or disturbed(before, router.work(), model, ours)
        ):
            return done
    raise RouterFault(f"somebody else was answered meanwhile, {TRIES} times: a figure would be of both")


def disturbed(
    before: Mapping[str, Work | None], after: Mapping[str, Work | None], model: str, ours: int
) -> bool:
    """Whether somebody else was at work between the two, where ``model`` did ``ours`` tokens. A model that
    does not say what it has done is taken at its silence, one that came or went is not."""
    if before.keys() != after.keys():
        return True
    for name, later in after.items():
        sooner = before[name]
        expected = ours if name == model else 0
        if later and sooner and abs(later.tokens - sooner.tokens - expected) > later.coarse:
            return True
    return False


def load_time(
    router: Router, model: str, free_mib: Callable[[], int | None], cut: Collection[str] = ()
) -> LoadTime:
    """Unload ``model`` and every other one, load it again. ``free_mib`` reads the box's MemAvailable.

    The others go first: a load that pushes one out would give back that one's memory. Where another one comes
    or goes meanwhile all the same, the memory is not known. One that answers somebody is not unloaded, but
    for those in ``cut``. Raises `RouterFault`.
    """
    for name in router.loaded():
        alone(router, but=cut)
        router.unload(name)
    only = router.loaded() == []
    before = free_mib()
    seconds = router.load(model)
    after = free_mib()
    only = only and router.loaded() == [model]
    taken = before - after if only and before is not None and after is not None else 0
    # A load frees nothing: then something else on the box did, by more than the model took.
    return LoadTime(seconds=round(seconds, 2), memory_mib=taken if taken > 0 else None)


def speed(
    router: Router, model: str, prompts: PromptSource, *, runs: int, prompt: int, answer: int, step: Step
) -> Speed:
    """``runs`` requests, one after the other, of ``prompt`` and ``answer`` tokens. Raises `RouterFault`, also
    where somebody else is answered beside them."""
    # The first request after a load also pays for buffers and kernels that are made then.
    router.complete(model, prompts.take(prompt), 1)
    done: list[Completion] = []
    for number in range(runs):
        step(f"run {number + 1} of {runs}")
        done.append(
            undisturbed(
                router,
                model,
                lambda: router.complete(model, prompts.take(prompt), answer),
                lambda one: one.prompt_tokens + one.tokens,
            )
        )
    return Speed(
        prompt=Figure.of([one.prompt_speed for one in done]),
        generation=Figure.of([one.speed for one in done]),
        prompt_tokens=done[-1].prompt_tokens,
        tokens=done[-1].tokens,
    )


def clients(router: Router, model: str, prompts: PromptSource, load: ClientLoad) -> ClientsRow:
    """``load.clients`` requests at the same time. A request that fails is counted, with its reason. Raises
    `RouterFault` where somebody else is answered beside them."""
    crowd = undisturbed(
        router,
        model,
        lambda: _at_once(router, model, prompts, load),
        # What a failed request has made of its tokens nobody says.
        lambda crowd: None if crowd.reasons else crowd.prompt_tokens + crowd.tokens,
    )
    row = ClientsRow(
        clients=load.clients,
        kind="long" if load.kind == "long" else "short",
        prompt_tokens=load.prompt,
        tokens=load.answer,
        seconds=round(crowd.seconds, 3),
        failures=load.clients - len(crowd.done),
        reasons=sorted(set(crowd.reasons)),
    )
    if crowd.done:
        row.aggregate = round(crowd.tokens / crowd.seconds, 2)
        row.total = round((crowd.tokens + crowd.prompt_tokens) / crowd.seconds, 2)
        row.first_token = Figure.of([one.first_token for one in crowd.done])
    return row


@dataclass(frozen=True)
class _Crowd:
    """Requests that were asked at once: those that were answered, why the others were not, and the seconds of
    all."""

    done: list[Completion]
    reasons: list[str]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.done)

    @property
    def prompt_tokens(self) -> int:
        return sum(one.prompt_tokens for one in self.done)


def _at_once(router: Router, model: str, prompts: PromptSource, load: ClientLoad) -> _Crowd:
    asked = [prompts.take(load.prompt) for _ in range(load.clients)]
    done: list[Completion] = []
    reasons: list[str] = []

    def one(prompt: list[int]) -> None:
        try:
            done.append(router.complete(model, prompt, load.answer))
        except RouterFault as error:
            reasons.append(str(error))

    threads = [threading.Thread(target=one, args=(prompt,), daemon=True) for prompt in asked]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        router.abort()
        raise
    return _Crowd(done, reasons, time.perf_counter() - begun)


def skipped(load: ClientLoad, why: str) -> ClientsRow:
    """The row of a load that was not asked."""
    return ClientsRow(
        clients=load.clients,
        kind="long" if load.kind == "long" else "short",
        prompt_tokens=load.prompt,
        tokens=load.answer,
        skipped=why,
    )
