"""Other presets for a while: the changed text, and the program that puts the file back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gb10.bench.variants import Held, keys_of, slots_by, with_keys
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
