"""Running the `gb10` command as its entry point does."""

from __future__ import annotations

import sys

import pytest

from gb10.cli import main


def gb10(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and error of ``gb10 ARGUMENTS``; never a traceback."""
    before = sys.argv
    sys.argv = ["gb10", *map(str, arguments)]
    capsys.readouterr()
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out, captured.err
