"""Facts that a small Python program on the host finds out: wide, one round trip each.

A probe is one file of ``gb10/facts/probes/``: standard library only, read-only, it gets its question as
JSON in its first argument and prints its answer as JSON. It is sent with the command, so it works on a
host that has nothing of ours yet. What several have in common is a file of its own (``_NAME.py``), which
stands in the place of its import when they are sent.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

PROBES = Path(__file__).parent / "probes"
_PART = re.compile(r"^from gb10\.facts\.probes\.(\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)


def probe_source(program: str) -> str:
    """The whole text of a probe, in one file."""

    taken = set()

    def part(found: re.Match[str]) -> str:
        if found[1] in taken:
            return ""
        taken.add(found[1])
        text = (PROBES / f"{found[1]}.py").read_text()
        return _PART.sub(part, text.replace("from __future__ import annotations\n", "", 1))

    return _PART.sub(part, (PROBES / program).read_text())


def probe_command(program: str, question: object) -> StringCommand:
    """The shell command that runs ``program`` of the probes folder with ``question``."""
    source = probe_source(program)
    # -I: a json.py in the login user's home must not take the place of Python's own, as root.
    return StringCommand(
        "python3", "-I", "-c", QuoteString(source), QuoteString(json.dumps(question, sort_keys=True))
    )


def probe_answer(output: list[str]) -> Any:
    """The JSON object of a probe's last line. Raises pyinfra's ``FactProcessError``."""
    try:
        return json.loads(output[-1])
    except (ValueError, IndexError):
        raise FactProcessError(f"the probe answered with something else than JSON: {output[-1:]}") from None


class ProbeFact(FactBase[dict[str, Any]]):
    """Base of the facts below: ``program`` is the probe's file name."""

    program = ""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, question: object) -> StringCommand:
        return probe_command(self.program, question)

    def process(self, output: list[str]) -> dict[str, Any]:
        answer: dict[str, Any] = probe_answer(output)
        return answer


class BoxReport(ProbeFact):
    """What preflight must know and only root can see.

    Question: ``{"ports": [10103], "calendar": "daily"}``. Answer: ``calendar`` (why systemd cannot read that
    time, or an empty text), ``free_bytes``, ``docker`` (server version or null), ``buildx``
    (bool), ``docker_root``, ``daemon`` (text of daemon.json or null), ``lock`` (``{"who", "since"}``
    of the deploy that is under way, or null) and ``holders``: port (as text) to ``{"unit", "container",
    "process", "pid"}`` for each port of the question that somebody listens on.
    """

    program = "box_report.py"


class OldLanes(ProbeFact):
    """What is left of old serving lanes.

    Question: ``{"lanes": [{"unit", "container", "port"}]}``. Answer: unit name to ``{"loaded", "active",
    "enabled", "files", "container"}``; ``files`` are unit files and drop-ins that an administrator or a
    tool put there, ``container`` is its state or an empty text.
    """

    program = "old_lanes.py"


class ToolkitState(ProbeFact):
    """The container toolkit, its apt source and Docker's knowledge of CDI devices.

    Question: ``{"packages": [...], "repository": text in an apt source's URI, "source": our own file,
    "keyring": path, "cdi": "nvidia.com/gpu=all"}``. Answer: ``installed`` (package to version), ``rivals``
    (other apt sources of the same repository: path to complete content), ``fingerprints`` of the keyring,
    ``daemon`` (text of daemon.json or null), ``docker_stale`` (daemon.json is newer than dockerd),
    ``docker_cdi`` (bool), ``cdi_spec`` (the spec file that names the device, or an empty text),
    ``stale_spec`` (a copy under /etc/cdi beside the generated one).
    """

    program = "toolkit_state.py"


class LaneState(ProbeFact):
    """The lane's unit, container and key, and what its router has read.

    Question: ``{"unit", "lane", "presets", "key", "models_dir"}``. Answer: ``active``, ``enabled``,
    ``loaded``, ``needs_reload`` (bool), ``container_hash`` (label of the running container or an empty text),
    ``presets_read`` and ``presets_file`` (sha256 or empty), ``key`` (``{"mode", "owner", "size"}`` or
    null), ``key_newer`` (bool: the key is newer than the running service), ``models_newer``
    (bool: a model file took another one's place since the service started).
    """

    program = "lane_state.py"


class WatchState(ProbeFact):
    """The files and units of the watch, and what the running one was started with.

    Question: ``{"paths": [...], "units": [...], "user_id", "status": path of status.json}``. Answer:
    ``paths`` (path to ``{"mode", "owner", "sha256"}`` or null), ``units`` (unit to ``{"active", "enabled",
    "needs_reload"}``), ``user`` (bool: the user has a name) and ``description``.
    """

    program = "watch_state.py"


class BoxStatus(ProbeFact):
    """The box at a glance, for `gb10 status`.

    Question: ``{"lane", "status": path of the watch's status.json, "drift" and "record": paths of what the
    look at night found and of the last deploy's record, "lock": path of the deploys' lock, "programs":
    folder, "lane_file"}``.
    Answer: ``deploy`` (``{"who", "since"}`` of the one under way, or null), ``uptime_seconds``, ``lane`` and
    ``watch`` (``{"active", "enabled", "result", "restarts", "seconds"}`` of their units), ``image`` of the
    running container, ``memory`` (MiB: ``total``, ``available``), ``status`` (what the watch wrote last, or
    null), ``status_age_seconds``, ``night`` (``found``: what the last look at night wrote, or null,
    ``age_seconds`` of that and ``deploy_age_seconds`` of the record, null for none, and ``result`` of its
    unit), and ``router`` (``{"error", "models": name to state}``) where the watch has not looked just now,
    else null.
    """

    program = "box_status.py"
