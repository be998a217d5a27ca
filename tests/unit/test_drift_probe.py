"""The look for drift: what it makes of docker, ss, apt, systemd and /proc."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from gb10.container import described, differences, preset_differences
from gb10.facts.drift import DriftState, question_of
from gb10.facts.probes import _container, _marks, _strangers
from gb10.facts.probes import drift_state as probe
from tests.unit.boxes import box
from tests.unit.drifted import IMAGE, models_of

BOX = box()

INSPECTED = {
    "Image": IMAGE,
    "State": {"Status": "running", "Pid": 1},
    "Config": {
        "User": "10103:10103",
        "Entrypoint": ["/usr/local/bin/llama-server"],
        "Cmd": ["--port", "10103"],
        "Env": ["LLAMA_ARG_DEVICE=CUDA0", "PATH=/bin", "OPENAI_API_KEY=sk-secret"],
        "Labels": {"gb10.lane": "abc"},
    },
    "HostConfig": {
        "PortBindings": {"10103/tcp": [{"HostIp": "", "HostPort": "10103"}]},
        "DeviceRequests": [{"DeviceIDs": ["nvidia.com/gpu=all"]}],
        "Devices": [{"PathOnHost": "/dev/mem"}],
        "PidsLimit": 4096,
        "Memory": 0,
        "CapAdd": None,
        "CapDrop": ["ALL"],
        "Tmpfs": {"/tmp": "rw,size=1g"},
        "RestartPolicy": {"Name": "always"},
        "LogConfig": {"Type": "none"},
        "Init": True,
    },
    "Mounts": [{"Source": "/srv/models", "Destination": "/srv/models", "RW": False}],
}


def test_a_container() -> None:
    image = {"Config": {"Env": ["PATH=/bin"]}}
    found = _container.container_of(INSPECTED, image, {"PidsLimit": True, "MemoryLimit": False})
    assert found["published"] == ["0.0.0.0:10103->10103/tcp"]
    assert found["devices"] == ["/dev/mem", "nvidia.com/gpu=all"]
    assert found["mounts"] == ["/srv/models:/srv/models:ro"]
    assert found["tmpfs"] == ["/tmp:rw,size=1g"]
    assert (found["pids"], found["memory"], found["restart"]) == (4096, "unsupported", "always")
    assert found["capabilities"] == [[], ["ALL"]]
    assert found["environment"].keys() == {"LLAMA_ARG_DEVICE", "OPENAI_API_KEY"}
    assert "sk-secret" not in json.dumps(found)


def test_what_no_unit_of_ours_asks_for() -> None:
    image = {"Config": {"Entrypoint": ["/usr/local/bin/llama-server"]}}
    plain = _container.container_of(INSPECTED, image, {})
    assert (plain["entrypoint"], plain["other"], plain["networks"]) == ([], {}, [])
    host = {**INSPECTED["HostConfig"], "CpuQuota": 5000, "PidMode": "host", "IpcMode": "host", "Dns": None}  # type: ignore[dict-item]
    config = {**INSPECTED["Config"], "Entrypoint": ["sh"]}  # type: ignore[dict-item]
    networks = {"Networks": {"bridge": {}, "mine": {}}}
    found = _container.container_of(
        {**INSPECTED, "HostConfig": host, "Config": config, "NetworkSettings": networks}, image, {}
    )
    assert found["entrypoint"] == ["sh"]
    assert found["other"] == {"CpuQuota": 5000, "PidMode": "host", "IpcMode": "host"}
    assert found["networks"] == ["bridge", "mine"]


def test_what_a_command_does_not_say_is_not_nothing() -> None:
    said, failed = probe.outputs(
        {
            "good": ["echo", "x"],
            "none": ["sh", "-c", "exit 1"],  # as systemctl with nothing to list
            "bad": ["sh", "-c", "echo half; echo because >&2; exit 3"],
            "missing": ["gb10-no-such"],
        }
    )
    assert said == {"good": "x\n", "none": "", "bad": "", "missing": ""}
    assert failed == {"missing": "gb10-no-such: No such file or directory", "bad": "sh -c: because"}


def test_a_docker_that_answers_with_an_error_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        status = 500

        def read(self) -> bytes:
            return b"{}"

    docker = _container.Docker()
    monkeypatch.setattr(docker, "request", lambda *_: None)
    monkeypatch.setattr(docker, "getresponse", Answer)
    with pytest.raises(OSError, match="answered /info with 500"):
        docker.ask("/info")
    Answer.status = 404
    assert docker.ask("/info") is None


def test_a_rollback_that_is_in_place(tmp_path: Path) -> None:
    log = tmp_path / "changes.jsonl"
    assert probe.rolled_back(str(tmp_path)) is None
    log.write_text(
        '{"time": "t1", "what": "kept", "number": 1}\n{"time": "t2", "what": "back", "number": 1}\n{spoilt\n'
    )
    assert probe.rolled_back(str(tmp_path)) == {"number": 1, "time": "t2"}
    log.write_text(log.read_text() + '{"time": "t3", "what": "kept", "number": 2}\n')
    assert probe.rolled_back(str(tmp_path)) is None


def test_tables_of_somebody() -> None:
    ruleset = (
        "table ip filter {\n\tchain DOCKER {\n\t}\n}\n"
        "table ip docker-bridges {\n}\n"
        "table inet mine {\n\tset banned {\n\t\telements = { 192.0.2.1,\n192.0.2.2 }\n\t}\n}\n"
    )
    (line,) = _strangers.native_tables(ruleset)
    assert line.startswith("nft inet mine ")
    assert _strangers.native_tables(ruleset.replace("192.0.2.2", "192.0.2.9")) == [line]
    assert _strangers.native_tables(ruleset.replace("set banned", "set others")) != [line]


def test_drop_ins_that_lie_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "UNIT_FOLDERS", (str(tmp_path),))
    folder = tmp_path / "x.service.d"
    folder.mkdir()
    (folder / "a.conf").write_text("[Service]\n")
    (folder / "a.conf.bak").write_text("")
    assert list(probe.drop_ins(["x.service", "y.service"])) == [str(folder / "a.conf")]
    assert len(probe.drop_ins(["x.service"], ["/usr/lib/systemd/system/service.d/b.conf"])) == 2


def test_the_described_container_has_the_words_of_the_probe() -> None:
    found = _container.container_of(INSPECTED, None, {})
    assert described(BOX).keys() - {"image"} <= found.keys()


def test_the_described_container_is_the_units() -> None:
    should = described(box(lane_address="0.0.0.0", lane_environment={"A": "b c"}, lane_pids_limit=77))
    assert should["published"] == ["0.0.0.0:10103->10103/tcp"]
    assert should["environment"]["A"] == hashlib.sha256(b"b c").hexdigest()
    assert should["pids"] == 77
    assert should["user"] == "10103:10103"
    assert should["read_only"] is True
    assert should["security"] == ["no-new-privileges"]
    assert "/srv/models:/srv/models:ro" in should["mounts"]
    assert "/root/.cache/huggingface/hub:/found/cache:ro" in should["mounts"]
    assert should["command"][:4] == ["--host", "0.0.0.0", "--port", "10103"]


def test_differences_of_a_container() -> None:
    same = {**described(BOX), "image": IMAGE}
    assert differences(BOX, same, IMAGE) == {}
    assert differences(BOX, {**same, "privileged": True}, IMAGE) == {"privileged": (False, True)}
    assert differences(BOX, same, "sha256:2") == {"image": ("sha256:2", IMAGE)}


def test_differences_of_the_presets() -> None:
    running = models_of(BOX)
    assert preset_differences(BOX, running) == {}
    name, *_ = running
    gone = running.pop(name)
    assert preset_differences(BOX, running) == {name: {"": ("served", "unknown to the router")}}
    running[name] = {**gone, "alias": "another", "temp": "2"}
    assert set(preset_differences(BOX, running)[name]) == {"alias", "temp"}


def test_settings_of_the_router() -> None:
    preset = "[a]\nctx-size = 5\nmetrics = 1\n\n"
    answer = {"data": [{"id": "a", "aliases": ["y", "x"], "status": {"value": "loaded", "preset": preset}}]}
    assert probe.settings_of(answer) == {"a": {"ctx-size": "5", "metrics": "1", "alias": "x,y"}}
    with pytest.raises(KeyError):
        probe.settings_of({"data": [{"id": "a"}]})


@pytest.mark.parametrize(
    ("line", "is_it"),
    [
        ("vllm serve x", True),
        ("VLLM::EngineCore", True),
        ("VLLM::Worker_TP0", True),
        ("/opt/venv/bin/vllm serve", True),
        ("python3 -m vllm.entrypoints.openai.api_server", True),
        ("python3 -m http.server", False),
        ("grep vllm-lane", False),
        ("python3 -I -c import vllm; print(1)", False),
        ("vim /etc/vllm.conf.d/notes", False),
    ],
)
def test_vllm_processes(line: str, is_it: bool) -> None:
    words = line.split(" ") if "-c" not in line else ["python3", "-I", "-c", "x = 'vllm'\n" * 100]
    assert _strangers.is_vllm(words) is is_it


def test_a_key_on_a_command_line_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    words = ["vllm", "serve", "--api-key", "s3cr3t", ""]
    (tmp_path / "7" / "cmdline").write_text("\0".join(words))
    assert _strangers.vllm_processes(str(tmp_path)) == ["vllm serve --api-key"]


def test_open_ports() -> None:
    table = """\
LISTEN 0 128    0.0.0.0:22    0.0.0.0:*  users:(("sshd",pid=60,fd=6))
LISTEN 0 128       [::]:22       [::]:*  users:(("sshd",pid=60,fd=7))
LISTEN 0 4096 127.0.0.1:10103 0.0.0.0:*  users:(("docker-proxy",pid=1,fd=4))
LISTEN 0 5            *:8000        *:*
LISTEN 0 1   172.17.0.1:50052 0.0.0.0:*  users:(("ggml-rpc-server",pid=1718,fd=3))
"""
    assert _strangers.open_ports(table) == ["22 sshd", "8000 unknown"]


def test_packages_that_would_move() -> None:
    policy = """\
a:
  Installed: 1.0
  Candidate: 1.1
  Version table:
b:
  Installed: 1.0
  Candidate: 1.0
c:
  Installed: (none)
  Candidate: 3
"""
    assert probe.would_move(policy) == {"a": ["1.0", "1.1"]}


def test_model_digests_are_those_of_the_very_file(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    status = file.stat()
    entry = {"size": 3, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino, "sha256": digest}
    (tmp_path / ".gb10-verified.json").write_text(json.dumps({str(file): entry}))
    paths = [str(file), str(tmp_path / "none")]
    assert probe.models_state(paths, str(tmp_path), False) == {paths[0]: digest, paths[1]: "missing"}
    # Another content, and as if nothing had happened: only reading it shows it.
    file.write_bytes(b"abd")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert probe.models_state([str(file)], str(tmp_path), False) == {str(file): digest}
    deep = probe.models_state([str(file)], str(tmp_path), True)
    assert deep == {str(file): hashlib.sha256(b"abd").hexdigest()}
    os.utime(file)
    assert probe.models_state([str(file)], str(tmp_path), False) == {str(file): "unverified"}


def test_the_environment_of_processes(tmp_path: Path) -> None:
    for pid, children, environment in (("1", "2", "A=x\0B=y\0"), ("2", "", "A=x\0B=z\0")):
        (tmp_path / pid / "task" / pid).mkdir(parents=True)
        (tmp_path / pid / "task" / pid / "children").write_text(children)
        (tmp_path / pid / "environ").write_text(environment)
    found = _container.process_environment(1, ["A", "B", "C"], str(tmp_path))
    assert found == {"A": hashlib.sha256(b"x").hexdigest(), "B": "differs", "C": ""}


def test_files_and_the_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    assert _marks.key_state(str(key)) == ""
    key.write_text("a-secret-of-the-tests")
    key.chmod(0o600)
    owner = f"{os.getuid()}:{os.getgid()}"
    assert _marks.key_state(str(key)) == f"0600 {owner}"
    assert _marks.file_state(str(key)).split()[2] == hashlib.sha256(b"a-secret-of-the-tests").hexdigest()
    key.write_text("")
    assert _marks.key_state(str(key)) == f"0600 {owner} empty"
    # What llama.cpp passes over is no key: without any it would ask nobody for one.
    for no_key in ("\n", "#old\n", " \n\n# a\n"):
        key.write_text(no_key)
        assert _marks.key_state(str(key)) == f"0600 {owner} empty"
    key.write_text("# mine\nsecret\n")
    assert _marks.key_state(str(key)) == f"0600 {owner} short"
    key.write_text("# mine\nsixteen-of-these\n")
    assert _marks.key_state(str(key)) == f"0600 {owner}"
    link = tmp_path / "link"
    link.symlink_to(key)
    assert _marks.key_state(str(link)) == f"0600 {owner} -> {key}"
    assert _marks.file_state(str(link)) == f"{_marks.file_state(str(key))} -> {key}"
    key.unlink()
    assert _marks.file_state(str(link)) == f"0777 0:0 -> {key}"
    assert len(_marks.file_state(str(tmp_path)).split()) == 2


def test_how_long_ago(tmp_path: Path) -> None:
    file = tmp_path / "drift.json"
    assert probe.age_of(str(file)) is None
    assert probe.age_of("") is None
    file.write_text("{}")
    os.utime(file, (time.time() - 7200, time.time() - 7200))
    age = probe.age_of(str(file))
    assert age is not None
    assert 7200 <= age < 7300
    assert probe.age_since("0") is None
    assert probe.age_since("") is None
    since = probe.age_since(str(int((time.clock_gettime(time.CLOCK_MONOTONIC) - 5) * 1e6)))
    assert since is not None
    assert 5 <= since < 60


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        ('{"reasons": [{"key": "lane.stopped", "text": "x"}]}', True),
        ('{"reasons": [{"key": "lane.failed"}]}', False),
        ('{"reasons": [1]}', False),
        ("[]", False),
        ("{", False),
        (None, False),
    ],
)
def test_a_lane_that_the_watch_has_stopped(text: str | None, stopped: bool, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    assert probe.stopped_by_watch(str(tmp_path / "status.json")) is stopped


def test_a_clock_is_judged_by_the_command_that_read_it() -> None:
    """Whatever the box's plan took besides."""
    fact = DriftState()
    before = time.time()
    fact.command(question_of(BOX))
    readings = fact.process([json.dumps({"readings": {"time": 1}})])["readings"]
    assert readings["time"] == 1
    assert before <= readings["arrived"] <= time.time()
    assert 0 <= readings["took"] <= readings["arrived"] - before


def test_the_question_names_all_that_the_deploy_places() -> None:
    question = question_of(BOX)
    assert {placed.path for placed in BOX.files()} <= set(question["paths"])
    assert "deep" not in question
    assert question_of(BOX, deep=True)["deep"] is True
    assert BOX.record_path not in question["paths"]
