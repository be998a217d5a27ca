"""Processes of the lab that go into the background."""

from __future__ import annotations

import signal

import pytest

from tests.lab import process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    whole = []

    def block() -> None:
        with process.uninterrupted():
            signal.raise_signal(number)
            whole.append(True)

    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
        assert whole
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)


def test_without_a_signal_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with process.uninterrupted():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
