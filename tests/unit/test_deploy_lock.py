"""The deploy lock: one holder, gone with its input, with its silence, or with its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gb10.facts.probes import box_report, drift_state
from gb10.operations import deploy_lock
from gb10.rendering import TOP
from gb10.requirements import box_faults
from tests.unit.boxes import box

PROGRAM = TOP / "files/gb10_lock.py"


class Holder:
    """The program as the deploy starts it."""

    def __init__(self, path: Path, who: str, token: str, program: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", program or PROGRAM.read_text(), who, token, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.answer = json.loads(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = Holder(path, "ann@desk", "a")
    assert first.answer == {"held": True}
    second = Holder(path, "bob@sofa", "b")
    assert second.answer["held"] is False
    assert second.answer["who"] == "ann@desk"
    assert second.answer["since"].endswith("UTC")
    assert second.process.wait(10) == 1
    # Whoever only asks takes nothing, and gets the same answer.
    for probe in (box_report.deploy_lock, drift_state.deploy_lock):
        assert probe(str(path)) == {"who": "ann@desk", "since": second.answer["since"]}
    first.end()
    assert box_report.deploy_lock(str(path)) is None
    third = Holder(path, "bob@sofa", "b")
    assert third.answer == {"held": True}
    third.end()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    holder = Holder(tmp_path / "lock", "ann@desk", "a")
    holder.process.kill()
    holder.process.wait(10)
    assert box_report.deploy_lock(str(tmp_path / "lock")) is None


def test_the_same_deploy_takes_over_from_its_old_connection(tmp_path: Path) -> None:
    old = Holder(tmp_path / "lock", "ann@desk", "a")
    new = Holder(tmp_path / "lock", "ann@desk", "a")
    assert new.answer == {"held": True}
    assert old.process.wait(10) != 0
    new.end()


def test_silence_ends_it(tmp_path: Path) -> None:
    hasty = PROGRAM.read_text().replace("SILENCE_SECONDS = 90.0", "SILENCE_SECONDS = 0.2")
    holder = Holder(tmp_path / "lock", "ann@desk", "a", hasty)
    assert holder.answer == {"held": True}
    assert holder.process.wait(20) == 0  # its input is open all the time
    assert box_report.deploy_lock(str(tmp_path / "lock")) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"who": 1}'])
def test_a_damaged_note_still_means_held(tmp_path: Path, content: str) -> None:
    holder = Holder(tmp_path / "lock", "ann@desk", "a")
    (tmp_path / "lock").write_text(content)
    assert box_report.deploy_lock(str(tmp_path / "lock")) == {"who": "", "since": ""}
    assert Holder(tmp_path / "lock", "bob", "b").answer["held"] is False
    holder.end()


def test_nobody_and_no_file(tmp_path: Path) -> None:
    assert box_report.deploy_lock(str(tmp_path / "none")) is None
    assert drift_state.deploy_lock(str(tmp_path / "none")) is None


def test_preflight_refuses_with_who_and_since() -> None:
    report = {
        "docker": "29.0.0",
        "buildx": True,
        "free_bytes": 10**12,
        "docker_root": "/var/lib/docker",
        "daemon": None,
        "holders": {},
        "lock": {"who": "ann@desk", "since": "2026-11-29 21:00:00 UTC"},
    }
    (fault,) = box_faults("spark", report, box(), True)
    assert "the box is held by ann@desk, since 2026-11-29 21:00:00 UTC" in str(fault)


class Connection:
    """A client whose holder on the box has gone; ``alive``: the connection itself has not."""

    def __init__(self, alive: bool) -> None:
        self.alive, self.closed = alive, False

    def get_transport(self) -> Connection:
        return self

    def is_active(self) -> bool:
        return self.alive

    def close(self) -> None:
        self.closed = True


GONE = SimpleNamespace(closed=True)


def test_after_a_sleep_the_box_is_held_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(deploy_lock, "take", lambda *what: taken.append(what))
    client = Connection(alive=True)
    deploy_lock._stay_alive("host", client, GONE, "deploy")  # type: ignore[arg-type]
    assert taken == [("host", "deploy")]
    assert not client.closed


def test_who_slept_while_another_came_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise deploy_lock.Refused("spark: the box is held by bob")

    said: list[str] = []
    host: Any = SimpleNamespace(log_styled=lambda text, **_: said.append(text))
    monkeypatch.setattr(deploy_lock, "take", refused)
    client = Connection(alive=True)
    deploy_lock._stay_alive(host, client, GONE, "deploy")
    assert client.closed
    assert said == ["spark: the box is held by bob; this one ends here"]


def test_the_end_of_the_connection_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_lock, "take", lambda *_: pytest.fail("nothing is to be held any more"))
    deploy_lock._stay_alive("host", Connection(alive=False), GONE, "deploy")  # type: ignore[arg-type]
