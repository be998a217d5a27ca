"""The probes: what they make of the output of ss, docker, systemctl, dpkg-query and gpg."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gb10.facts.probe import PROBES, probe_source
from gb10.facts.probes import box_report, drift_state, lane_state, old_lanes, toolkit_state

CONTAINER = "4f1d" + "0" * 60
SS = """\
LISTEN 0      4096       127.0.0.1:10103      0.0.0.0:*  users:(("docker-proxy",pid=4242,fd=7))
LISTEN 0      128          0.0.0.0:22         0.0.0.0:*  users:(("sshd",pid=800,fd=3))
LISTEN 0      4096            [::]:10101      [::]:*  users:(("python",pid=901,fd=9),("python",pid=900,fd=9))
LISTEN 0      4096   127.0.0.53%lo:53         0.0.0.0:*  users:(("systemd-resolve",pid=500,fd=17))
LISTEN 0      4096               *:9090             *:*
"""
DOCKER_PS = """\
llamacpp-playground 127.0.0.1:10103->10103/tcp
grafana 0.0.0.0:3000->3000/tcp, :::3000->3000/tcp
ranged 0.0.0.0:10100-10102->10100-10102/tcp, [::]:10100-10102->10100-10102/tcp
inner 3000/tcp, 10103/tcp
"""
DOCKER_CGROUP = f"0::/system.slice/docker-{CONTAINER}.scope\n"
UNIT_CGROUP = "0::/system.slice/vllm-lane-a.service\n"


def outputs(monkeypatch: pytest.MonkeyPatch, module: Any, answers: dict[str, str]) -> list[tuple[str, ...]]:
    """Let ``module.run`` answer by the start of the command line; the commands that were asked."""
    asked: list[tuple[str, ...]] = []

    def run(*command: str) -> str:
        asked.append(command)
        line = " ".join(command)
        found = [text for start, text in answers.items() if line.startswith(start)]
        return found[0] if found else ""

    monkeypatch.setattr(module, "run", run)
    return asked


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PROBES.glob("[!_]*.py")), ids=lambda path: path.name)
def test_nothing_but_the_standard_library(path: Path) -> None:
    # A probe is sent to a host that has nothing of ours.
    for node in ast.walk(ast.parse(probe_source(path.name))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)


QUESTIONS = {
    "box_report.py": {"ports": [1]},
    "lane_state.py": {"unit": "gb10-no-such.service", "lane": "gb10-no-such", "presets": "/nonexistent/p",
                      "key": "/nonexistent/k", "models_dir": "/nonexistent"},
    "toolkit_state.py": {"packages": ["gb10-no-such"], "repository": "gb10.invalid/none", "source": "/none",
                         "keyring": "/nonexistent/ring.gpg", "cdi": "gb10.invalid/none=all"},
}  # fmt: skip


def test_old_lanes_that_cannot_be_looked_at_are_not_gone(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    question = {"lanes": [{"unit": "gb10-no-such.service", "container": "gb10-no-such", "port": 1}]}
    result = subprocess.run(
        [sys.executable, str(PROBES / "old_lanes.py"), json.dumps(question)],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        check=False,
    )
    assert result.returncode == 1
    assert "old lanes cannot be looked at" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_answers_in_one_line_of_json_where_nothing_is_there(name: str, tmp_path: Path) -> None:
    # A PATH with python3 alone: no docker, no systemctl, no ss, no dpkg.
    (tmp_path / "python3").symlink_to(sys.executable)
    result = subprocess.run(
        [sys.executable, str(PROBES / name), json.dumps(QUESTIONS[name])],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr == ""
    (line,) = result.stdout.splitlines()
    assert isinstance(json.loads(line), dict)


# -- box_report -------------------------------------------------------------------------------------


def test_listeners() -> None:
    assert box_report.listeners(SS) == {10103: {4242}, 22: {800}, 10101: {900, 901}, 53: {500}, 9090: set()}
    assert box_report.listeners("") == {}


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        (UNIT_CGROUP, "vllm-lane-a.service"),
        (DOCKER_CGROUP, ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n", "vllm.service"),
        ("0::/system.slice/vllm@a.service/worker\n", "vllm@a.service"),
        ("12:pids:/system.slice/x.service\n1:name=systemd:/system.slice/x.service\n", "x.service"),
        ("", ""),
    ],
)
def test_unit_of(cgroup: str, unit: str) -> None:
    assert box_report.unit_of(cgroup) == unit


@pytest.mark.parametrize(
    ("port", "name"),
    [
        (10103, "llamacpp-playground"),
        (3000, "grafana"),
        (10101, "ranged"),
        (10102, "ranged"),
        (103, ""),
        (1010, ""),
    ],
)
def test_container_of_port(port: int, name: str) -> None:
    assert box_report.container_of_port(DOCKER_PS, port) == name


def test_container_of_process() -> None:
    # A server on the host's own network publishes nothing.
    assert box_report.container_of_process(DOCKER_CGROUP, {CONTAINER: "vllm"}) == "vllm"
    assert box_report.container_of_process(DOCKER_CGROUP, {}) == CONTAINER[:12]
    assert box_report.container_of_process(f"0::/docker/{CONTAINER}\n", {CONTAINER: "vllm"}) == "vllm"
    assert box_report.container_of_process(UNIT_CGROUP, {CONTAINER: "vllm"}) == ""


def test_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    names, ids = "docker ps --no-trunc --format {{.Names}}", "docker ps --no-trunc --format {{.ID}}"
    outputs(monkeypatch, box_report, {"ss ": SS, names: DOCKER_PS, ids: f"{CONTAINER} vllm\n"})
    files = {
        "/proc/4242/cgroup": "0::/system.slice/docker.service\n",
        "/proc/4242/comm": "docker-proxy\n",
        "/proc/900/cgroup": DOCKER_CGROUP,
        "/proc/900/comm": "python3\n",
        "/proc/800/cgroup": "0::/system.slice/ssh.service\n",
        "/proc/800/comm": "sshd\n",
    }
    monkeypatch.setattr(box_report, "read", lambda path: files.get(path, ""))
    found = box_report.holders([10103, 22, 4711, 9090])
    assert found["10103"] == {
        "unit": "docker.service",
        "container": "llamacpp-playground",
        "process": "docker-proxy",
        "pid": 4242,
    }
    assert found["22"] == {"unit": "ssh.service", "container": "", "process": "sshd", "pid": 800}
    assert "4711" not in found
    assert found["9090"]["pid"] == 0
    monkeypatch.setattr(box_report, "container_of_port", lambda *_: "")
    assert box_report.holders([10101])["10101"]["container"] == "vllm"


def test_no_listener_asks_docker_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = outputs(monkeypatch, box_report, {"ss ": SS})
    assert box_report.holders([1]) == {}
    assert [command[0] for command in asked] == ["ss"]


def test_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert box_report.free_bytes(str(tmp_path / "a" / "b")) > 0
    assert box_report.free_bytes("/nonexistent/docker") > 0


def test_box_report(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs(
        monkeypatch, box_report, {"docker info": "/", "docker version": "28.5.1", "docker buildx": "v0.29"}
    )
    answer = box_report.main({"ports": []})
    assert (answer["docker"], answer["buildx"], answer["docker_root"]) == ("28.5.1", True, "/")


# -- old_lanes ---------------------------------------------------------------------------------------


def test_properties() -> None:
    text = "LoadState=loaded\nActiveState=active\nEnvironment=A=b C=d\n\nnot a property\n"
    assert old_lanes.properties(text) == {
        "LoadState": "loaded", "ActiveState": "active", "Environment": "A=b C=d"}  # fmt: skip
    assert lane_state.properties(text) == old_lanes.properties(text)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make old_lanes see these paths, and no others."""

    def see(*paths: str, links: dict[str, str] | None = None) -> None:
        monkeypatch.setattr(old_lanes.os.path, "lexists", lambda path: path in paths)
        monkeypatch.setattr(old_lanes.os.path, "realpath", lambda path: (links or {}).get(path, path))

    return see


UNIT = "vllm-lane-b.service"
ETC = f"/etc/systemd/system/{UNIT}"


def test_unit_file_and_drop_ins(there: Callable[..., None]) -> None:
    there(ETC, f"{ETC}.d/override.conf", f"/run/systemd/system/{UNIT}.d/50.conf")
    shown = {
        "FragmentPath": ETC,
        "DropInPaths": f"{ETC}.d/override.conf /run/systemd/system/{UNIT}.d/50.conf",
    }
    assert old_lanes.unit_files(shown, UNIT) == [
        ETC, f"{ETC}.d/override.conf", f"/run/systemd/system/{UNIT}.d/50.conf"]  # fmt: skip


def test_a_file_that_systemd_has_not_read(there: Callable[..., None]) -> None:
    there(ETC)
    assert old_lanes.unit_files({"LoadState": "not-found"}, UNIT) == [ETC]


@pytest.mark.parametrize(
    "shared",
    [
        "/etc/systemd/system/service.d/10-all.conf",
        "/etc/systemd/system/vllm-.service.d/limits.conf",
        "/usr/lib/systemd/system/vllm-lane-b.service.d/package.conf",
    ],
)
def test_what_belongs_to_others_stays(shared: str, there: Callable[..., None]) -> None:
    there(shared)
    assert old_lanes.unit_files({"DropInPaths": shared}, UNIT) == []


def test_a_template_serves_other_instances_too(there: Callable[..., None]) -> None:
    there("/etc/systemd/system/vllm@.service")
    assert old_lanes.unit_files({"FragmentPath": "/etc/systemd/system/vllm@.service"}, "vllm@b.service") == []


def test_a_packages_unit_stays(there: Callable[..., None]) -> None:
    there(f"/usr/lib/systemd/system/{UNIT}")
    assert old_lanes.unit_files({"FragmentPath": f"/usr/lib/systemd/system/{UNIT}"}, UNIT) == []


def test_a_mask_keeps_the_lane_out_as_well(there: Callable[..., None]) -> None:
    there(ETC, links={ETC: "/dev/null"})
    assert old_lanes.unit_files({"LoadState": "masked", "FragmentPath": ETC}, UNIT) == []


def test_old_lane(monkeypatch: pytest.MonkeyPatch, there: Callable[..., None]) -> None:
    there(ETC)
    shown = (
        f"LoadState=loaded\nActiveState=activating\nUnitFileState=enabled\nFragmentPath={ETC}\nDropInPaths=\n"
    )
    outputs(monkeypatch, old_lanes, {f"systemctl show {UNIT}": shown, "docker container inspect": "exited"})
    assert old_lanes.main({"lanes": [{"unit": UNIT, "container": "vllm-b"}]}) == {
        UNIT: {"loaded": "loaded", "active": "activating", "enabled": "enabled", "files": [ETC],
               "container": "exited"}}  # fmt: skip


# -- lane_state ---------------------------------------------------------------------------------------

SHOWN = """\
LoadState=loaded
ActiveState=active
UnitFileState=enabled
NeedDaemonReload=yes
ExecMainStartTimestampMonotonic=1000000
"""


def test_lane_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    presets, key = tmp_path / "models.ini", tmp_path / "api-key"
    presets.write_text("[*]\n")
    key.write_text("secret\n")
    key.chmod(0o600)
    outputs(monkeypatch, lane_state, {"systemctl": SHOWN, "docker": "0123456789abcdef"})
    question = {"unit": "x.service", "lane": "gb10-no-such", "models_dir": str(tmp_path)}
    answer = lane_state.main({**question, "presets": str(presets), "key": str(key)})
    assert answer["active"] == "active"
    assert answer["enabled"] == "enabled"
    assert answer["needs_reload"] is True
    assert answer["container_hash"] == "0123456789abcdef"
    assert answer["presets_read"] == ""
    assert answer["presets_file"] == hashlib.sha256(b"[*]\n").hexdigest()
    assert answer["key"] == {"mode": "0600", "owner": f"{os.getuid()}:{os.getgid()}", "size": 7}
    assert "secret" not in json.dumps(answer)


def test_no_lane_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs(monkeypatch, lane_state, {})
    question = {
        "unit": "x.service",
        "lane": "gb10-no-such",
        "presets": "/nonexistent",
        "key": "/nonexistent",
        "models_dir": "/nonexistent",
    }
    assert lane_state.main(question) == {
        "loaded": "not-found",
        "active": "inactive",
        "enabled": "",
        "needs_reload": False,
        "container_hash": "",
        "presets_read": "",
        "presets_file": "",
        "key": None,
        "key_newer": False,
        "models_newer": False,
    }


def test_digests(tmp_path: Path) -> None:
    file, record = tmp_path / "models.ini", tmp_path / "presets.sha256"
    file.write_text("[*]\n")
    record.write_bytes(subprocess.run(["sha256sum"], input=b"[*]\n", capture_output=True, check=True).stdout)
    assert lane_state.recorded_digest(str(record)) == lane_state.digest_of(str(file))
    record.write_text("")  # what a full disk leaves
    assert lane_state.recorded_digest(str(record)) == ""


def started(seconds_ago: float) -> str:
    return str(int((time.clock_gettime(time.CLOCK_MONOTONIC) - seconds_ago) * 1e6))


def test_a_key_that_is_newer_than_the_service(tmp_path: Path) -> None:
    key = tmp_path / "api-key"
    key.write_text("x")
    os.utime(key, (time.time() - 100, time.time() - 100))
    if time.clock_gettime(time.CLOCK_MONOTONIC) < 300:
        pytest.skip("this machine has just started")
    assert lane_state.key_newer(str(key), started(200)) is True
    assert lane_state.key_newer(str(key), started(50)) is False
    assert lane_state.key_newer(str(key), "0") is False
    assert lane_state.key_newer(str(key), "") is False
    assert lane_state.key_newer(str(tmp_path / "none"), started(200)) is False


@pytest.mark.parametrize("probe", [lane_state, drift_state])
def test_a_model_file_that_is_newer_than_the_service(probe: ModuleType, tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    replaced = tmp_path / ".gb10-replaced.json"
    replaced.write_text(json.dumps({"boot": boot, "monotonic_us": 5_000_000}))
    assert probe.models_newer(str(tmp_path), "4000000") is True
    assert probe.models_newer(str(tmp_path), "6000000") is False
    assert probe.models_newer(str(tmp_path), "0") is False  # it does not run
    assert probe.models_newer(str(tmp_path), "") is False
    assert probe.models_newer(str(tmp_path / "none"), "4000000") is False
    for spoilt in ("", "[]", "{}", json.dumps({"boot": "an earlier one", "monotonic_us": 5_000_000})):
        replaced.write_text(spoilt)
        assert probe.models_newer(str(tmp_path), "4000000") is False


# -- toolkit_state ------------------------------------------------------------------------------------


def test_installed() -> None:
    listing = (
        "libnvidia-container1\tii \t1.19.1-1\n"
        "nvidia-container-toolkit\thi \t1.19.1-1\n"  # on hold, and there
        "nvidia-container-toolkit-base\trc \t1.17.0-1\n"  # removed, its configuration left
        "libnvidia-container-tools\tiU \t1.19.1-1\n"  # unpacked only
        "other\tun \t\n"
    )
    assert toolkit_state.installed(listing) == {
        "libnvidia-container1": "1.19.1-1", "nvidia-container-toolkit": "1.19.1-1"}  # fmt: skip


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg here")
def test_installed_packages_of_this_machine() -> None:
    listing = toolkit_state.run("dpkg-query", "--show", "--showformat",
                                "${Package}\t${db:Status-Abbrev}\t${Version}\n", "dpkg")  # fmt: skip
    assert toolkit_state.installed(listing)["dpkg"]


REPOSITORY = "nvidia.github.io/libnvidia-container/stable/deb"
STANZA = f"Types: deb\nURIs: https://{REPOSITORY}/arm64\nSuites: /\n"
OFF = "Types: deb\nURIs: https://example.org/x\nSuites: y\nEnabled: no\n"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (f"deb https://{REPOSITORY}/$(ARCH) /\n", True),
        (f"# deb https://{REPOSITORY}/$(ARCH) /\n", False),
        (STANZA, True),
        (f"{STANZA}Enabled: yes\n", True),
        (f"{STANZA}Enabled: no\n", False),
        (f"{STANZA}enabled:False\n", False),
        (f"{OFF}\n{STANZA}", True),
        (f"{STANZA}\n{OFF}", True),
        (f"{STANZA}Enabled: no\n\n{STANZA}", True),
        (OFF, False),
        ("", False),
    ],
)
def test_names_repository(content: str, named: bool) -> None:
    assert toolkit_state.names_repository(content, REPOSITORY) is named


GPG = """\
pub:-:4096:1:DDCAE044F796ECB0:1513184096:::-:::scSC::::::23::0:
fpr:::::::::C95B321B61E88C1809C4F759DDCAE044F796ECB0:
uid:-::::1513184096::BF8D::NVIDIA CORPORATION (Open Source Projects) <cudatools@example.org>::::::::::0:
sub:-:4096:1:6E91CA3D41E92B6A:1513184096::::::e::::::23:
fpr:::::::::8A3D2F0C0B8A4B1D9F0B3C1A6E91CA3D41E92B6A:
"""


def test_fingerprints_of_primary_keys_only() -> None:
    assert toolkit_state.fingerprints(GPG) == ["C95B321B61E88C1809C4F759DDCAE044F796ECB0"]
    assert len(toolkit_state.fingerprints(GPG + GPG)) == 2
    assert toolkit_state.fingerprints("") == []


def specs(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    monkeypatch.setattr(
        toolkit_state.glob, "glob",
        lambda pattern: [path for path in files if path.startswith(pattern.partition("*")[0])
                         and path.endswith(pattern.rpartition("*")[2])],
    )  # fmt: skip
    monkeypatch.setattr(toolkit_state, "read", lambda path: files.get(path, ""))


YAML = 'cdiVersion: 0.7.0\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n- name: all\n  containerEdits: {}\n'
JSON = '{"cdiVersion":"0.7.0","kind":"nvidia.com/gpu","devices":[{"name":"0"},{"name":"all"}]}'


@pytest.mark.parametrize("text", [YAML, JSON, YAML.replace("nvidia.com/gpu", '"nvidia.com/gpu"')])
@pytest.mark.parametrize("folder", ["/var/run/cdi", "/etc/cdi"])
def test_spec_of_the_device(text: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{folder}/nvidia.{'json' if text == JSON else 'yaml'}"
    specs(monkeypatch, {path: text})
    assert toolkit_state.spec_of("nvidia.com/gpu=all") == path
    assert toolkit_state.spec_of("nvidia.com/gpu=0") == path
    assert toolkit_state.spec_of("nvidia.com/gpu=1") == ""
    assert toolkit_state.spec_of("nvidia.com/gpux=all") == ""
    assert toolkit_state.spec_of("example.com/gpu=all") == ""


def test_no_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    specs(monkeypatch, {})
    assert toolkit_state.spec_of("nvidia.com/gpu=all") == ""
    specs(monkeypatch, {"/var/run/cdi/nvidia.yaml": ""})
    assert toolkit_state.spec_of("nvidia.com/gpu=all") == ""
