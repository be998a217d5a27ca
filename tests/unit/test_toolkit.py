"""The toolkit's stage: nothing on a settled box, and otherwise exactly what is needed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyinfra.context import ctx_host

from gb10.desired import KEYRING
from gb10.facts.files import PathReport, PathState
from gb10.facts.probe import ToolkitState
from gb10.facts.probes.toolkit_state import fingerprints, run
from gb10.faults import BadInput
from gb10.stages import toolkit
from tests.unit.boxes import FactHost, box, commands, verbs

BOX = box()
DAEMON = '{"features": {"cdi": true}}'
SETTLED: dict[str, Any] = {
    "installed": dict.fromkeys(BOX.data.toolkit_packages, BOX.data.toolkit_version),
    "rivals": {},
    "fingerprints": [BOX.data.toolkit_key_fingerprint],
    "daemon": DAEMON,
    "docker_stale": False,
    "docker_cdi": True,
    "cdi_spec": "/var/run/cdi/nvidia.yaml",
    "stale_spec": "",
}
OPERATIONS = [
    toolkit.sole_source, toolkit.keyring, toolkit.packages, toolkit.docker_daemon, toolkit.docker_restarted,
    toolkit.cdi_spec,
]  # fmt: skip


def toolkit_commands(operation: Any, path: PathState | None = None, **state: Any) -> list[str]:
    return commands(operation, {ToolkitState: SETTLED | state, PathReport: path}, box=BOX)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_settled_toolkit(operation: Any) -> None:
    assert toolkit_commands(operation) == []


def test_the_question_names_the_repository_without_scheme_and_architecture() -> None:
    host = FactHost({ToolkitState: SETTLED})
    with ctx_host.use(host):
        list(toolkit.keyring._inner(box=BOX))
    question = host.asked[0][1]["question"]
    assert question["repository"] == "nvidia.github.io/libnvidia-container/stable/deb"
    assert question["source"] == BOX.toolkit_files[0].path


def test_a_second_source_is_switched_off_and_kept_aside() -> None:
    path = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
    line = "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n"
    ran = toolkit_commands(toolkit.sole_source, rivals={path: line})
    assert verbs(ran[:1]) == [f"/var/lib/gb10/taken-over {path}"]
    assert ran[1] == f"upload # taken over by gb10: {line}"
    assert path in shlex.split(ran[2])


@pytest.mark.parametrize("found", [[], ["A" * 40], ["A" * 40, BOX.data.toolkit_key_fingerprint]])
def test_a_keyring_that_is_not_the_one_key(found: list[str]) -> None:
    (fetch,) = toolkit_commands(toolkit.keyring, fingerprints=found)
    assert verbs([fetch]) == [f"{BOX.data.toolkit_key_url} {BOX.data.toolkit_key_fingerprint} {KEYRING}"]


PACKAGES: dict[str, str] = SETTLED["installed"]


@pytest.mark.parametrize(
    "installed",
    [
        {},
        PACKAGES | {"libnvidia-container1": "1.18.0-1"},
        {name: version for name, version in PACKAGES.items() if name != "libnvidia-container-tools"},
    ],
)
def test_all_packages_at_the_pinned_version(installed: dict[str, str]) -> None:
    (install,) = toolkit_commands(toolkit.packages, installed=installed)
    words = shlex.split(install)
    # All four in one go: apt would take the newest of those that are not named.
    assert words[5:] == [f"{name}={BOX.data.toolkit_version}" for name in BOX.data.toolkit_packages]
    assert words[4] == BOX.toolkit_files[0].path


def install(folder: Path, apt_get: str, audit: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script of the packages with an apt-get and a dpkg of our own; `ran` lists their calls."""
    held = "dpkg: error: dpkg frontend lock was locked by x"
    scripts = {
        "apt-get": f'echo "apt-get $*" >> {folder}/ran; {apt_get}',
        "dpkg": f'[ "$1" = --audit ] && {{ printf "%s" "{audit}"; exit; }}; echo "dpkg $*" >> {folder}/ran\n'
        f"[ -e {folder}/free ] || {{ touch {folder}/free; echo '{held}' >&2; exit 2; }}",
        "sleep": "exit 0",
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    command = ["sh", "-c", toolkit._INSTALL, "-", "our.sources", "a=1", "b=1"]
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(command, env=path, capture_output=True, text=True, check=False)


def test_another_apt_is_waited_for(tmp_path: Path) -> None:
    held = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 516 (apt-get)"
    busy = f"[ -e {tmp_path}/free ] || {{ touch {tmp_path}/free; echo '{held}' >&2; exit 100; }}"
    assert install(tmp_path, busy).returncode == 0
    ran = (tmp_path / "ran").read_text().splitlines()
    assert [line.split()[-1] for line in ran] == ["update", "update", "b=1"]


def test_another_dpkg_is_waited_for(tmp_path: Path) -> None:
    assert install(tmp_path, "exit 0", audit="half-configured").returncode == 0
    assert (tmp_path / "ran").read_text().splitlines()[:2] == ["dpkg --force-confold --configure -a"] * 2


def test_any_other_trouble_of_apt_is_said_at_once(tmp_path: Path) -> None:
    result = install(tmp_path, "echo 'E: no such server' >&2; exit 100")
    assert result.returncode != 0
    assert result.stderr == "E: no such server\n"
    assert len((tmp_path / "ran").read_text().splitlines()) == 1


def test_daemon_json_is_validated_before_it_takes_its_place() -> None:
    ran = toolkit_commands(toolkit.docker_daemon, daemon='{"data-root": "/data"}')
    assert json.loads(ran[0].removeprefix("upload ")) == {"data-root": "/data", "features": {"cdi": True}}
    check = next(index for index, line in enumerate(ran) if line.startswith("dockerd --validate"))
    place = next(index for index, line in enumerate(ran) if "/etc/docker/daemon.json" in shlex.split(line))
    assert check < place
    assert "daemon.json.candidate" in ran[check]


def test_a_box_without_daemon_json() -> None:
    assert json.loads(toolkit_commands(toolkit.docker_daemon, daemon=None)[0].removeprefix("upload ")) == {
        "features": {"cdi": True}}  # fmt: skip


def test_a_daemon_json_that_docker_cannot_read_is_refused() -> None:
    with pytest.raises(BadInput, match="not valid JSON"):
        toolkit_commands(toolkit.docker_daemon, daemon="{,}")


@pytest.mark.parametrize(
    "state", [{"daemon": None}, {"daemon": "{}"}, {"docker_stale": True}, {"docker_cdi": False}]
)
def test_docker_is_restarted_when_it_has_not_read_it(state: dict[str, Any]) -> None:
    *before, last = toolkit_commands(toolkit.docker_restarted, **state)
    assert last == "systemctl restart docker.service"
    # Several deploys in a row are no crash loop.
    assert before[-1].startswith("systemctl reset-failed docker.service")
    assert before[:-1] == (["touch --no-create /etc/docker/daemon.json"] if "docker_stale" in state else [])


def test_no_cdi_spec_is_refreshed() -> None:
    assert verbs(toolkit_commands(toolkit.cdi_spec, cdi_spec="")) == ["nvidia.com/gpu=all"]


def test_a_stale_copy_is_named_and_left_alone() -> None:
    host = FactHost({ToolkitState: SETTLED | {"stale_spec": "/etc/cdi/nvidia.yaml"}})
    with ctx_host.use(host):
        assert list(toolkit.cdi_spec._inner(box=BOX)) == []
    assert "/etc/cdi/nvidia.yaml" in host.said[0]


@pytest.fixture(scope="module")
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A public key file and its fingerprint."""
    if not shutil.which("gpg"):
        pytest.skip("no gpg here")
    home = Path(tmp_path_factory.mktemp("g"))
    home.chmod(0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet"]

    def gpg_run(*arguments: str) -> bytes:
        return subprocess.run([*gpg, *arguments], check=True, capture_output=True).stdout

    gpg_run("--passphrase", "", "--quick-generate-key", "Vendor <v@example.org>", "ed25519", "sign")
    listing = gpg_run("--with-colons", "--fingerprint").decode()
    path = home / "gpgkey"
    path.write_bytes(gpg_run("--armor", "--export"))
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    return path, next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))


def fetch_key(url: str, fingerprint: str, keyring: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", toolkit._FETCH_KEY, "-", url, fingerprint, str(keyring)],
                          capture_output=True, text=True, check=False)  # fmt: skip


def test_the_key_with_the_fingerprint_gets_into_the_keyring(
    signing_key: tuple[Path, str], tmp_path: Path
) -> None:
    path, fingerprint = signing_key
    keyring = tmp_path / "ring.gpg"
    assert fetch_key(path.as_uri(), fingerprint, keyring).returncode == 0
    assert fingerprints(run("gpg", "--show-keys", "--with-colons", str(keyring))) == [fingerprint]
    assert b"BEGIN PGP" not in keyring.read_bytes()  # apt takes no armour in a .gpg file
    assert keyring.stat().st_mode & 0o777 == 0o644


def test_another_key_does_not(signing_key: tuple[Path, str], tmp_path: Path) -> None:
    path, fingerprint = signing_key
    keyring = tmp_path / "ring.gpg"
    keyring.write_text("the old one")
    result = fetch_key(path.as_uri(), "A" * 40, keyring)
    assert result.returncode == 1
    assert f"has the fingerprint {fingerprint}, not {'A' * 40}" in result.stderr
    assert keyring.read_text() == "the old one"
