"""Group data and inventory: every fault at once, each with its file and line, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gb10.boxdata import BoxData, FileSignal, PeerSignal
from gb10.boxdata_source import assignments, read_box_data
from gb10.faults import BadInput
from gb10.inventory import CONNECTION_KEYS, box_data, load_inventory
from gb10.rendering import TOP
from tests.unit.boxes import ALL_DATA, raw_data
from tests.unit.commands import gb10


def faults(**changes: Any) -> list[str]:
    """The faults of the default data with these changes, one line each."""
    places = {key: f"group_data/{key}.py:1" for key in raw_data()}
    with pytest.raises(BadInput) as caught:
        read_box_data(raw_data(**changes), host="box", places=places, connection_keys=CONNECTION_KEYS)
    lines = [str(fault) for fault in caught.value.faults]
    assert all("\n" not in line for line in lines)
    return lines


def only(**changes: Any) -> str:
    (fault,) = faults(**changes)
    return fault


def test_the_default_data_is_good_and_frozen() -> None:
    data = read_box_data(raw_data(), host="box", places={}, connection_keys=CONNECTION_KEYS)
    assert data.lane_port == 10103
    assert data.lane_address == "127.0.0.1"
    with pytest.raises(ValueError, match="frozen"):
        data.lane_port = 1  # type: ignore[misc]


def test_both_kinds_of_accelerator_signal() -> None:
    def signal(value: dict[str, Any]) -> object:
        data = raw_data(accelerator_signal=value)
        return read_box_data(data, host="box", places={}, connection_keys=CONNECTION_KEYS).accelerator_signal

    assert signal({"kind": "file", "path": "/dev/nvidia-uvm"}) == FileSignal(
        kind="file", path="/dev/nvidia-uvm"
    )
    assert signal({"kind": "peer", "port": 50052}) == PeerSignal(kind="peer", port=50052)


def test_all_faults_at_once() -> None:
    lines = faults(
        lane_port=10101, lane_prot=10103, models_dir="srv", image_build_jobs=-1, llama_commit="abc"
    )
    assert len(lines) == 5
    for word in ("lane_port", "lane_prot", "models_dir", "image_build_jobs", "llama_commit"):
        assert sum(word in line.partition(": ")[0] for line in lines) == 1


def test_message_of_the_error_counts_them() -> None:
    with pytest.raises(BadInput, match=r"nothing was changed, 2 faults found:\n  .*\n  "):
        read_box_data(
            raw_data(lane_port=0, llama_commit="x"), host="b", places={}, connection_keys=CONNECTION_KEYS
        )


def test_missing_key() -> None:
    assert only(image_name=None).endswith(
        " image_name: is missing: set image_name in group_data or for the host in the inventory"
    )


def test_every_field_is_required() -> None:
    with pytest.raises(BadInput) as caught:
        read_box_data({}, host="box", places={})
    (fault,) = caught.value.faults
    count = len(BoxData.model_fields)
    assert fault.what.startswith(
        f"{count} of {count} keys are missing (state_dir, program_dir, lanes_out, …)"
    )
    assert "in a group that group_data/ describes" in fault.do


def test_a_near_miss_comes_before_what_is_missing_because_of_it() -> None:
    lines = faults(lane_port=None, lane_prt=10103, image_name=None)
    assert "did you mean 'lane_port'?" in lines[0]
    assert [line.partition(": ")[2].partition(":")[0] for line in lines[1:]] == ["is missing"] * 2
    many = dict.fromkeys(["image_name", *list(raw_data())[-12:]])
    lines = faults(lane_port=None, lane_prt=10103, **many)
    assert len(lines) == 2
    assert "did you mean 'lane_port'?" in lines[0]


def test_group_data_is_no_inventory(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = gb10(capsys, "check", "--inventory", TOP / "group_data" / "all.py")
    assert (status, len(errors.splitlines())) == (1, 2)
    assert "group_data/all.py: is group data and no inventory" in errors


def test_unknown_key_names_the_near_one_and_the_host() -> None:
    assert only(lane_prot=1) == "data of host box lane_prot: is not a known key: did you mean 'lane_port'?"
    assert "remove it" in only(zzz=1)


def test_pyinfras_own_keys_are_not_ours_to_judge() -> None:
    data = raw_data(ssh_user="me", _sudo_password="secret", ssh_hostname="10.0.0.1")
    read_box_data(data, host="box", places={}, connection_keys=CONNECTION_KEYS)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (0, "0 is too small: it must be at least 1"),
        (-1, "too small"),
        (65536, "65536 is too large: it must be at most 65535"),
        ("10103", "'10103' is not a whole number: write it without quotes"),
        (True, "True is not a whole number"),
        (10103.0, "10103.0 is not a whole number"),
    ],
)
def test_port(value: object, word: str) -> None:
    assert only(lane_port=value).startswith("group_data/lane_port.py:1 lane_port: ")
    assert word in only(lane_port=value)


@pytest.mark.parametrize(
    "value", ["C95B", "c95b321b61e88c1809c4f759ddcae044f796ecb0", "0x" + "A" * 38, "A" * 41]
)
def test_fingerprint(value: str) -> None:
    assert f"{value!r} is not allowed: must match ^[0-9A-F]{{40}}$" in only(toolkit_key_fingerprint=value)


BAD_PATHS = [
    "srv/models", "~/models", "/srv/../etc", "/srv/mo dels", "/srv/a%b", "/srv/$HOME", "/srv/a'b",
    "/srv/a\nb", "/", "//", "/var", "/etc/", "/srv/a;b", "/srv/a:b", "/srv/a#b", "/srv/a&b", "/srv/$(id)",
    "/srv/a|b", "/srv/*", "/srv/a<b", "/srv/(a)",
]  # fmt: skip


@pytest.mark.parametrize("key", ["state_dir", "program_dir", "models_dir", "lane_config_dir"])
@pytest.mark.parametrize("value", BAD_PATHS)
def test_paths(key: str, value: str) -> None:
    line = next(line for line in faults(**{key: value}) if f" {key}: " in line)
    assert "must be an absolute path without" in line or "must lie at least two folders below /" in line


@pytest.mark.parametrize("key", ["models_dir", "lane_config_dir"])
def test_what_the_container_sees_is_not_in_root(key: str) -> None:
    assert "must not lie in /root" in only(**{key: "/root/models"})
    data = raw_data(**{key: "/srv/root/models", "models_search": ["/root/.cache/hub", "/home/jürgen/models"]})
    assert read_box_data(data, host="b", places={}, connection_keys=CONNECTION_KEYS)


def test_a_slash_at_the_end_of_a_path_is_no_difference() -> None:
    data = read_box_data(
        raw_data(models_dir="/srv/models/"), host="b", places={}, connection_keys=CONNECTION_KEYS
    )
    assert data.models_dir == "/srv/models"


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("models_dir", 5, "5 is not text"),
        ("expect_os", "ubuntu 24.04", "is not a list: write [...], also for a single entry"),
        ("expect_os", [24.04], "expect_os.0: 24.04 is not text"),
        ("minimum_python", 3.12, "put it in quotes"),
        ("docker_daemon", [], "is not a mapping"),
        ("docker_daemon", {"a": {1}}, "must be what JSON can say"),
        ("image_cmake_flags", {"A B": "ON"}, "image_cmake_flags.A B: 'A B' is not allowed"),
        ("image_cmake_flags", {"A": True}, "image_cmake_flags.A: True is not text"),
        ("image_cmake_flags", {"A": "ON\nRUN x"}, "must be one line"),
        ("image_cmake_targets", [], "is empty: name at least 1"),
        ("toolkit_packages", [], "is empty: name at least 1"),
        ("image_build_packages", ["cmake; rm -r /"], "is not allowed"),
        ("image_build_prepare", ["a\nUSER root"], "must be one line"),
        ("image_build_base", "Nvidia/Cuda", "is not allowed"),
        ("image_build_base", "nvidia/cuda@sha256:abc", "is not allowed"),
        ("image_name", "UPPER/case", "is not allowed"),
        ("llama_commit", "0c1e570", "must match ^[0-9a-f]{40}$"),
        ("llama_commit", "main", "must match ^[0-9a-f]{40}$"),
        ("llama_repository", "ftp://x/y", "must be a URL"),
        ("llama_repository", "https://x/$(id)", "must be a URL"),
        ("toolkit_apt_url", "https://x/a b", "must be a URL"),
        ("toolkit_version", "1.19.*", "is not allowed"),
        ("lane_address", "localhost", "'localhost' must be an IPv4 address"),
        ("lane_address", "::1", "must be an IPv4 address"),
        ("lane_address", "127.0.0.256", "must be an IPv4 address"),
        ("lane_user_id", 0, "0 is too small"),
        ("lane_name", "llamacpp playground", "is not allowed"),
        ("lane_name", "llamacpp\n", "is not allowed"),
        ("lane_environment", {"A-B": "x"}, "lane_environment.A-B: 'A-B' is not allowed"),
        ("lane_environment", {"A": "x\ny"}, "lane_environment.A: 'x\\ny' must be one line"),
        ("lane_environment", {"LLAMA_ARG_DEVICE": "none"}, "LLAMA_ARG_DEVICE is set by the deploy itself"),
        ("lane_environment", {"LLAMA_API_KEY": "hunter2"}, "the key is a file on the box"),
        ("accelerator_cdi", "nvidia.com/gpu", "is not allowed"),
        ("accelerator_device", "", "is not allowed"),
        ("accelerator_signal", {"kind": "wish"}, "accelerator_signal.kind: 'wish' is not known"),
        ("accelerator_signal", {}, "accelerator_signal.kind: is missing"),
        ("accelerator_signal", {"kind": "peer", "port": 0}, "accelerator_signal.port: 0 is too small"),
        ("accelerator_signal", {"kind": "file", "path": "dev"}, "accelerator_signal.path: 'dev' must be"),
        ("accelerator_signal", "file", "is not a mapping"),
        ("models_token_file", "token", "must be an absolute path"),
        ("models_search", ["~/.cache"], "models_search.0: '~/.cache' must be an absolute path"),
        ("catalogue", "", "must not be empty"),
        ("lanes_out", ["vllm.service"], "lanes_out.0: 'vllm.service' is not a mapping"),
        ("lanes_out", {"unit": "x"}, "is not a list"),
    ],
)  # fmt: skip
def test_wrong_value(key: str, value: object, word: str) -> None:
    line = only(**{key: value})
    assert line.startswith(f"group_data/{key}.py:1 {key}")
    assert word in line


def test_a_key_in_the_environment_is_not_repeated_in_the_fault() -> None:
    assert "hunter2" not in only(lane_environment={"LLAMA_API_KEY": "hunter2"})


def test_faults_in_a_list_of_mappings() -> None:
    lines = faults(lanes_out=[{"unit": "vllm-lane-a", "container": "vllm-a", "prt": 10101}])
    assert [line.partition(": ")[0].split()[1] for line in lines] == [
        "lanes_out.0.unit", "lanes_out.0.port", "lanes_out.0.prt"]  # fmt: skip
    assert "add 'port'" in lines[1]
    assert "did you mean 'port'?" in lines[2]


def test_nested_near_misses_of_both_signals() -> None:
    assert "did you mean 'path'?" in "".join(faults(accelerator_signal={"kind": "file", "pth": "/dev/x"}))
    assert "did you mean 'port'?" in "".join(faults(accelerator_signal={"kind": "peer", "prt": 1}))


def test_the_lane_is_none_of_the_old_ones() -> None:
    assert "10101 is also the port of vllm-lane-a.service in lanes_out: change one of the two" in only(
        lane_port=10101
    )
    lines = faults(lane_port=10102, lane_name="vllm-lane-b")
    assert len(lines) == 3  # port, unit and container
    assert all("vllm-lane-b" in line for line in lines)


def test_an_old_lane_that_is_this_lanes_container() -> None:
    # It would be removed by every deploy.
    old = [{"unit": "other.service", "container": "llamacpp-playground", "port": 10101}]
    assert "the container llamacpp-playground is listed in lanes_out" in only(lanes_out=old)


def test_assignments_name_file_and_line_and_the_later_file_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "all.py", tmp_path / "lab.py"
    first.write_text('"""Doc."""\nport = 1\nname: str = "x"\n\na = b = 2\n')
    second.write_text("\n\nport = 3\n")
    broken = tmp_path / "broken.py"
    broken.write_text("port = = 3\n")
    assert assignments([first, second, broken, tmp_path / "none.py"], tmp_path) == {
        "port": "lab.py:3", "name": "all.py:3", "a": "all.py:5", "b": "all.py:5"}  # fmt: skip


def inventory(folder: Path, hosts: str) -> Path:
    path = folder / "inventory.py"
    path.write_text(f"gb10 = [{hosts}]\n")
    return path


def test_a_fault_of_group_data_names_its_line(tmp_path: Path) -> None:
    (host,) = load_inventory(inventory(tmp_path, '("gb10.local", {"lane_port": 10103})'))
    line = next(
        n for n, text in enumerate(ALL_DATA.read_text().splitlines(), 1) if text.startswith("lane_name")
    )
    host.inventory.group_data["gb10"]["lane_name"] = "UPPER"
    with pytest.raises(BadInput, match=rf"group_data/all.py:{line} lane_name: 'UPPER' is not allowed"):
        box_data(host)


def test_a_fault_of_the_inventory_is_not_blamed_on_group_data(tmp_path: Path) -> None:
    (host,) = load_inventory(inventory(tmp_path, '("gb10.local", {"lane_port": 0})'))
    with pytest.raises(BadInput, match=r"data of host gb10.local lane_port: 0 is too small"):
        box_data(host)


def test_no_such_inventory(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.py: no such inventory file: name one with --inventory FILE"):
        load_inventory(tmp_path / "none.py")
