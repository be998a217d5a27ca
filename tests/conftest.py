"""What all tests begin with."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
