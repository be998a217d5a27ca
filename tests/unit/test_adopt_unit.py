"""Units, scripts and containers, down to the router's own arguments."""

from __future__ import annotations

from typing import Any

import pytest

from gb10.adopt import old_router, read_old
from gb10.adopt_data import Found, lane_data
from gb10.adopt_docker import Container, Published, container_from_inspect, container_of
from gb10.adopt_paths import Places
from gb10.adopt_report import Note
from gb10.adopt_unit import Launch, read_launch, split_words
from gb10.faults import BadInput
from gb10.model import FileRef
from tests.unit.catalogues import OPTIONS

RUN = "docker run --name r -p 10103:8080 image --port 8080"


def argv(text: str, name: str = "router.service") -> tuple[str, ...]:
    return read_launch(text, name).argv


def container(line: str) -> Container:
    launch = read_launch(line, "run.sh")
    return container_of(launch.argv, launch.environment)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("'a b' \"c d\"", ["a b", "c d"]),
        ("'a'\"'\"'b'", ["a'b"]),
        (r"a\x20b\tc\\ d", ["a b\tc\\", "d"]),
        ('""', [""]),
        ("", []),
        (r"a\zb", [r"a\zb"]),
    ],
)
def test_words_of_a_unit(value: str, words: list[str]) -> None:
    assert split_words(value) == words


def test_a_unit_with_everything() -> None:
    text = (
        "[Service]\nEnvironment=A=1 'B=x y'\nEnvironment=C=%i\nExecStart=/bin/false\nExecStart=\n"
        "ExecStart=-/usr/bin/docker run \\\n# comment\n; another\n  --name %p-%i -e ${A}$A $B $$HOME %% \\\n"
        " image ${NONE} $C %m\n"
    )
    launch = read_launch(text, "router@one.service")
    # $B is split at its blank, ${A}$A keeps the second as it is.
    assert launch.argv[2:] == (
        "--name", "router-one", "-e", "1$A", "x", "y", "$HOME", "%", "image", "${NONE}", "one", "%m",
    )  # fmt: skip
    assert launch.open == ("%m", "$NONE")
    assert launch.line == 6


def test_a_drop_in_clears_what_was_before() -> None:
    text = f"[Service]\nExecStart=/usr/bin/false\n# drop-in\n[Service]\nExecStart=\nExecStart={RUN}\n"
    assert argv(text)[:2] == ("docker", "run")


@pytest.mark.parametrize(
    "text",
    [
        RUN,
        f"#!/bin/sh\nset -e\n\ndocker pull image\n{RUN}\n",
        "PORT=10103\nexport NAME=r\nsudo docker run --name $NAME \\\n  -p ${PORT}:8080 image --port 8080\n",
        f"[Service]\nExecStart=/bin/sh -c 'docker rm -f r; exec {RUN}'\n",
        f'[Service]\nExecStart=/bin/bash -lc "cd /srv && {RUN} 2>&1 | tee log"\n',
    ],
)
def test_where_a_command_may_stand(text: str) -> None:
    launch = read_launch(text, "x.service")
    found = container_of(launch.argv, launch.environment)
    assert (found.name, found.image) == ("r", "image")
    assert found.published == (Published("0.0.0.0", 10103, 8080),)
    assert found.arguments[:2] == ("--port", "8080")


@pytest.mark.parametrize("text", ["[Service]\nExecStart=docker start -a r\n", "docker compose up\n", ""])
def test_a_start_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--host"):
        read_launch(text, "x.service")


def test_flags_of_docker_run() -> None:
    found = container(
        "docker run -itd --rm --init=false -p127.0.0.1:1:2/tcp --publish=3:4 -e A=1 -eB=2 --env C -u 5:5"
        " -v /a:/b:ro -v named:/c --mount type=bind,source=/d,target=/e,readonly --net host"
        " --device=nvidia.com/gpu=all --label x=y --entrypoint /llama-server host/image:tag -c 1 --flag"
    )
    assert found.image == "host/image:tag"
    assert found.arguments == ("-c", "1", "--flag")
    assert found.published == (Published("127.0.0.1", 1, 2), Published("0.0.0.0", 3, 4))
    assert dict(found.environment) == {"A": "1", "B": "2"}
    assert found.passed_on == ("C",)
    assert found.mounts == (("/b", "/a"), ("/e", "/d"))
    assert found.host_network
    assert found.option("user") == "5:5"
    assert found.option("device") == "nvidia.com/gpu=all"
    assert "init" not in found.options


def test_a_program_named_after_the_image() -> None:
    assert container("docker run image /app/llama-server -c 1").arguments == ("-c", "1")
    found = container("A=1 /opt/bin/llama-server --port 1")
    assert (found.image, found.arguments, dict(found.environment)) == (None, ("--port", "1"), {"A": "1"})


def inspected() -> dict[str, Any]:
    return {
        "Name": "/r",
        "Path": "/tini",
        "Args": ["--", "/app/llama-server", "--port", "8080"],
        "Config": {"Image": "image", "Env": ["PATH=/bin", "A=1"], "User": "5:5", "StopTimeout": 7},
        "Mounts": [
            {"Type": "bind", "Source": "/a", "Destination": "/b"},
            {"Type": "volume", "Source": "/var/lib/docker/x", "Destination": "/c"},
        ],
        "HostConfig": {
            "NetworkMode": "bridge",
            "PortBindings": {
                "8080/tcp": [{"HostIp": "", "HostPort": "10103"}, {"HostIp": "::", "HostPort": "1"}]
            },
            "Privileged": True,
            "PidsLimit": None,
            "RestartPolicy": {"Name": "always"},
            "Runtime": "nvidia",
            "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}, {"Driver": ""}],
            "Devices": [{"PathOnHost": "/dev/dri"}],
            "Memory": 0,
        },
    }


def test_a_container_as_docker_describes_it() -> None:
    found = container_from_inspect(inspected(), ["PATH=/bin"])
    assert (found.name, found.image, found.arguments) == ("r", "image", ("--port", "8080"))
    assert dict(found.environment) == {"A": "1"}
    assert found.published == (Published("0.0.0.0", 10103, 8080),)
    assert found.mounts == (("/b", "/a"),)
    assert dict(found.options) == {
        "user": ("5:5",), "stop-timeout": ("7",), "restart": ("always",), "runtime": ("nvidia",),
        "privileged": ("True",), "device": ("nvidia.com/gpu=all", "/dev/dri"), "gpus": ("all",),
    }  # fmt: skip


def lane(line: str) -> tuple[dict[str, object], list[Note]]:
    notes: list[Note] = []
    found: Found = lane_data(read_old(line, "run.sh", OPTIONS, notes), OPTIONS, notes)
    return found.values, notes


@pytest.mark.parametrize(
    ("line", "address", "port"),
    [
        ("docker run -p 10103:8080 i", "127.0.0.1", 10103),
        ("docker run -p 10103:8080 i --api-key-file /k", "0.0.0.0", 10103),
        ("docker run -p 10103:8080 -e LLAMA_API_KEY=x i", "0.0.0.0", 10103),
        ("docker run -p 10.0.0.7:1:9 -p 2:3 i --port 3 --api-key x", "0.0.0.0", 2),
        ("docker run --network host i --host 10.0.0.7 --port 7", "10.0.0.7", 7),
        ("docker run --network host -e LLAMA_ARG_PORT=9 i", "127.0.0.1", 9),
        ("llama-server --host localhost", "127.0.0.1", 8080),
    ],
)
def test_address_and_port(line: str, address: str, port: int) -> None:
    values, _ = lane(line)
    assert (values["lane_address"], values["lane_port"]) == (address, port)


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ("", 4),
        ("--models-max 7", 7),
        ("--models-max 0", "auto"),
        ("--models_max 2", 2),
        ("--models-max 99", "auto"),
    ],
)
def test_models_max(arguments: str, most: int | str) -> None:
    assert lane(f"docker run i {arguments}")[0]["lane_models_max"] == most


def test_an_api_key_is_never_told() -> None:
    values, notes = lane(
        "docker run -e HF_TOKEN=hush1 -e X=sk-hush2345678 i --api-key hush3 --unknown-token hush4"
    )
    assert "hush" not in repr(notes) + repr(values)
    assert [note.kind for note in notes if "api-key" in note.what] == ["to do"]


def test_a_name_that_a_lane_cannot_have() -> None:
    values, notes = lane("docker run --name My_Router i")
    assert values["lane_name"] == "my-router"
    assert any("stop and disable" in note.why for note in notes if note.kind == "to do")


def test_a_container_without_a_unit_has_its_own_name() -> None:
    notes: list[Note] = []
    inside = container_from_inspect(inspected() | {"Name": "/llama-box"}, ["PATH=/bin"])
    old = old_router(Launch("llama-box", "", 1, (), {}), inside, OPTIONS, notes)
    assert lane_data(old, OPTIONS, notes).values["lane_name"] == "llama-box"


KNOWN = {"k.gguf": FileRef("o/known", None, "sub/k.gguf")}
PLACES = Places((("/models", "/data/models"), ("/models/hub", "/data/hub")), ("/data/models",), KNOWN)
COMMIT = "c" * 40


@pytest.mark.parametrize(
    ("path", "repo", "revision", "file", "root", "search"),
    [
        ("/models/o/n/f.gguf", "o/n", None, "f.gguf", "/data/models", None),
        (
            "/models/o/n/Q4/f-00001-of-00002.gguf",
            "o/n",
            None,
            "Q4/f-00001-of-00002.gguf",
            "/data/models",
            None,
        ),
        (
            f"/models/hub/models--o--n--x/snapshots/{COMMIT}/f.gguf",
            "o/n--x",
            COMMIT,
            "f.gguf",
            None,
            "/data/hub",
        ),
        ("/h/models--o--n/snapshots/main/a/f.gguf", "o/n", None, "a/f.gguf", None, "/h"),
        ("/models/k.gguf", "o/known", None, "sub/k.gguf", None, "/data/models"),
        ("/x/y/o/n-GGUF/f.gguf", "o/n-GGUF", None, "f.gguf", "/x/y", "/x/y/o/n-GGUF"),
        ("/c/llama.cpp/o_n-GGUF_f.gguf", "o/n-GGUF", None, "f.gguf", None, "/c/llama.cpp"),
    ],
)
def test_where_a_file_comes_from(
    path: str, repo: str, revision: str | None, file: str, root: str | None, search: str | None
) -> None:
    place = PLACES.find(path)
    assert place.ref == FileRef(repo, revision, file)
    assert (place.root, place.search) == (root, search)


def test_files_of_unknown_origin() -> None:
    assert PLACES.find("/models/x.gguf").ref is None
    assert PLACES.find("/models/name/x.gguf").ref is None
    own = PLACES.find("/models/own/name/x.gguf")
    assert (own.ref, own.own) == (None, "name")


def test_an_open_quote_in_a_shell_command_is_no_command() -> None:
    with pytest.raises(BadInput, match="no ExecStart"):
        read_launch('[Service]\nExecStart=/bin/sh -c "docker run \'image"\n', "x.service")
