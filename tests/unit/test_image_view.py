"""Images and proofs for people, from a proof that a lab host took and a build of the box's own flags."""

from __future__ import annotations

import io
import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gb10.facts.docker import Generations, Images
from gb10.image_view import image_table, options_line, proof_lines, states, unproven
from gb10.option_source import options_from_help
from gb10.preset_options import load_preset_options, preset_options_from
from tests.unit.boxes import box

GOLDEN = Path(__file__).with_name("golden") / "image"
PROOF = json.loads((GOLDEN / "proof-rpc.json").read_text())
KNOWN = {"current": 1, "generations": [{"number": 1, "image": "gb10/llama-server:b1", "digest": "d"}]}


def image(name: str, *used_by: str, proof: Any = PROOF) -> dict[str, Any]:
    return {
        "image": name,
        "id": f"id {name}",
        "size": 106_000_000,
        "created": "2026-11-29T21:10:43.1Z",
        "used_by": list(used_by),
        "proof": proof and {**proof, "id": f"id {name}", "expectation": box().image_expectation},
    }


def test_the_servers_own_options_are_those_that_presets_are_checked_against() -> None:
    own = preset_options_from(options_from_help(PROOF["options"], ref="", commit=""))
    assert {option.key for option in own.options} == {option.key for option in load_preset_options().options}
    assert options_line(PROOF["options"]) == "its 253 options are those that presets are checked against"


def test_options_that_differ_are_named() -> None:
    changed = PROOF["options"].replace("--cache-reuse", "--cache-again")
    assert options_line(changed).endswith("checked against: cache-again, cache-reuse")
    assert options_line("<html>") == "it lists no options"


def test_what_an_image_has_proven() -> None:
    lines = [f"{name} {text}" for name, text in proof_lines(PROOF)]
    assert "tool C++ compiler GNU 14.2.0" in lines
    assert "proof with the accelerator it lists RPC0, without it none" in lines
    assert any(line.startswith("compile ") and "files from ccache" in line for line in lines)
    assert any("= 0c1e57098bba43ac29e6e3b677cdceebdd22334f" in line for line in lines)


def test_an_architecture_is_shown_as_what_it_becomes() -> None:
    build = json.loads((GOLDEN / "build-121.json").read_text())
    lines = [
        f"{name} {text}" for name, text in proof_lines(PROOF | {"build": build, "bases": build["bases"]})
    ]
    assert "flag CMAKE_CUDA_ARCHITECTURES = 121, built as 121a" in lines
    assert "proof CUDA code: sm_121a" in lines
    assert "tool CUDA compiler NVIDIA 13.0.88" in lines


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (image("gb10/llama-server:b1", "llamacpp-playground"), ["running"]),
        (image("gb10/llama-server:b1"), []),
        (image("gb10/llama-server:b2"), ["never answered"]),
        (image("gb10/llama-server:b2", proof=None), ["not proven"]),
        (image("gb10/llama-server:failed", proof=None), ["failed"]),
        (image(box().image), ["wanted", "never answered"]),
    ],
)
def test_states(entry: dict[str, Any], words: list[str]) -> None:
    assert states(entry, box(), KNOWN) == words


def test_only_a_proof_of_itself_and_of_what_is_expected_counts() -> None:
    good = image(box().image)
    assert unproven(good, box()) == ""
    other = {**good, "id": "sha256:other"}
    assert unproven(other, box()) == "not proven: the proof is of another image that had this name"
    assert states(other, box(), KNOWN) == ["wanted", "not proven"]
    assert "before the data changed" in unproven(good, box(image_system_info=["X = 1"]))
    assert unproven({**good, "proof": {}}, box()).startswith("not proven")


def test_names_are_never_cut() -> None:
    out = io.StringIO()
    Console(file=out, width=60).print(image_table([image(box().image)], box(), KNOWN))
    assert box().image in out.getvalue()


@pytest.mark.parametrize("output", [["{"], ["3"], ["no answer"], ["not json", "at all"]])
def test_programs_that_answer_otherwise_are_no_answer(output: list[str]) -> None:
    assert Images().process(output) is None
    assert Generations().process(output) is None


def test_before_they_are_there_there_is_nothing() -> None:
    assert Images().process([]) == Images.default() == []
    assert Generations().process([]) == Generations.default()


@pytest.mark.parametrize("fact", [Images(), Generations()])
def test_a_program_that_fails_says_nothing(fact: Any, tmp_path: Path) -> None:
    program, other = tmp_path / "program.py", str(tmp_path / "x.json")
    line = fact.command(str(program), other)
    run = partial(subprocess.run, ["sh", "-c", line], capture_output=True, text=True, check=True)
    assert run().stdout == ""
    program.write_text("import sys; sys.exit(1)")
    Path(other).touch()
    assert fact.process(run().stdout.splitlines()) is None
