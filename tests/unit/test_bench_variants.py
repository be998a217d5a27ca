"""Other presets for a while: the changed text, and the program that puts the file back."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gb10.bench import variants
from gb10.bench.variants import Held, Presets, keys_of, slots_by, with_keys
from gb10.slots import Slots
from tests.unit.boxes import box

PROGRAM = Path("files/gb10_presets_hold.py").resolve()
TEXT = """\
; Generated.

[*]
parallel = 1
kv-unified = true
ctx-size = 2048

[a]
model = /srv/a.gguf
parallel = 4

[b]
model = /srv/b.gguf
kv-unified-per-slot = 512
parallel = 4
"""


def test_keys_and_slots_are_read_as_llama_cpp_does() -> None:
    assert keys_of(TEXT, "a") == {
        "parallel": "4",
        "kv-unified": "true",
        "ctx-size": "2048",
        "model": "/srv/a.gguf",
    }
    assert slots_by(keys_of(TEXT, "a")) == Slots(2048, 4, True)
    assert slots_by(keys_of(TEXT, "b")) == Slots(2048, 4, True, 512)
    assert slots_by(keys_of(TEXT, "none")) == Slots(2048, 1, True)


def test_only_the_one_section_changes() -> None:
    changed = with_keys(TEXT, "a", {"kv-unified": "false", "parallel": "8"})
    assert changed == TEXT.replace("parallel = 4\n\n[b]", "kv-unified = false\nparallel = 8\n\n[b]")
    assert keys_of(changed, "b") == keys_of(TEXT, "b")


def test_a_key_is_taken_out_of_the_last_section() -> None:
    changed = with_keys(TEXT, "b", {"kv-unified-per-slot": None, "kv-unified": "false"})
    assert changed.endswith("[b]\nmodel = /srv/b.gguf\nparallel = 4\nkv-unified = false\n")


def test_a_section_that_is_not_there() -> None:
    with pytest.raises(Held, match="no section for c"):
        with_keys(TEXT, "c", {})


def test_the_real_presets_can_be_changed_and_read() -> None:
    text = box().presets_file.content
    for name in ("qwen3-coder-next", "gemma-4-31B"):
        changed = with_keys(text, name, {"parallel": "4", "kv-unified": "false"})
        assert slots_by(keys_of(changed, name)).way == "split"
        assert len(changed.splitlines()) in (len(text.splitlines()), len(text.splitlines()) + 1)


# -- the way to hold ---------------------------------------------------------------------------------


class Wire:
    """An SSH client whose box answers as given."""

    def __init__(self, *, held: bool, status: int = 0, errors: str = "") -> None:
        self.stdout = io.BytesIO(b'{"held": true}\n' if held else b"")
        self.errors = io.BytesIO(errors.encode())
        self.status = status
        self.closed = False

    def get(self, *_: Any) -> Any:
        return self

    def exec_command(self, *_: Any, **__: Any) -> Any:
        class Stream(io.TextIOWrapper):
            channel = self

        stdin = SimpleNamespace(write=len, flush=str, channel=self)
        return stdin, Stream(self.stdout), self.errors

    def shutdown_write(self) -> None:
        self.closed = True

    def recv_exit_status(self) -> int:
        return self.status


def presets_on(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Presets:
    monkeypatch.setattr(variants, "ssh_client", wire.get)
    monkeypatch.setattr(variants, "run_as_root", lambda *_: (0, TEXT, ""))
    return Presets(SimpleNamespace(name="box"), box())  # type: ignore[arg-type]


def test_why_it_was_not_held_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(held=False, status=1, errors="the presets are held by another bench\n")
    made = presets_on(wire, monkeypatch)
    with pytest.raises(Held, match="held by another bench"), made.held("a", {}):
        pytest.fail("not held")
    assert made.faults == []  # nothing was done to the box


def test_what_was_not_put_back_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    made = presets_on(Wire(held=True, status=1, errors="left as it is\n"), monkeypatch)
    with pytest.raises(Held, match="left as it is"), made.held("a", {"parallel": "2"}) as slots:
        assert slots.parallel == 2
    assert made.faults == ["left as it is"]


def test_ctrl_c_goes_on_where_the_box_is_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(held=True, status=1, errors="left as it is\n")
    made = presets_on(wire, monkeypatch)
    with pytest.raises(KeyboardInterrupt), made.held("a", {}):
        raise KeyboardInterrupt
    assert wire.closed
    assert made.faults == ["left as it is"]


# -- the program that holds ----------------------------------------------------------------------------


class Box:
    """A preset file and a command that notes what the router would read."""

    def __init__(self, folder: Path) -> None:
        self.presets = folder / "models.ini"
        self.presets.write_text("before")
        self.presets.chmod(0o640)
        self.read = folder / "read"
        self.command = ["sh", "-c", f"cat {self.presets} >> {self.read}; echo >> {self.read}"]

    def start(self, *command: str) -> subprocess.Popen[str]:
        # A shell, so that gevent does not stand between the test and the process.
        return subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM), str(self.presets), *(command or self.command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hold(self, process: subprocess.Popen[str], before: str = "before") -> str:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"before": before, "content": "other"}) + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    @property
    def was_read(self) -> list[str]:
        return self.read.read_text().split() if self.read.exists() else []


@pytest.fixture
def there(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_held_and_put_back(there: Box) -> None:
    process = there.start()
    assert json.loads(there.hold(process)) == {"held": True}
    assert (there.presets.read_text(), there.was_read) == ("other", ["other"])
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert (there.presets.read_text(), there.was_read) == ("before", ["other", "before"])
    assert there.presets.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in there.presets.parent.iterdir()) == ["models.ini", "read"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_puts_it_back(there: Box, number: signal.Signals) -> None:
    process = there.start()
    there.hold(process)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "ended by signal" in errors
    assert there.presets.read_text() == "before"
    assert there.was_read[-1] == "before"


def test_what_somebody_else_wrote_is_left_alone(there: Box) -> None:
    process = there.start()
    there.hold(process)
    there.presets.write_text("a deploy's")
    _, errors = process.communicate()
    assert there.presets.read_text() == "a deploy's"
    assert "left as it is" in errors
    # What was measured meanwhile was not what was asked for.
    assert process.returncode == 1


def test_what_somebody_else_put_back_is_said_too(there: Box) -> None:
    process = there.start()
    there.hold(process)
    there.presets.write_text("before")
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "changed by somebody else" in errors


def test_two_do_not_hold_at_once(there: Box) -> None:
    first = there.start()
    there.hold(first)
    second = there.start()
    assert there.hold(second, before="other") == ""
    _, errors = second.communicate()
    assert second.returncode == 1
    assert "held by another bench" in errors
    assert (there.presets.read_text(), there.was_read) == ("other", ["other"])
    first.communicate()
    assert (first.returncode, there.presets.read_text()) == (0, "before")
    # However the first one ended, the next one can.
    killed = there.start()
    there.hold(killed)
    killed.kill()
    killed.communicate()
    third = there.start()
    assert json.loads(there.hold(third, before="other")) == {"held": True}
    third.communicate()
    assert third.returncode == 0


def test_a_file_that_changed_before_is_not_touched(there: Box) -> None:
    process = there.start()
    assert there.hold(process, before="older") == ""
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "changed meanwhile" in errors
    assert (there.presets.read_text(), there.was_read) == ("before", [])


def test_presets_that_the_router_does_not_take_go_back_at_once(there: Box) -> None:
    process = there.start(
        "sh", "-c", f"grep -q before {there.presets} || {{ echo no such key >&2; exit 1; }}"
    )
    assert there.hold(process) == ""
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "cannot be read again: no such key" in errors
    assert there.presets.read_text() == "before"


@pytest.mark.parametrize("line", ["", "{", "[]\n", '{"before": 1}\n', "null\n"])
def test_a_question_in_another_shape_changes_nothing(there: Box, line: str) -> None:
    process = there.start()
    _, errors = process.communicate(line)
    assert process.returncode == 1
    assert len(errors.strip().splitlines()) == 1
    assert (there.presets.read_text(), there.was_read) == ("before", [])


def test_its_end_is_not_missed_while_the_router_reads(there: Box) -> None:
    # The caller goes away at once: what was begun is still undone.
    process = there.start("sh", "-c", "sleep 0.3")
    assert process.stdin
    process.stdin.write(json.dumps({"before": "before", "content": "other"}) + "\n")
    process.stdin.close()
    until = time.monotonic() + 20
    while process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert there.presets.read_text() == "before"
    assert os.access(there.presets, os.R_OK)


def test_a_caller_that_says_nothing_has_gone(there: Box, tmp_path: Path) -> None:
    hasty = tmp_path / "hasty.py"
    hasty.write_text(PROGRAM.read_text().replace("SILENT_SECONDS = 120", "SILENT_SECONDS = 1"))
    line = [sys.executable, "-I", str(hasty), str(there.presets), *there.command]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    there.hold(process)
    until = time.monotonic() + 30
    while process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert process.stderr
    assert "said nothing for 1 s" in process.stderr.read()
    assert there.presets.read_text() == "before"
