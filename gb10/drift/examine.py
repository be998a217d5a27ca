"""One box looked at, from the connection to the judgement. Whatever goes wrong on the way is "could not
tell"."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
from paramiko import SSHException
from pyinfra.api.config import Config
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state

from gb10.desired import Desired
from gb10.drift.files import contents, unified
from gb10.drift.judge import case_of, judge
from gb10.drift.mask import known_secrets, masked
from gb10.drift.plan import Planned, planned
from gb10.drift.report import Deployed, HostReport, Item
from gb10.facts.drift import DriftState, question_of
from gb10.facts.models import ModelFiles
from gb10.facts.probe import ProbeFact
from gb10.facts.shared import look
from gb10.faults import BadInput
from gb10.inventory import load_inventory
from gb10.requirements import under_way

LIMIT_SECONDS = 60
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colors, and what moves the cursor
DEEP_LIMIT_SECONDS = 3600


class FileTexts(ProbeFact):
    """Texts of files for a diff, without the secrets that lie on the box.

    Question: ``{"paths": [...], "secrets": [paths of files whose whole content is a secret]}``. Answer:
    ``texts``, each path to its content, null where there is none.
    """

    program = "file_texts.py"


class Wire:
    """What goes over one host's connection: how many commands, and what the last one that failed said."""

    def __init__(self, host: Host) -> None:
        self.commands, self.failure = 0, ""
        self._run = host.connector.run_shell_command
        host.connector.run_shell_command = self.run  # type: ignore[method-assign]

    def run(self, *arguments: Any, **options: Any) -> Any:
        self.commands += 1
        try:
            ok, output = self._run(*arguments, **options)
        except (OSError, EOFError, SSHException) as error:
            self.failure = f"the connection broke: {error or type(error).__name__}"
            raise
        if not ok:
            said = output.stderr_lines or output.stdout_lines
            self.failure = (
                said[-1].strip() if said else "a command ended without a word: the connection broke"
            )
        return ok, output


def examine(
    inventory: Path, name: str, *, deep: bool = False, diff: bool = False, limit: float | None = None
) -> HostReport:
    """``name`` of ``inventory`` against its description. Never raises for what is wrong with a box or its
    data: the report says unknown then, and why."""
    begun = time.monotonic()
    limit = limit or (DEEP_LIMIT_SECONDS if deep else LIMIT_SECONDS)
    wires: list[Wire] = []
    with _heard() as heard:
        try:
            with gevent.Timeout(limit):
                report = _examined(inventory, name, wires, deep, diff)
        except gevent.Timeout:
            report = _unknown(name, f"no answer in {limit:.0f} s")
        except BadInput as error:
            report = _unknown(name, *(str(fault) for fault in error.faults))
        except ConnectError as error:
            report = _unknown(name, str(error))
        except PyinfraError as error:
            # pyinfra itself only says that no host remains; why, it has logged, and the wire has seen.
            report = _unknown(name, next(filter(None, (*(w.failure for w in wires), *heard)), str(error)))
        except (OSError, EOFError, SSHException) as error:
            report = _unknown(name, *([wire.failure for wire in wires if wire.failure] or [repr(error)]))
        except (
            Exception
        ) as error:  # an answer in a shape that nobody thought of must not look clean, or crash
            report = _unknown(name, f"{type(error).__name__}: {error}")
    commands = sum(wire.commands for wire in wires)
    return report.model_copy(
        update={"remote_commands": commands, "seconds": round(time.monotonic() - begun, 2)}
    )


def _unknown(name: str, *reasons: str) -> HostReport:
    lines = [masked(" ".join(_SEQUENCE.sub("", reason).split())) for reason in reasons]
    return HostReport(host=name, state="unknown", reason="; ".join(lines))


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What pyinfra says as an error meanwhile, instead of on the screen."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                heard.append(record.getMessage())

    logger, ear = logging.getLogger("pyinfra"), Ear()
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [ear], False
    try:
        yield heard
    finally:
        logger.handlers, logger.propagate = before


def _examined(inventory: Path, name: str, wires: list[Wire], deep: bool, diff: bool) -> HostReport:
    hosts = load_inventory(inventory)
    host = hosts.get_host(name)
    # A state of its own for each box: one that fails must not stop, or color, another.
    state = State(hosts, Config(), initial_limit=[host])  # type: ignore[no-untyped-call]
    ctx_state.set(state)  # type: ignore[no-untyped-call]
    ctx_host.set(host)  # type: ignore[no-untyped-call]
    try:
        host.connect(show_errors=False, raise_exceptions=True)
        state.activate_host(host)
        wires.append(Wire(host))
        box, plan = planned(state, host)
        seen = look(host, DriftState, question=question_of(box))
        now = seen["readings"]["arrived"]
        if deep:
            models = host.get_fact(DriftState, question=question_of(box, deep=True))["facts"]
            seen["facts"].update({key: value for key, value in models.items() if key.startswith("models: ")})
        if seen["lock"] is not None:
            return _unknown(name, f"{name}: {under_way(seen['lock'])}: look again when it has ended")
        if seen["failed"]:
            return _unknown(name, f"{name}: {'; '.join(seen['failed'])}")
        program = box.program_files["gb10_fetch.py"].content
        files = look(host, ModelFiles, program=program, manifest=box.fetch_manifest)["files"]
        items, ignored = judge(case_of(box, seen, plan, files, now, datetime.now(UTC).date().isoformat()))
        if diff:
            items = _with_diffs(host, box, plan, items)
        record = seen["record"]
        return HostReport(
            host=name,
            state="drift" if items else "clean",
            deployed=None if record is None else _deployed(record),
            items=tuple(items),
            ignored=tuple(ignored),
        )
    finally:
        if host.connected:
            host.disconnect()
            host.connector.client.close()  # type: ignore[attr-defined]  # pyinfra's SSH connector
        ctx_host.reset()
        ctx_state.reset()


def _deployed(record: dict[str, Any]) -> Deployed:
    return Deployed(
        time=str(record.get("time", "")),
        by=str(record.get("by", "")),
        revision=str(record.get("revision", "")),
        dirty=bool(record.get("dirty")),
    )


def _with_diffs(host: Host, box: Desired, plan: Sequence[Planned], items: Sequence[Item]) -> list[Item]:
    """``items`` with the unified diff of each file that a deploy would write."""
    known_paths = [*(placed.path for placed in box.files()), "/etc/docker/daemon.json"]
    written = {one.id: contents(one, known_paths) for one in plan}
    paths = sorted({path for files in written.values() for path in files})
    if not paths:
        return list(items)
    secrets = [box.key_path, *([box.data.models_token_file] if box.data.models_token_file else [])]
    texts = host.get_fact(FileTexts, question={"paths": paths, "secrets": secrets})["texts"]
    known = known_secrets(box.environment, box.data.notify_command)

    def diff(item: Item) -> str:
        files = written.get(item.id, {}).items()
        return "".join(unified(path, should, texts[path], known) for path, should in files)

    return [item.model_copy(update={"diff": diff(item)}) for item in items]
