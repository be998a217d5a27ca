"""Files, folders and secrets in place: the commands by facts, and the same commands run here for real."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.command import FileUploadCommand
from pyinfra.context import ctx_host

from gb10.facts.files import PathReport, PathState
from gb10.operations import placed
from gb10.rendering import PlacedFile
from tests.unit.boxes import commands

TEXT = "[*]\ndevice = CUDA0\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()
EMPTY = hashlib.sha256(b"").hexdigest()
FILE = PlacedFile("/etc/gb10/models.ini", TEXT)


def regular(digest: str = DIGEST, mode: str = "0644", owner: str = "0:0") -> PathState:
    return PathState("regular file", mode, owner, digest)


def file(state: PathState | None) -> list[str]:
    return commands(placed.file, {PathReport: state}, placed=FILE)


def test_a_file_that_is_right_is_left_alone() -> None:
    assert file(regular()) == []


def test_only_what_differs_is_set() -> None:
    assert file(regular(owner="1000:1000")) == ["chown 0:0 /etc/gb10/models.ini"]
    assert file(regular(mode="0600")) == ["chmod 0644 /etc/gb10/models.ini"]
    assert len(file(regular(mode="0600", owner="1:1"))) == 2


@pytest.mark.parametrize(
    "state", [None, regular("other"), regular(EMPTY), PathState("directory", "0755", "0:0", "")]
)
def test_another_content_is_uploaded_and_moved_in_one_step(state: PathState | None) -> None:
    upload, move = file(state)
    assert upload == f"upload {TEXT}"
    words = shlex.split(move)
    assert words[:2] == ["sh", "-c"]
    assert words[5:] == ["/etc/gb10/models.ini", "0:0", "0644"]
    script = words[2]
    # Owner, mode and the bytes themselves are safe before the name changes hands.
    order = [script.index(word) for word in ("cp ", "chown ", "chmod ", "sync ", "mv -T ")]
    assert order == sorted(order)


def test_two_runs_at_once_have_uploads_of_their_own() -> None:
    assert shlex.split(file(None)[1])[4] != shlex.split(file(None)[1])[4]


def test_folder() -> None:
    def folder(state: PathState | None) -> list[str]:
        return commands(placed.folder, {PathReport: state}, path="/etc/gb10")

    assert folder(None) == ["mkdir -p /etc/gb10", "chown 0:0 /etc/gb10", "chmod 0755 /etc/gb10"]
    assert folder(PathState("directory", "0755", "0:0", "")) == []
    assert folder(PathState("directory", "0700", "0:0", "")) == ["chmod 0755 /etc/gb10"]
    assert folder(PathState("directory", "0755", "5:5", "")) == ["chown 0:0 /etc/gb10"]


def secret(state: PathState | None) -> list[str]:
    return commands(placed.secret, {PathReport: state}, path="/etc/gb10/api-key", owner="10103:10103")


def test_a_secret_is_made_on_the_host() -> None:
    (make,) = secret(None)
    assert "secrets.token_urlsafe(32)" in make
    assert "umask 077" in make
    # What a full disk or a power cut leaves is no secret.
    assert len(secret(regular(EMPTY, "0600", "10103:10103"))) == 1


def test_a_secret_that_is_there_is_kept() -> None:
    assert secret(regular("any", "0600", "10103:10103")) == []
    assert secret(regular("any", "0644", "10103:10103")) == ["chmod 0600 /etc/gb10/api-key"]
    assert secret(regular("any", "0600", "0:0")) == ["chown 10103:10103 /etc/gb10/api-key"]


# -- the same on this machine, in a temporary folder, as whoever runs the tests ---------------------------


class ThisMachine:
    """Answers PathReport by running it here."""

    def get_fact(self, fact: type[PathReport], **question: Any) -> Any:
        command = fact().command(**question).get_raw_value()
        output = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
        return fact().process(output.splitlines())


def apply(operation: Any, **arguments: Any) -> int:
    """Run an operation here; the number of its commands."""
    count = 0
    with ctx_host.use(ThisMachine()):
        for command in operation._inner(**arguments):
            count += 1
            if isinstance(command, FileUploadCommand):
                Path(command.dest).write_bytes(command.src.getvalue())
            else:
                subprocess.run(["sh", "-c", command.get_raw_value()], check=True)
    return count


ME = f"{os.getuid()}:{os.getgid()}"
NAMES = ["models.ini", "with space", "it's", "$HOME", 'a"b', "-dash"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_for_real(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / name
    first = PlacedFile(str(path), TEXT, mode="0640", owner=ME)
    assert apply(placed.file, placed=first) == 2
    assert path.read_text() == TEXT
    assert path.stat().st_mode & 0o7777 == 0o640
    assert apply(placed.file, placed=first) == 0
    assert apply(placed.file, placed=PlacedFile(str(path), "other\n", owner=ME)) == 2
    assert path.read_text() == "other\n"
    assert [entry.name for entry in path.parent.iterdir()] == [name]


@pytest.mark.parametrize("content", ["", "#old\n", "\n# a\n"])
def test_a_file_without_a_key_is_set_aside_and_gets_one(content: str, tmp_path: Path) -> None:
    path = tmp_path / "api-key"
    path.write_text(content)
    # The look says "empty" of a file that holds no key.
    (make,) = commands(placed.secret, {PathReport: regular(EMPTY, "0600", ME)}, path=str(path), owner=ME)
    subprocess.run(["sh", "-c", make], check=True)
    key = path.read_text().strip()
    assert len(key) > 40
    assert path.stat().st_mode & 0o7777 == 0o600
    kept = [entry.read_text() for entry in tmp_path.glob("api-key.set-aside-*")]
    assert kept == ([content] if content else [])
    # Another deploy has made it just now: it stays.
    subprocess.run(["sh", "-c", make], check=True)
    assert path.read_text().strip() == key


def test_a_key_behind_a_link_comes_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("my-key\n")
    path = tmp_path / "api-key"
    path.symlink_to(tmp_path / "real")
    assert apply(placed.secret, path=str(path), owner=ME) == 1
    assert not path.is_symlink()
    assert (path.read_text(), (tmp_path / "real").read_text()) == ("my-key\n", "my-key\n")
    assert apply(placed.secret, path=str(path), owner=ME) == 0


def test_a_link_in_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(TEXT)
    path = tmp_path / "models.ini"
    path.symlink_to(tmp_path / "real")
    wanted = PlacedFile(str(path), TEXT, owner=ME)
    assert apply(placed.file, placed=wanted) == 2
    assert not path.is_symlink()
    assert (tmp_path / "real").read_text() == TEXT
    assert apply(placed.file, placed=wanted) == 0


def test_deploys_at_once_leave_one_of_their_files_whole(tmp_path: Path) -> None:
    """Also where both write the same target: the temporary name is theirs in turn."""
    path = tmp_path / "lane" / "models.ini"
    texts = [letter * 300_000 for letter in "abcdef"]
    begun = []
    for letter, text in zip("abcdef", texts, strict=True):
        upload = tmp_path / f"upload-{letter}"
        upload.write_text(text)
        words = ["sh", "-c", placed._INTO_PLACE, "-", str(upload), str(path), ME, "0644"]
        begun.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    assert [process.communicate()[1] for process in begun] == [""] * len(begun)
    assert path.read_text() in texts
    assert [entry.name for entry in path.parent.iterdir()] == ["models.ini"]


def test_what_a_cut_left_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "models.ini"
    path.with_name("models.ini.gb10-new").write_text("hal")
    apply(placed.file, placed=PlacedFile(str(path), TEXT, owner=ME))
    assert path.read_text() == TEXT
    assert [entry.name for entry in tmp_path.iterdir()] == ["models.ini"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "models.ini"
    path.write_text("old")
    with path.open() as reader:
        apply(placed.file, placed=PlacedFile(str(path), TEXT, owner=ME))
        assert reader.read() == "old"  # the old one is whole, under no name any more


def test_a_folder_for_real(tmp_path: Path) -> None:
    path = tmp_path / "a" / "with space"
    assert apply(placed.folder, path=str(path), mode="0750", owner=ME) > 0
    assert path.stat().st_mode & 0o7777 == 0o750
    assert apply(placed.folder, path=str(path), mode="0750", owner=ME) == 0


def test_a_secret_for_real(tmp_path: Path) -> None:
    path = tmp_path / "lane" / "api-key"
    apply(placed.secret, path=str(path), owner=ME)
    key = path.read_text()
    assert len(key.strip()) >= 43
    assert path.stat().st_mode & 0o7777 == 0o600
    assert apply(placed.secret, path=str(path), owner=ME) == 0
    assert path.read_text() == key
    path.write_text("")
    apply(placed.secret, path=str(path), owner=ME)
    assert path.read_text() not in ("", key)
    assert [entry.name for entry in path.parent.iterdir()] == ["api-key"]


@pytest.mark.parametrize("name", NAMES)
def test_secrets_of_any_name(name: str, tmp_path: Path) -> None:
    apply(placed.secret, path=str(tmp_path / name), owner=ME)
    assert (tmp_path / name).read_text().strip()
