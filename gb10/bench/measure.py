"""The measurements themselves: load time, one client alone, and several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gb10.bench.prompts import ClientLoad, PromptSource
from gb10.bench.residents import residents
from gb10.bench.result import ClientsRow, Figure, LoadTime, Speed
from gb10.bench.router import Completion, Router, RouterFault

WAIT_SECONDS = 15.0
AGAIN_SECONDS = 0.5

Step = Callable[[str], None]
"""Called with what is done now, for the progress."""


def alone(router: Router) -> None:
    """Nobody else is answered now: a figure of two is none. What is short, a look of the watch, is waited
    for. Raises `RouterFault`."""
    until = time.perf_counter() + WAIT_SECONDS
    while busy := [name for name, count in residents(router).busy.items() if count]:
        if time.perf_counter() > until:
            raise RouterFault(f"{', '.join(busy)} answers somebody else: a figure would be of both")
        time.sleep(AGAIN_SECONDS)


def load_time(router: Router, model: str, free_mib: Callable[[], int | None]) -> LoadTime:
    """Unload ``model`` and every other one, load it again. ``free_mib`` reads the box's MemAvailable.

    The others go first: a load that pushes one out would give back that one's memory. Where another one comes
    or goes meanwhile all the same, the memory is not known. Raises `RouterFault`.
    """
    for name in router.loaded():
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
    where somebody else is answered in between."""
    # The first request after a load also pays for buffers and kernels that are made then.
    router.complete(model, prompts.take(prompt), 1)
    done: list[Completion] = []
    for number in range(runs):
        step(f"run {number + 1} of {runs}")
        alone(router)
        done.append(router.complete(model, prompts.take(prompt), answer))
    alone(router)
    return Speed(
        prompt=Figure.of([one.prompt_speed for one in done]),
        generation=Figure.of([one.speed for one in done]),
        prompt_tokens=done[-1].prompt_tokens,
        tokens=done[-1].tokens,
    )


def clients(router: Router, model: str, prompts: PromptSource, load: ClientLoad) -> ClientsRow:
    """``load.clients`` requests at the same time. A request that fails is counted, with its reason. Raises
    `RouterFault` where somebody else is answered before."""
    alone(router)
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
    seconds = time.perf_counter() - begun
    row = ClientsRow(
        clients=load.clients,
        kind="long" if load.kind == "long" else "short",
        prompt_tokens=load.prompt,
        tokens=load.answer,
        seconds=round(seconds, 3),
        failures=load.clients - len(done),
        reasons=sorted(set(reasons)),
    )
    if done:
        generated = sum(one.tokens for one in done)
        row.aggregate = round(generated / seconds, 2)
        row.total = round((generated + sum(one.prompt_tokens for one in done)) / seconds, 2)
        row.first_token = Figure.of([one.first_token for one in done])
    return row


def skipped(load: ClientLoad, why: str) -> ClientsRow:
    """The row of a load that was not asked."""
    return ClientsRow(
        clients=load.clients,
        kind="long" if load.kind == "long" else "short",
        prompt_tokens=load.prompt,
        tokens=load.answer,
        skipped=why,
    )
