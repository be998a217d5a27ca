"""Ctrl-C in a bench: it ends the measuring, never the putting back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gevent
from gevent.hub import get_hub


@contextmanager
def reaches_us() -> Iterator[None]:
    """A with block in which Ctrl-C raises KeyboardInterrupt here, whichever greenlet runs when it comes.

    pyinfra makes threads greenlets, and Python runs a signal's handler in the one that happens to run: a
    client's own thread would swallow it.
    """
    ours = gevent.getcurrent()
    on_its_way: list[bool] = []

    def throw() -> None:
        on_its_way.clear()
        # Since it came, the putting back may have begun, which waits.
        now = signal.getsignal(signal.SIGINT)
        if callable(now) and now not in (stop, signal.default_int_handler):
            now(signal.SIGINT, None)
        else:
            ours.throw(KeyboardInterrupt)

    def stop(_number: int, _frame: FrameType | None) -> None:
        if gevent.getcurrent() is ours:
            raise KeyboardInterrupt
        # A second one that came before the first arrived would end the putting back.
        if not on_its_way:
            on_its_way.append(True)
            get_hub().loop.run_callback_threadsafe(throw)

    with _handler(stop):
        yield


@contextmanager
def waits(say: Callable[[str], None]) -> Iterator[list[int]]:
    """A with block in which the first Ctrl-C only says that it must wait; a second one does what it usually
    does. Gives a list that is not empty once one came, for whoever would go on measuring afterwards."""
    came: list[int] = []

    def wait(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        say("The box is being put back as it was. Once more to leave it as it is.")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with _handler(wait):
        yield came


@contextmanager
def _handler(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
