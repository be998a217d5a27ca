"""Where a model's process runs: the two signals, the process of a model, and a unit's last words."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "files" / "gb10_router.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("gb10_router", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program = _load()
MAPS = """\
7f00-7f01 r-xp 00000000 08:01 1234 /usr/local/bin/llama-server
7f02-7f03 rw-s 00000000 00:05 321  /dev/nvidia-uvm
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 0100007F:2777 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 11 1 0 100 0 0 10 0
   1: 0200110A:D2A4 0100110A:C384 01 00000000:00000000 00:00000000 00000000  0  0 22 1 0 20 4 30 10 -1
   2: 0200110A:D2A6 0100110A:C384 06 00000000:00000000 00:00000000 00000000  0  0 33 1 0 20 4 30 10 -1
"""
FILE = {"kind": "file", "path": "/dev/nvidia-uvm"}
PEER = {"kind": "peer", "port": 50052}


def process(proc: Path, *, maps: str = "", files: tuple[str, ...] = (), tcp: str = "") -> str:
    """A proc tree with process 7."""
    (proc / "7" / "fd").mkdir(parents=True)
    (proc / "7" / "net").mkdir()
    (proc / "7" / "maps").write_text(maps)
    (proc / "7" / "net" / "tcp").write_text(tcp)
    for number, target in enumerate(files):
        (proc / "7" / "fd" / str(number)).symlink_to(target)
    return str(proc)


@pytest.mark.parametrize(
    ("maps", "files", "words"),
    [
        (MAPS, (), "process 7 has /dev/nvidia-uvm mapped"),
        ("", ("/dev/null", "/dev/nvidia-uvm"), "process 7 has /dev/nvidia-uvm open"),
        # The driver's tools may make a node anew: who opened the old one holds the device all the same.
        (MAPS.replace("uvm\n", "uvm (deleted)\n"), (), "process 7 has /dev/nvidia-uvm mapped"),
        ("", ("/dev/nvidia-uvm (deleted)",), "process 7 has /dev/nvidia-uvm open"),
        ("", ("/dev/nvidia-uvm-tools", "socket:[1]"), ""),
        (MAPS.replace("nvidia-uvm", "nvidia-uvm-tools"), (), ""),
        ("", (), ""),
    ],
)
def test_the_file_signal(maps: str, files: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert program.accelerator_holder(7, FILE, process(tmp_path, maps=maps, files=files)) == words


@pytest.mark.parametrize(
    ("files", "port", "words"),
    [
        (("socket:[22]",), 50052, "process 7 is connected to port 50052"),
        (("socket:[11]",), 50052, ""),  # another socket of the same container
        (("socket:[33]",), 50052, ""),  # not connected any more
        (("socket:[22]",), 50053, ""),
        ((), 50052, ""),
    ],
)
def test_the_peer_signal(files: tuple[str, ...], port: int, words: str, tmp_path: Path) -> None:
    proc = process(tmp_path, files=files, tcp=TCP)
    assert program.accelerator_holder(7, PEER | {"port": port}, proc) == words


def test_a_process_that_has_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        program.accelerator_holder(8, FILE, str(tmp_path))


TOP = """\
PID                 COMMAND
700                 /usr/local/bin/llama-server --host 0.0.0.0 --port 10103 --models-preset /etc/x/models.ini
701                 /usr/local/bin/llama-server --port 40001 --alias gemma-4-26B-A4B --ctx-size 32768
702                 /usr/local/bin/llama-server --port 40002 --alias gemma-4-26B --ctx-size 32768
703                 /usr/local/bin/llama-server --port 40003 --alias gemma.4,g4 --ctx-size 32768
704                 /usr/local/bin/llama-server --port 40004 --alias last
"""


@pytest.mark.parametrize(
    ("model", "pid"), [("gemma-4-26B", 702), ("gemma-4-26B-A4B", 701), ("gemma.4", 703), ("last", 704)]
)
def test_the_process_of_a_model(
    model: str, pid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, TOP, monkeypatch)
    assert program.child_process({"lane": "x"}, model) == pid


@pytest.mark.parametrize("model", ["gemma", "gemma-4", "4-26B", "gemmax4", ".*"])
def test_no_process_of_a_model(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Never the router's own: it keeps its open devices after the accelerator is lost.
    docker(tmp_path, TOP, monkeypatch)
    with pytest.raises(program.RouterError, match="no process with --alias"):
        program.child_process({"lane": "x"}, model)


def docker(folder: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "output").write_text(output)
    (folder / "docker").write_text(f"#!/bin/sh\ncat {folder}/output\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        (
            "Started\nREFUSING to start x: no accelerator\nMain process exited\n",
            "REFUSING to start x: no accelerator",
        ),
        ("Started\nlistening\n", "listening"),
        ("x failed\nllama-server(+0x4cc21) [0x55d0c8b2ac21]\nlibc.so.6(error+0x1) [0x7f00]\n", "x failed"),
        ("", "its journal is empty"),
    ],
)
def test_last_words(journal: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text(journal)
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\ncat {tmp_path}/text\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert program.last_words({"lane": "x"}) == words
