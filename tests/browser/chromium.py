"""A real browser that looks at a page: Chromium without a window, without a network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_LOOK = Path(__file__).with_name("look.js")
# The value of Blink's own setting.
_SCHEMES = {"dark": 0, "light": 1}


def program() -> str | None:
    """Where the browser is; None where this machine has none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def looks(page: str, folder: Path, *, widths: tuple[int, ...], scheme: str) -> list[dict[str, Any]]:
    """What ``look.js`` sees of ``page`` at each of ``widths`` (CSS pixels): with what folds closed, and open.

    ``scheme``: light or dark. Files are written to ``folder``. Needs root: the browser gets a network
    namespace with nothing in it.
    """
    frames = "".join(
        f'<iframe width="{width}" height="844" style="border:0" srcdoc="{html.escape(page)}"></iframe>'
        for width in widths
    )
    harness = folder / "harness.html"
    harness.write_text(
        f'<!doctype html><meta charset="utf-8">{frames}<pre id="found"></pre>'
        f"<script>{_LOOK.read_text(encoding='utf-8')}</script>",
        encoding="utf-8",
    )
    browser = program()
    assert browser is not None
    done = subprocess.run(
        ["unshare", "--net", browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars", "--window-size=1600,1000",
         "--virtual-time-budget=10000",
         f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}", "--dump-dom", harness.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return list(json.loads(html.unescape(found[1])))
