"""Another setting of one model for a short time: the preset file is held changed, and then it is as it
was."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from paramiko import SSHException
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host

from gb10.bench import ctrl_c
from gb10.bench.tunnel import run_as_root
from gb10.desired import Desired
from gb10.preset_options import TRUTHY
from gb10.remote import ssh_client
from gb10.rendering import TOP
from gb10.slots import Slots

BEAT_SECONDS = 15  # the program on the box waits for 120
HOLD_SECONDS = 400  # a reload may have to wait for a model that ends


class Held(PyinfraError):
    """The presets could not be held, or not be put back; the text says which."""


def keys_of(text: str, section: str) -> dict[str, str]:
    """The keys that a model has by a preset file: its section over ``[*]``."""
    found: dict[str, dict[str, str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("["):
            name = line.strip()[1:-1]
        elif "=" in line and not line.startswith((";", "#")):
            key, _, value = line.partition("=")
            found.setdefault(name, {})[key.strip()] = value.strip()
    return found.get("*", {}) | found.get(section, {})


def slots_by(keys: Mapping[str, str]) -> Slots:
    """The slots that a child with these keys has."""
    per_slot = keys.get("kv-unified-per-slot")
    return Slots(
        int(keys.get("ctx-size", "4096")),
        int(keys.get("parallel", "1")),
        keys.get("kv-unified", "false").lower() in TRUTHY,
        int(per_slot) if per_slot else None,
    )


def with_keys(text: str, section: str, keys: Mapping[str, str | None]) -> str:
    """A preset file in which ``section`` has these keys; None takes one out. Raises `Held` when it has no
    such section."""
    lines = text.splitlines()
    try:
        start = lines.index(f"[{section}]") + 1
    except ValueError:
        raise Held(f"the preset file on the box has no section for {section}") from None
    end = next((place for place in range(start, len(lines)) if lines[place].startswith("[")), len(lines))
    kept = [line for line in lines[start:end] if line.strip() and line.partition("=")[0].strip() not in keys]
    new = [f"{key} = {value}" for key, value in keys.items() if value is not None]
    rest = ["", *lines[end:]] if end < len(lines) else []
    return "\n".join([*lines[:start], *kept, *new, *rest]) + "\n"


class Presets:
    """The preset file of a box, and the way to hold another one. ``faults``: why it was not held or not put
    back, one line each."""

    def __init__(self, host: Host, box: Desired) -> None:
        self._host = host
        self._box = box
        self.faults: list[str] = []

    def text(self) -> str:
        """What the file holds now. Raises `PyinfraError`."""
        status, output, errors = run_as_root(self._host, ["cat", self._box.presets_path])
        if status:
            said = (errors.strip().splitlines() or ["no reason"])[-1]
            raise PyinfraError(f"{self._host.name}: {said}: run the deploy first")
        return output

    @contextmanager
    def held(self, model: str, keys: Mapping[str, str | None]) -> Iterator[Slots]:
        """A with block in which ``model`` has these keys; gives the slots it has then.

        The box puts its file back by itself when this end goes away. Raises `Held`.
        """
        before = self.text()
        content = with_keys(before, model, keys)
        box = self._box
        program = (TOP / "files" / "gb10_presets_hold.py").read_text()
        reload = ["python3", "-I", box.program_files["gb10_router.py"].path, box.lane_path, "reload"]
        line = ["python3", "-I", "-c", program, box.presets_path, *reload]
        client = ssh_client(self._host)
        try:
            stdin, stdout, stderr = client.exec_command(f"sudo -n {shlex.join(line)}", timeout=HOLD_SECONDS)
            stdin.write(json.dumps({"before": before, "content": content}).encode() + b"\n")
            stdin.flush()
        except _GONE as error:
            raise Held(_gone(error)) from None
        held = False
        try:
            held = stdout.readline().startswith("{")
            if held:
                with _signs_of_life(stdin):
                    yield slots_by(keys_of(content, model))
        except BaseException as error:
            # What was raised goes on, Ctrl-C above all: a box that was not put back is said at the end.
            with ctrl_c.waits(_say):
                why = _let_go(stdin, stdout, stderr)
            if why:
                self.faults.append(why)
            if isinstance(error, _GONE):
                raise Held(_gone(error)) from None
            raise
        with ctrl_c.waits(_say) as came:
            why = _let_go(stdin, stdout, stderr)
        if held and why:
            self.faults.append(why)
        if came:
            raise KeyboardInterrupt
        if why or not held:
            raise Held(why or "the presets were not held")


_GONE = (SSHException, OSError, EOFError)


def _gone(error: BaseException) -> str:
    return f"the SSH connection is gone ({error}); the box puts its presets back itself"


def _say(text: str) -> None:
    click.echo(text, err=True)


def _let_go(stdin: Any, stdout: Any, stderr: Any) -> str:
    """Wait until the box has its own presets again; why it has not, or an empty text."""
    try:
        stdin.channel.shutdown_write()
        stdout.read()
        if not stdout.channel.recv_exit_status():
            return ""
        said = stderr.read().decode(errors="replace").strip().splitlines()
    except _GONE as error:
        return _gone(error)
    return said[-1] if said else "the presets were not put back"


@contextmanager
def _signs_of_life(stdin: Any) -> Iterator[None]:
    over = threading.Event()
    beat = threading.Thread(target=_say_so, args=(stdin, over), daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()


def _say_so(stdin: Any, over: threading.Event) -> None:
    """That we are still here, until it is over."""
    while not over.wait(BEAT_SECONDS):
        try:
            stdin.write(b"\n")
            stdin.flush()
        except (SSHException, OSError, EOFError):
            return  # the box puts its presets back
