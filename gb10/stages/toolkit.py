"""NVIDIA container toolkit: one signed source, four pinned packages, and Docker that knows the GPU by CDI."""

from __future__ import annotations

import re
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.apt_sources import without_repository
from gb10.daemon_json import PATH as DAEMON_JSON
from gb10.daemon_json import merged_text
from gb10.desired import KEYRING, Desired
from gb10.facts.probe import ToolkitState
from gb10.facts.shared import look
from gb10.operations import Commands, placed
from gb10.rendering import PlacedFile
from gb10.stages import stage

# From /: cp of coreutils 9.1 loses the leading slash of a path with --parents.
_SET_ASIDE = 'set -e; mkdir -p "$1"; cd /; cp -a --parents "$2" "$1"'

# $1 URL, $2 fingerprint, $3 keyring. Only the key with that fingerprint gets into the keyring, whatever
# else the server sends.
_FETCH_KEY = """
set -e
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export GNUPGHOME="$work"
python3 -I - "$1" > "$work/key" <<'PYTHON'
import sys, urllib.request
try:
    sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=60).read(1 << 20))
except (OSError, ValueError) as error:
    sys.exit(f"the key cannot be fetched from {sys.argv[1]}: {error}: run the deploy again once it answers")
PYTHON
gpg --batch --quiet --import "$work/key"
gpg --batch --export "$2" > "$work/keyring"
if [ ! -s "$work/keyring" ]; then
  found=$(gpg --batch --with-colons --fingerprint | sed -n 's/^fpr:*\\([0-9A-F]*\\):$/\\1/p' | head -n 1)
  echo "the key at $1 has the fingerprint ${found:-none}, not $2" >&2
  echo "if it was renewed: check that with the vendor, then set toolkit_key_fingerprint" >&2
  exit 1
fi
install -m 0644 "$work/keyring" "$3.gb10-new"; mv -T "$3.gb10-new" "$3"
"""

# $1 the source file, $2... package=version. Only our source is read anew: another one that is broken or
# slow is not our business. apt waits for dpkg's lock by itself; for the lock of its lists, and dpkg for its
# own, nobody does, and after a boot the system's daily update holds them.
_INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
source="$1"; shift
patiently() {
  tries=0
  until errors=$("$@" 2>&1 >/dev/null); do
    tries=$((tries + 1))
    case "$errors" in *" lock"*) ;; *) tries=60 ;; esac
    [ "$tries" -lt 60 ] || { echo "$errors" >&2; return 1; }
    sleep 5
  done
}
[ -z "$(dpkg --audit)" ] || patiently dpkg --force-confold --configure -a
patiently apt-get -q -o Dir::Etc::SourceList="$source" -o Dir::Etc::SourceParts=- \
  -o APT::Get::List-Cleanup=0 -o Acquire::Retries=3 --error-on=any update
apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold -o Acquire::Retries=3 \
  --no-install-recommends --allow-downgrades --allow-change-held-packages install "$@"
"""

# $1 the CDI device. The refresh writes the spec; a driver that is not there shows up here.
_REFRESH_CDI = """
systemctl restart nvidia-cdi-refresh.service || {
  journalctl --unit nvidia-cdi-refresh.service --output cat --no-pager --lines 5 >&2
  echo "the CDI spec for $1 could not be written: is the NVIDIA driver loaded (nvidia-smi)?" >&2
  exit 1
}
"""


@stage("toolkit")
def install(box: Desired) -> None:
    """Every step looks for itself; on a settled box none changes anything."""
    source, preferences = box.toolkit_files
    sole_source(name="toolkit: no second source of the same repository", box=box)
    keyring(name="toolkit: keyring", box=box)
    placed.file(name="toolkit: apt source", placed=source)
    placed.file(name="toolkit: version pin", placed=preferences)
    packages(name=f"toolkit: packages {box.data.toolkit_version}", box=box)
    docker_daemon(name="toolkit: daemon.json", box=box)
    docker_restarted(name="toolkit: Docker has read daemon.json", box=box)
    cdi_spec(name=f"toolkit: CDI device {box.data.accelerator_cdi}", box=box)


def _state(box: Desired) -> dict[str, Any]:
    repository = re.sub(r"^[a-z]+://", "", box.data.toolkit_apt_url.partition("/$(ARCH)")[0])
    question = {
        "packages": list(box.data.toolkit_packages),
        "repository": repository,
        "source": box.toolkit_files[0].path,
        "keyring": KEYRING,
        "cdi": box.data.accelerator_cdi,
    }
    answer: dict[str, Any] = look(host, ToolkitState, question=question) | {"repository": repository}
    return answer


@operation()
def sole_source(box: Desired) -> Commands:
    """Other sources of the repository are switched off; a copy of each is kept below state_dir.

    Two sources of which one has no Signed-By break apt as a whole.
    """
    state = _state(box)
    for path, content in state["rivals"].items():
        aside = f"{box.data.state_dir}/taken-over"
        yield StringCommand("sh", "-c", QuoteString(_SET_ASIDE), "-", QuoteString(aside), QuoteString(path))
        yield from placed.file_commands(
            PlacedFile(path, without_repository(path, content, state["repository"]))
        )


@operation()
def keyring(box: Desired) -> Commands:
    """The keyring holds the one key with the fingerprint of the data."""
    data = box.data
    if _state(box)["fingerprints"] != [data.toolkit_key_fingerprint]:
        arguments = (data.toolkit_key_url, data.toolkit_key_fingerprint, KEYRING)
        yield StringCommand(
            "sh", "-c", QuoteString(_FETCH_KEY), "-", *(QuoteString(part) for part in arguments)
        )


@operation()
def packages(box: Desired) -> Commands:
    """All packages of the toolkit at the pinned version."""
    data = box.data
    installed = _state(box)["installed"]
    if any(installed.get(package) != data.toolkit_version for package in data.toolkit_packages):
        wanted = (QuoteString(f"{package}={data.toolkit_version}") for package in data.toolkit_packages)
        source = QuoteString(box.toolkit_files[0].path)
        yield StringCommand("sh", "-c", QuoteString(_INSTALL), "-", source, *wanted)


@operation()
def docker_daemon(box: Desired) -> Commands:
    """daemon.json says what the data wants, and keeps what it said before."""
    current = _state(box)["daemon"]
    text = merged_text(host.name, current, box.data.docker_daemon)
    if text != current:
        candidate = PlacedFile(f"{box.data.state_dir}/daemon.json.candidate", text)
        yield from placed.file_commands(candidate)
        yield StringCommand("dockerd", "--validate", "--config-file", QuoteString(candidate.path))
        yield from placed.file_commands(PlacedFile(DAEMON_JSON, text))


@operation()
def docker_restarted(box: Desired) -> Commands:
    """dockerd runs with the daemon.json that lies there. Its restart stops all containers for a moment."""
    state = _state(box)
    differs = merged_text(host.name, state["daemon"], box.data.docker_daemon) != state["daemon"]
    if differs or state["docker_stale"] or not state["docker_cdi"]:
        if state["docker_stale"]:
            # Written while the clock was ahead it would stay newer than any dockerd: a restart each deploy.
            yield StringCommand("touch", "--no-create", DAEMON_JSON)
        # The start limit is there for crashes: it must not count our own restarts.
        yield StringCommand("systemctl", "reset-failed", "docker.service", "2>/dev/null", "||", "true")
        yield StringCommand("systemctl", "restart", "docker.service")


@operation()
def cdi_spec(box: Desired) -> Commands:
    """There is a CDI spec that names the accelerator."""
    state = _state(box)
    if state["stale_spec"]:
        host.log(f"{state['stale_spec']} is a copy that nothing refreshes: remove it once nobody needs it")
    if not state["cdi_spec"]:
        device = QuoteString(box.data.accelerator_cdi)
        yield StringCommand("sh", "-c", QuoteString(_REFRESH_CDI), "-", device)
