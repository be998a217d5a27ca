"""The nightly look on the box: the record against what is there, and a word only when that has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from files import gb10_drift
from gb10.record import make
from tests.unit.boxes import box
from tests.unit.drifted import REVISION, seen

BOX = box()
ITEM = {"item": "box: kernel", "was": "6.8.0", "is": "6.8.1"}


def record(**changes: Any) -> dict[str, Any]:
    return {**make(BOX, REVISION, seen(BOX), "ann@desk"), **changes}


def judged(answer: dict[str, Any], today: str = "2026-11-29", **changes: Any) -> list[dict[str, str]]:
    return gb10_drift.judge(record(**changes), answer, today)


def test_nothing_has_changed() -> None:
    assert judged(seen(BOX)) == []


def test_a_fact_a_part_of_one_and_a_file() -> None:
    answer = seen(BOX, **{"box: kernel": "6.8.1", "lanes: vLLM units": ["x"]})
    answer["facts"]["router: container"]["user"] = "0:0"
    answer["files"][BOX.presets_path] = ""
    assert [item["item"] for item in judged(answer)] == [
        "box: kernel",
        "lanes: vLLM units",
        "router: container user",
        f"file {BOX.presets_path}",
    ]


def test_a_container_that_is_gone() -> None:
    items = judged(seen(BOX, **{"router: container": None}))
    assert {"item": "router: container", "was": "nothing", "is": "null"} in items


def test_what_came_up_by_itself() -> None:
    answer = seen(BOX)
    answer["readings"] |= {
        "oom_kills": 1,
        "disks": {"/": [1, 100]},
        "reboot": ["linux"],
        "would_move": {"a": ["1", "2"]},
    }
    assert [item["item"] for item in judged(answer)] == [
        "box: OOM kills",
        "box: disk /",
        "box: reboot",
        "toolkit: apt would move a",
    ]


def test_what_is_ignored_counts_again_from_its_day_on() -> None:
    entry = {"item": "box: kernel", "reason": "r", "owner": "o", "expires": "2026-12-01"}
    nightly = {**record()["nightly"], "ignore": [entry]}
    answer = seen(BOX, **{"box: kernel": "7"})
    assert judged(answer, nightly=nightly) == []
    assert len(judged(answer, "2026-12-01", nightly=nightly)) == 1


class Box:
    """A folder with the program, a look that answers what the test says, a record, and a hook that writes
    down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer = seen(BOX)
        (folder / "gb10_drift.py").write_text(Path(gb10_drift.__file__).read_text())
        hook = ["sh", "-c", f"cat >> {folder}/told; echo >> {folder}/told"]
        nightly = {**record()["nightly"], "notify_command": hook, "result": f"{folder}/drift.json"}
        (folder / "deployed.json").write_text(json.dumps(record(nightly=nightly)))

    def night(self, look: str | None = None) -> subprocess.CompletedProcess[str]:
        program = look or f"print({json.dumps(json.dumps(self.answer))})"
        (self.folder / "drift_state.py").write_text(program)
        command = [
            sys.executable,
            "-I",
            str(self.folder / "gb10_drift.py"),
            str(self.folder / "deployed.json"),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "drift.json").read_text())
        return found

    def told(self) -> list[dict[str, Any]]:
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


@pytest.fixture
def there(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_word_on_a_change_only(there: Box) -> None:
    assert there.night().returncode == 0
    assert there.result()["state"] == "clean"
    assert there.told() == []
    there.answer["facts"]["box: kernel"] = "6.8.1"
    for _ in range(3):
        assert there.night().returncode == 0
    assert there.result()["items"] == [ITEM]
    (told,) = there.told()
    assert (told["state"], told["new"], told["gone"], told["source"]) == ("drift", [ITEM], [], "gb10 drift")
    there.answer["facts"]["box: kernel"] = "6.8.0"
    there.night()
    assert [one["state"] for one in there.told()] == ["drift", "clean"]
    assert there.told()[1]["gone"] == [ITEM]


def test_a_look_that_fails_is_unknown_and_never_clean(there: Box) -> None:
    for look in ("import sys; sys.exit('no Docker')", "print('nonsense')", "print('{}')"):
        assert there.night(look).returncode == 1
        assert there.result()["state"] == "unknown"
    assert "no Docker" in there.told()[0]["reason"]


def test_a_deploy_that_is_under_way_is_no_news(there: Box) -> None:
    there.night()
    there.answer["lock"] = {"who": "ann", "since": "now"}
    assert there.night().returncode == 0
    assert there.result()["state"] == "clean"
    assert there.told() == []


def test_a_hook_that_fails_does_not_lose_the_result(there: Box) -> None:
    path = there.folder / "deployed.json"
    path.write_text(path.read_text().replace('"sh"', '"/no/such/hook"'))
    there.answer["facts"]["box: kernel"] = "6.8.1"
    done = there.night()
    assert done.returncode == 0
    assert "the notification failed: /no/such/hook" in done.stderr
    assert there.result()["state"] == "drift"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"nightly": 1}'])
def test_a_damaged_record(there: Box, content: str) -> None:
    (there.folder / "deployed.json").write_text(content)
    done = there.night()
    assert done.returncode == 1
    assert "run the deploy again" in done.stderr
    assert "Traceback" not in done.stderr


def test_usage() -> None:
    assert gb10_drift.main([]) == 2
