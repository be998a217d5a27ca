"""`gb10 drift` without a box: what is counted, what is said, and with which exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyinfra.api.exceptions import PyinfraError

from gb10.commands import drift as command
from gb10.drift.case import NOTED
from gb10.drift.report import Class, HostReport, Item


def item(name: str, fix: str = "deploy") -> Item:
    stage = name.partition(":")[0]
    return Item(
        id=name, stage=stage, should="a", is_="b", made=Class.BY_HAND, fix=fix, do=f"{fix} it"  # type: ignore[arg-type]
    )  # fmt: skip


class Boxes:
    """What a look at each box says; each look is counted."""

    def __init__(self) -> None:
        self.reports: dict[str, HostReport] = {}
        self.looks: list[tuple[str, dict[str, Any]]] = []
        self.status = 0  # of a deploy
        self.noted: list[str] = []

    def set(self, name: str, *items: Item, reason: str = "") -> None:
        state = "unknown" if reason else "drift" if items else "clean"
        self.reports[name] = HostReport(host=name, state=state, reason=reason, items=items)  # type: ignore[arg-type]

    def examine(self, inventory: Path, name: str, **options: Any) -> HostReport:
        self.looks.append((name, options))
        return self.reports[name]


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Boxes:
    found = Boxes()
    found.set("a")
    found.set("b")
    monkeypatch.setattr(command, "examine", found.examine)
    monkeypatch.setattr(command.interrupt, "is_a_failure", lambda *_: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "boxes.py").write_text("gb10 = [('a', {}), ('b', {})]\n")
    return found


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command.drift_command, ["--inventory", str(tmp_path / "boxes.py"), *arguments])


def test_every_box_or_those_that_are_named(boxes: Boxes, tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 0
    assert run(tmp_path, "b", "b").exit_code == 0
    assert [name for name, _ in boxes.looks] == ["a", "b", "b"]
    wrong = run(tmp_path, "c")
    assert isinstance(wrong.exception, PyinfraError)
    assert "no host 'c'" in str(wrong.exception)


def test_an_inventory_without_a_box_is_not_clean(boxes: Boxes, tmp_path: Path) -> None:
    (tmp_path / "boxes.py").write_text("gb10 = []\n")
    assert isinstance(run(tmp_path).exception, PyinfraError)


def test_any_unknown_beats_any_drift(boxes: Boxes, tmp_path: Path) -> None:
    boxes.set("a", item("router: presets"))
    assert run(tmp_path).exit_code == 2
    boxes.set("b", reason="Could not connect")
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "b: could not tell: Could not connect" in done.output


def test_stages(boxes: Boxes, tmp_path: Path) -> None:
    boxes.set("a", item("router: presets"), item("box: kernel"))
    assert run(tmp_path, "--only", "toolkit").exit_code == 0
    assert run(tmp_path, "--skip", "router,box").exit_code == 0
    done = run(tmp_path, "--only", "box", "--json")
    assert done.exit_code == 2
    assert [one["id"] for one in json.loads(done.output)["hosts"][0]["items"]] == ["box: kernel"]
    assert "there is no stage 'toolkti'" in run(tmp_path, "--only", "toolkti").output
    # What is not known stays so, whatever is counted.
    boxes.set("a", reason="away")
    assert run(tmp_path, "--only", "toolkit").exit_code == 1


def test_a_host_is_named_in_either_way(boxes: Boxes, tmp_path: Path) -> None:
    run(tmp_path, "--host", "b", "a", "--host", "b")
    assert [name for name, _ in boxes.looks] == ["a", "b"]


def test_quiet(boxes: Boxes, tmp_path: Path) -> None:
    assert run(tmp_path, "--quiet").output == ""
    boxes.set("b", item("router: presets"))
    done = run(tmp_path, "--quiet")
    assert done.exit_code == 2
    assert "a: clean" not in done.output
    assert "router: presets" in done.output


def test_cron_hears_only_of_changes(boxes: Boxes, tmp_path: Path) -> None:
    assert run(tmp_path, "--watch-mode").output == ""
    boxes.set("a", item("router: presets"))
    line = "a: router: presets: should be a, is b (by hand)\n"
    assert (run(tmp_path, "--watch-mode").output, run(tmp_path, "--watch-mode").output) == (line, "")
    boxes.set("a", reason="away")
    assert run(tmp_path, "--watch-mode").output == "a: could not tell: away\n"
    boxes.set("a")
    assert run(tmp_path, "--watch-mode").output == "a: clean again\nb: clean again\n"


def test_explain(boxes: Boxes, tmp_path: Path) -> None:
    boxes.set("a", item("router: presets"))
    done = run(tmp_path, "--explain", "router: presets")
    assert done.exit_code == 2
    assert "put right  deploy it" in done.output
    assert boxes.looks[-1][1]["diff"] is True
    wrong = run(tmp_path, "--explain", "router: key")
    assert "there are: router: presets" in str(wrong.exception)


# -- putting it right ------------------------------------------------------------------------------


@pytest.fixture
def deploys(monkeypatch: pytest.MonkeyPatch, boxes: Boxes) -> list[tuple[str, str]]:
    """Box and stages of each deploy; it puts the box right."""
    ran = []
    really = subprocess.run

    def deploy(line: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--limit" not in line:
            return really(line, **options)
        name = line[line.index("--limit") + 1]
        ran.append((name, options["env"]["GB10_STAGES"]))
        boxes.noted.append(options["env"]["GB10_NOTED"])
        boxes.set(name)
        return subprocess.CompletedProcess(line, boxes.status)

    monkeypatch.setattr(command.subprocess, "run", deploy)
    return ran


@pytest.mark.parametrize("options", [(), ("--quiet",), ("--json",), ("--watch-mode",)])
def test_a_deploy_that_failed_is_never_green(
    boxes: Boxes, tmp_path: Path, deploys: list[tuple[str, str]], options: tuple[str, ...]
) -> None:
    """Also where the second look finds nothing any more."""
    boxes.set("a", item("toolkit: keyring"))
    boxes.status = 1
    done = run(tmp_path, "--fix", "--yes", *options)
    assert deploys == [("a", "toolkit,router")]
    assert done.exit_code == 1
    if options == ("--json",):
        report = json.loads(done.stdout)
        assert (report["exit"], [host["deploy"] for host in report["hosts"]]) == (1, ["failed", ""])
    else:
        assert "a: the deploy failed" in done.stdout


def test_what_was_shown_is_noted(boxes: Boxes, tmp_path: Path, deploys: list[tuple[str, str]]) -> None:
    """Of what no stage puts right, a run takes note of what stood on the screen and of nothing else."""
    names = ("box: kernel", "box: firewall", "router: restarts")
    kernel, firewall, restarts = (item(name).model_copy(update={"do": NOTED}) for name in names)
    boxes.set("a", kernel, restarts, item("router: presets"), item("box: clock", "hand"))
    run(tmp_path, "--fix", "--yes")
    boxes.set("a", firewall, item("router: presets"))
    run(tmp_path, "--fix", "--yes", "--only", "router")
    assert boxes.noted == ["box: kernel,router: restarts", ""]


def test_fix_deploys_what_drifted_and_looks_again(
    boxes: Boxes, tmp_path: Path, deploys: list[tuple[str, str]]
) -> None:
    boxes.set("a", item("toolkit: keyring"), item("lanes: vLLM unit x", "hand"))
    boxes.set("b", item("box: kernel"))
    done = run(tmp_path, "--fix", "--yes")
    assert done.exit_code == 0
    # Docker's restart ends the lane: the router's stage follows. What is only recorded needs no stage.
    assert deploys == [("a", "toolkit,router"), ("b", "verify")]
    assert done.output.index("toolkit: keyring") < done.output.index("a: deploy of toolkit, router")


def test_fix_asks_first(boxes: Boxes, tmp_path: Path, deploys: list[tuple[str, str]]) -> None:
    boxes.set("a", item("toolkit: keyring"))
    assert run(tmp_path, "--fix").exit_code != 0
    assert deploys == []


def test_fix_has_nothing_to_do_for_what_a_hand_must_do(
    boxes: Boxes, tmp_path: Path, deploys: list[tuple[str, str]]
) -> None:
    boxes.set("a", item("lanes: vLLM unit x", "hand"))
    boxes.set("b", reason="away")
    assert run(tmp_path, "--fix", "--yes").exit_code == 1
    assert deploys == []
