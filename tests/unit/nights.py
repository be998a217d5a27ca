"""A folder in which the nightly look runs as on a box: with a look that answers what the test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from files import gb10_drift
from gb10.drift import mask
from gb10.nightly import settings
from gb10.record import make
from tests.unit.boxes import box
from tests.unit.drifted import REVISION, seen

BOX = box()
SETTINGS = settings(BOX, [file.path for file in BOX.nightly_files])


def record(**changes: Any) -> dict[str, Any]:
    return {**make(BOX, REVISION, seen(BOX), "ann@desk"), **changes}


class Night:
    """A folder with the program, a look, settings, a record, and a hook that writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer = seen(BOX)
        (folder / "gb10_drift.py").write_text(Path(gb10_drift.__file__).read_text())
        (folder / "gb10_mask.py").write_text(Path(mask.__file__).read_text())
        (folder / "deployed.json").write_text(json.dumps(record()))
        self.set(notify_command=["sh", "-c", f"cat >> {folder}/told; echo >> {folder}/told"])

    def set(self, **changes: Any) -> None:
        """The settings of the test's box, but for ``changes``."""
        path = self.folder / "nightly.json"
        kept = json.loads(path.read_text()) if path.exists() else SETTINGS
        path.write_text(json.dumps({**kept, **changes}))

    def look(self, look: str | None = None) -> subprocess.CompletedProcess[str]:
        """One night; ``look`` is another program in place of the look."""
        program = look or f"print({json.dumps(json.dumps(self.answer))})"
        (self.folder / "drift_state.py").write_text(program)
        names = ("gb10_drift.py", "nightly.json", "deployed.json", "drift.json")
        command = [sys.executable, "-I", *(str(self.folder / name) for name in names)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "drift.json").read_text())
        return found

    def told(self) -> list[dict[str, Any]]:
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []
