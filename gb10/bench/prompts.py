"""Prompts of an exact length, and which loads a model's slots can hold.

A prompt is a list of token ids: no other client of the box can have the same one in its cache, and its
length is what it says. The text behind it is made of ordinary words, so that a mixture of experts spreads
its work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gb10.slots import Slots

SHORT_TOKENS = 64
LONG_TOKENS = 20_000
CLIENTS = (1, 4, 8)
_WORDS = (  # noqa: SIM905  (a list of two hundred lines)
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they"
    " which one you were her all she there would their we him been has when who will more no if out so said"
    " what up its about into than them can only other new some could time these two may then do first any my"
    " now such like our over man me even most made after also did many before must through back years where"
    " much your way well down should because each just those people how too little state good very make world"
    " still own see men work long get here between both life being under never day same another know while"
    " last might us great old year off come since against go came right used take three memory cache graphics"
    " compiler tensor kernel router socket signal thread process matrix vector river mountain winter letter"
).split()


@dataclass(frozen=True)
class ClientLoad:
    """``clients`` at once, each with ``prompt`` tokens and ``answer`` tokens to come."""

    clients: int
    kind: str
    prompt: int
    answer: int


def text(words: int, seed: int = 1) -> str:
    """Sentences of ordinary words; the same for the same seed."""
    choose = random.Random(seed)  # noqa: S311  (no secret depends on it)
    parts = []
    while words > 0:
        length = min(words, choose.randint(6, 18))
        sentence = " ".join(choose.choice(_WORDS) for _ in range(length))
        parts.append(sentence.capitalize() + ".")
        words -= length
    return " ".join(parts)


class PromptSource:
    """Prompts of one model; no two of them begin alike."""

    def __init__(self, tokenize: Callable[[str], list[int]], seed: int = 1) -> None:
        self._tokenize = tokenize
        self._seed = seed
        self._tokens: list[int] = []
        self._given = 0

    def take(self, tokens: int) -> list[int]:
        """The next prompt, of exactly ``tokens`` tokens."""
        while len(self._tokens) < tokens:
            words = max(256, tokens - len(self._tokens))
            found = self._tokenize(text(words, self._seed + len(self._tokens)))
            if not found:
                raise ValueError("a text has no tokens")
            self._tokens += found
        self._given += 1
        # A prime step: a start comes back only after as many prompts as there are tokens.
        start = (self._given * 7919) % len(self._tokens)
        rotated = self._tokens[start:] + self._tokens[:start]
        return rotated[:tokens]


def client_loads(answer: int, long_tokens: int, clients: Sequence[int] = CLIENTS) -> list[ClientLoad]:
    """The loads of a full bench: each number of clients with short and with long prompts."""
    kinds = (("short", SHORT_TOKENS), ("long", long_tokens))
    return [ClientLoad(count, kind, prompt, answer) for kind, prompt in kinds for count in clients]


def refuse(load: ClientLoad, slots: Slots, trained: int = 0) -> str | None:
    """Why a load cannot be asked of these slots, or None. ``trained``: the model's own longest context,
    tokens.

    More clients than slots are no reason: the others wait, and that is a figure too.
    """
    each = load.prompt + load.answer
    longest = min(slots.longest, trained) if trained else slots.longest
    if each > longest:
        return f"{each} tokens each, a request can have {longest}"
    at_once = min(load.clients, slots.parallel)
    if slots.unified and at_once * each > slots.cells:
        return (
            f"{at_once} at once of {each} tokens need {at_once * each} cells, the pool has {slots.cells}:"
            " every request in it would fail"
        )
    return None
