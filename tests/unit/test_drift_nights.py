"""Night after night: what is written, who is told, and that nothing that goes wrong leaves an old "clean"."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.boxes import box
from tests.unit.nights import Night, record

ITEM = {"item": "box: kernel", "was": "6.8.0", "is": "6.8.1"}
SECRET = "s3cr3t-Value_0123456789"


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_a_word_on_a_change_only(night: Night) -> None:
    assert night.look().returncode == 0
    assert night.result()["state"] == "clean"
    assert night.told() == []
    night.answer["facts"]["box: kernel"] = "6.8.1"
    for _ in range(3):
        assert night.look().returncode == 0
    assert night.result()["items"] == [ITEM]
    (told,) = night.told()
    assert (told["state"], told["new"], told["gone"], told["source"]) == ("drift", [ITEM], [], "gb10 drift")
    night.answer["facts"]["box: kernel"] = "6.8.0"
    night.look()
    assert [one["state"] for one in night.told()] == ["drift", "clean"]
    assert night.told()[1]["gone"] == [ITEM]


def test_a_look_that_fails_is_unknown_and_never_clean(night: Night) -> None:
    for look in ("import sys; sys.exit('no Docker')", "print('nonsense')", "print('{}')"):
        assert night.look(look).returncode == 1
        assert night.result()["state"] == "unknown"
    assert "no Docker" in night.told()[0]["reason"]


def test_a_part_of_the_look_that_failed_is_unknown(night: Night) -> None:
    night.answer["failed"] = ["apt-cache policy: no such list"]
    assert night.look().returncode == 1
    assert night.result()["state"] == "unknown"
    assert night.result()["reason"] == "apt-cache policy: no such list"


def test_a_deploy_that_is_under_way_is_no_news(night: Night) -> None:
    night.look()
    night.answer["lock"] = {"who": "ann", "since": "now"}
    assert night.look().returncode == 0
    assert night.result()["state"] == "clean"
    assert night.told() == []


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"wants": 1', json.dumps(record(version=99))])
def test_a_damaged_record_is_unknown_and_told(night: Night, content: str | None) -> None:
    night.look()
    path = night.folder / "deployed.json"
    path.unlink() if content is None else path.write_text(content)
    done = night.look()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert night.result()["state"] == "unknown"
    assert [one["state"] for one in night.told()] == ["unknown"]
    assert "run the deploy again" in night.told()[0]["reason"]


@pytest.mark.parametrize("name", ["nightly.json", "gb10_mask.py"])
@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_whatever_else_of_it_is_damaged_is_unknown(night: Night, name: str, content: str | None) -> None:
    night.look()
    path = night.folder / name
    path.unlink() if content is None else path.write_text(content)
    done = night.look()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert night.result()["state"] == "unknown"


# -- telling -----------------------------------------------------------------------------------------------


def test_a_hook_that_fails_is_tried_again(night: Night) -> None:
    hook = json.loads((night.folder / "nightly.json").read_text())["notify_command"]
    night.look()
    night.set(notify_command=["/no/such/hook"])
    night.answer["facts"]["box: kernel"] = "6.8.1"
    for _ in range(2):
        done = night.look()
        assert done.returncode == 0
        assert "the notification failed, it is tried again next time: /no/such/hook" in done.stderr
        assert (night.result()["state"], night.result()["untold"]["state"]) == ("drift", "clean")
    night.set(notify_command=hook)
    night.look()
    night.look()
    assert [(one["state"], one["new"]) for one in night.told()] == [("drift", [ITEM])]
    assert "untold" not in night.result()


def test_what_was_well_again_before_it_could_be_told_is_no_news(night: Night) -> None:
    hook = json.loads((night.folder / "nightly.json").read_text())["notify_command"]
    night.set(notify_command=["false"])
    night.answer["facts"]["box: kernel"] = "6.8.1"
    night.look()
    night.set(notify_command=hook)
    night.answer["facts"]["box: kernel"] = "6.8.0"
    night.look()
    assert night.told() == []


def test_a_result_that_cannot_be_written_is_told(night: Night) -> None:
    """As on a full disk: the old result stays, so every night says so."""
    night.look()
    (night.folder / "drift.json.new").mkdir()
    night.answer["facts"]["box: kernel"] = "6.8.1"
    for _ in range(2):
        done = night.look()
        assert done.returncode == 1
        assert "could not be written" in done.stderr
    assert [(one["state"], one["new"]) for one in night.told()] == [("drift", [ITEM])] * 2
    assert "could not be written" in night.told()[0]["reason"]


def test_without_a_hook(night: Night) -> None:
    night.set(notify_command=[])
    night.answer["facts"]["box: kernel"] = "6.8.1"
    assert night.look().returncode == 0
    assert night.result()["items"] == [ITEM]
    assert "untold" not in night.result()


# -- secrets, and when it runs -----------------------------------------------------------------------------


def test_the_result_is_roots_and_holds_no_secret(night: Night) -> None:
    key = night.folder / "key"
    key.write_text(f"{SECRET}\n")
    night.set(secrets=[str(key), "/none"])
    night.answer["facts"]["router: container"]["command"] = ["--api-key", SECRET]
    night.answer["facts"]["box: firewall"] = [f"bare {SECRET}"]
    old = os.umask(0)
    try:
        done = night.look()
    finally:
        os.umask(old)
    assert (night.folder / "drift.json").stat().st_mode & 0o777 == 0o640
    assert len(night.result()["items"]) == 2
    failed = night.look(f"import sys; sys.exit('no answer with {SECRET}')")
    said = [(night.folder / name).read_text() for name in ("drift.json", "told")]
    assert SECRET not in "".join([*said, done.stdout, done.stderr, failed.stdout, failed.stderr])


def test_a_box_that_was_off_looks_when_it_is_on_again() -> None:
    files = {file.path.rpartition("/")[2]: file.content for file in box().nightly_files}
    assert "\nPersistent=true\n" in files["gb10-drift.timer"]
    paths = "/var/lib/gb10/nightly.json /var/lib/gb10/deployed.json /var/lib/gb10/drift.json\n"
    assert files["gb10-drift.service"].endswith(f"/gb10_drift.py {paths}")
