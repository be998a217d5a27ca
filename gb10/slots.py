"""How the cells of one KV cache are shared between clients, and whether the clients of a model fit.

Three ways: **unified** (one pool for all slots), **split** (``ctx-size / parallel`` for each slot), and
**per slot** (one pool, each slot capped by ``kv-unified-per-slot``). A pool that overflows fails every
request in it, so the clients that a model is for must fit in it together.
Source: llama_context in ``src/llama-context.cpp``, ``n_ctx_slot`` in ``tools/server/server-context.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gb10.model import Clients

CELLS = 256
"""llama.cpp rounds the cells of a cache up to a multiple of this."""


def pad(cells: int) -> int:
    """``cells`` rounded up as llama.cpp does it."""
    return -(-cells // CELLS) * CELLS


@dataclass(frozen=True)
class Slots:
    """The slots of one child. ``ctx_size`` and ``per_slot`` (None: no cap) in tokens."""

    ctx_size: int
    parallel: int
    unified: bool
    per_slot: int | None = None

    @property
    def way(self) -> str:
        """``unified``, ``split`` or ``per slot``."""
        if not self.unified:
            return "split"
        return "unified" if self.per_slot is None else "per slot"

    @property
    def streams(self) -> int:
        """Separate parts of the cache."""
        return 1 if self.unified else self.parallel

    @property
    def cells(self) -> int:
        """Cells of each stream (``n_ctx_seq``)."""
        context = pad(self.ctx_size)
        return context if self.unified else pad(context // self.parallel)

    @property
    def longest(self) -> int:
        """The longest prompt and answer together, in tokens, that one request can have."""
        return self.cells if self.per_slot is None else min(self.cells, self.per_slot)

    @property
    def overflow(self) -> str:
        """What happens when the clients send more than there is."""
        if self.way == "split" or self.parallel == 1:
            return "a request that is too long gets 400, the others live"
        if self.way == "unified":
            return "every request in the pool fails with 500"
        if self.parallel * self.longest > self.cells:
            return "too long: 400; but all slots full: every request in the pool fails with 500"
        return "a request that is too long gets 400, the others live"

    def refuse(self, clients: Clients) -> tuple[str, str] | None:
        """Why the clients do not fit, and what would; None if they do."""
        each = f"{clients.tokens} tokens each"
        if clients.count > self.parallel:
            return (
                f"{clients.count} clients and {self.parallel} slot(s): the others wait",
                f"set `parallel: {clients.count}`",
            )
        if self.way == "per slot" and clients.tokens > self.longest:
            return (
                f"{clients.count} clients of {each}, a slot takes {self.longest}",
                f"set `kv-unified-per-slot: {pad(clients.tokens)}`",
            )
        if self.way == "split" and clients.tokens > self.longest:
            return (
                f"{clients.count} clients of {each}, a split slot takes {self.longest}",
                f"set `ctx-size: {self.parallel * pad(clients.tokens)}` or more",
            )
        if self.unified and clients.count * clients.tokens > self.cells:
            return (
                f"{clients.count} clients of {each} need {clients.count * clients.tokens} cells, the pool has"
                f" {self.cells}, and an overflow fails every request in it",
                f"set `ctx-size: {pad(clients.count * clients.tokens)}` or more",
            )
        return None


def ways(ctx_size: int, parallel: int) -> tuple[Slots, Slots, Slots]:
    """The three ways to share the same number of cells: unified, split, per slot."""
    return (
        Slots(ctx_size, parallel, unified=True),
        Slots(ctx_size, parallel, unified=False),
        Slots(ctx_size, parallel, unified=True, per_slot=max(1, pad(ctx_size) // parallel)),
    )
