"""Coding tasks and tool scenarios: the data, the judge, what a sandbox is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import PyinfraError

from gb10.bench import sandbox
from gb10.bench.coding import CodingTask, load_entries, program_of
from gb10.bench.on_box import FOLDER
from gb10.bench.result import Rate, Verdict, save
from gb10.bench.sandbox import Job
from gb10.bench.tools import Call, Scenario, Step, play, same, turn, wrong
from gb10.faults import BadInput
from tests.unit.bench_runs import connected, model, result
from tests.unit.router_server import Router, Turns, running

TASKS = load_entries(FOLDER / "coding", CodingTask)
SCENARIOS = load_entries(FOLDER / "tools", Scenario)


def judge(code: str, tests: str, seconds: float) -> tuple[bool, str]:
    """What the program says, run as it is run on a box."""
    job = json.dumps({"code": code, "tests": tests, "seconds": seconds})
    line = [sys.executable, "-I", "-c", sandbox.program()]
    done = subprocess.run(line, input=job, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert set(said) == {"passed", "why"}
    return said["passed"], said["why"]


def test_ten_of_each() -> None:
    assert (len(TASKS), len(SCENARIOS)) == (10, 10)


# -- coding ------------------------------------------------------------------------------------------


DATACLASS = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Point:
    x: int
"""
# Into every descriptor it may have.
SHOUTS = """
import os
for number in range(3, 20):
    try:
        os.write(number, b"[" * 4000)
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_tests_tell_right_from_wrong(task: CodingTask) -> None:
    assert judge(task.solution, task.tests, 20) == (True, "")
    passed, why = judge(task.wrong, task.tests, 20)
    assert not passed
    assert why


@pytest.mark.parametrize(
    ("code", "tests", "why"),
    [
        ("while True: pass", "", "still running after 1 s"),
        ("import sys; sys.exit(0)", "", "the answer itself: SystemExit: 0"),
        ("import os; os._exit(0)", "", "it ended by itself with 0, before its tests"),
        ("import os; os.abort()", "", "ended by SIGABRT"),
        ("def f(: pass", "", "the answer itself: SyntaxError"),
        ("raise ValueError('two\\nlines')", "", "the answer itself: ValueError: two lines"),
        ("x = 1", "\nassert x == 2, 'x is one'", "assert x == 2, 'x is one': AssertionError: x is one"),
        ("x = 1", "y", "y: NameError"),
        ("print('passed' * 10**6)", "assert False", "assert False: AssertionError"),
        ("import os; os.fork()", "", ""),
        ("import os\nif os.fork() == 0:\n  import time; time.sleep(60)", "", ""),
        ("if __name__ == '__main__': raise SystemExit(1)", "", ""),
        ("input()", "", "the answer itself: EOFError"),
        (DATACLASS, "assert Point(1).x == 1", ""),
        ("import pickle\nclass A: pass", "pickle.loads(pickle.dumps(A()))", ""),
        ("raise ValueError('\U0001f600' * 1000)", "", "the answer itself: ValueError: \U0001f600"),
        (SHOUTS, "", "it ended by itself with 0, before its tests"),
    ],
)
def test_why_an_answer_did_not_pass(code: str, tests: str, why: str) -> None:
    passed, said = judge(code, tests, 1 if "while" in code else 20)
    assert passed == (not why)
    assert said.startswith(why)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("First:\n```py\na\n```\nand better:\n```python\nb\n```\nDone.", "b\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\nRun it:\n```bash\npython a.py\n```", "a\n"),
        ("<think>```python\nno\n```</think>```python\nyes\n```", "yes\n"),
        ("  ```python\n  a\n  ```", "a\n"),
        ("the template opened it\n```python\nno\n```</think>It is hard.", None),
        ("<think>first\n```python\nno\n```\nthen", None),
        ("a", None),
        ("```python\nnever ends", "never ends"),
        ("1. So:\n\n   ```python\n   def f():\n       pass\n   ```", "def f():\n    pass\n"),
        ("~~~py3\na\n~~~", "a\n"),
        ("    ```python\n    a\n    ```", "a\n"),
        ("```python\ndef f(): ...\n```\nUse it:\n```python\nf()\n```", "def f(): ...\n"),
        ("```python\nx = '<think>' + '</think>'\n```", "x = '<think>' + '</think>'\n"),
        ("", None),
    ],
)
def test_the_program_in_an_answer(answer: str, code: str | None) -> None:
    assert program_of(answer) == code


@pytest.mark.parametrize(
    "content", ["[]", "prompt: x", "prompt: [1]\ntests: ''", "{", "more: 1", "prompt: &a [*a]"]
)
def test_a_broken_task_is_said_with_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.yaml").write_text(content)
    with pytest.raises(BadInput, match=r"broken\.yaml"):
        load_entries(tmp_path, CodingTask)


def test_no_task_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no task"):
        load_entries(tmp_path, CodingTask)


# -- the sandbox, from here ----------------------------------------------------------------------------


class Box:
    """Answers commands, and keeps them."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Sequence[str], str]] = []

    def __call__(self, command: Sequence[str], stdin: str, seconds: float) -> tuple[int, str, str]:
        self.asked.append((command, stdin))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_the_answer_is_on_no_command_line() -> None:
    box = Box((0, '{"passed": true, "why": ""}\n', ""))
    assert sandbox.judge(box, Job("code of a model", "its tests", 3)) == Verdict(passed=True)
    command, stdin = box.asked[0]
    assert "code of a model" not in " ".join(command)
    assert json.loads(stdin) == {"code": "code of a model", "tests": "its tests", "seconds": 3}


def test_every_wall_stands() -> None:
    line = sandbox.command("gb10-sandbox-1", 10)
    given = {each for word, each in pairwise(line) if word == "--property"}
    walls = (
        "DynamicUser=yes PrivateNetwork=yes NoNewPrivileges=yes CapabilityBoundingSet= PrivateDevices=yes"
        " TasksMax=64 LimitNPROC=64 MemoryMax=512M LimitAS=1G RuntimeMaxSec=15 LimitCPU=15 KillSignal=SIGKILL"
    )
    wanted = {*walls.split(), f"RootDirectory={sandbox.ROOT}"}
    assert wanted <= given
    assert line[-4:-1] == ["python3", "-I", "-c"]
    assert "--unit=gb10-sandbox-1" in line


def test_systemd_finds_no_variable_in_the_program() -> None:
    assert "$" not in sandbox.program()


@pytest.mark.parametrize("output", ["", "[]\n", "null\n", "killed\n", '{"passed": 1}\n'])
def test_a_sandbox_that_ends_without_a_word_is_a_failed_task(output: str) -> None:
    verdict = sandbox.judge(Box((9, output, "")), Job("", "", 3))
    assert (verdict.passed, verdict.why) == (
        False,
        "the sandbox was ended: time, memory or processes ran out",
    )


def test_no_sandbox_is_no_verdict() -> None:
    said = "Failed to start transient service unit: Unit already exists.\n"
    with pytest.raises(PyinfraError, match="no sandbox on the box: Failed to start"):
        sandbox.judge(Box((1, "", said)), Job("", "", 3))


def test_a_sandbox_that_systemd_cannot_make_is_no_verdict() -> None:
    with pytest.raises(PyinfraError, match="could not set it up"):
        sandbox.judge(Box((226, "", "")), Job("", "", 3))


def test_what_the_sandbox_leaves_is_said() -> None:
    with pytest.raises(PyinfraError, match="Device or resource busy"):
        sandbox.clean(Box((1, "", "rm: /run/gb10-sandbox: Device or resource busy\n")))


def test_ctrl_c_ends_the_unit() -> None:
    box = Box(KeyboardInterrupt(), (0, "", ""))
    with pytest.raises(KeyboardInterrupt):
        sandbox.judge(box, Job("", "", 3))
    assert box.asked[1][0][:3] == ["systemctl", "kill", "--signal=SIGKILL"]


# -- tools -------------------------------------------------------------------------------------------


def call(name: str, arguments: Any, number: str = "1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": number, "type": "function", "function": {"name": name, "arguments": text}}


def made(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def perfect(scenario: Scenario) -> list[dict[str, Any]]:
    """What a model that gets all right would answer."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return (
                plain(value["any"][0]) if set(value) == {"any"} else {k: plain(v) for k, v in value.items()}
            )
        return value

    answers = []
    for step in scenario.steps:
        calls = [call(one.name, plain(one.arguments), str(n)) for n, one in enumerate(step.calls)]
        said = [one if isinstance(one, str) else one[0] for one in step.text]
        text = " and ".join(said + [f"{values[0]} in {name}" for name, values in step.pairs.items()])
        message = made(*calls) if calls else {"role": "assistant", "content": f"It is {text}."}
        answers.append({"choices": [{"message": message, "finish_reason": "stop"}]})
    return answers


@pytest.fixture
def server() -> Iterator[Router]:
    with running() as router:
        yield router


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_can_be_passed_and_its_data_fit(server: Router, scenario: Scenario) -> None:
    server.answers["POST /v1/chat/completions"] = Turns(*perfect(scenario))
    verdict = play(connected(server), "a", scenario)
    assert verdict.passed, verdict.why
    assert len(server.asked) == len(scenario.steps)
    tools = {tool.name: tool.parameters for tool in scenario.tools}
    for step in scenario.steps:
        for one in step.calls:
            assert set(one.arguments) <= set(tools[one.name]["properties"])
            assert set(tools[one.name]["required"]) <= set(one.arguments)
    # Every result of a call went back to the model, under the call's own id.
    for _, body in server.asked:
        ids = {one["id"] for message in body["messages"] for one in message.get("tool_calls", ())}
        assert {m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"} == ids


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_is_not_passed_by_talk(server: Router, scenario: Scenario) -> None:
    message = {"role": "assistant", "content": "Certainly! I would use a tool for that."}
    server.answers["POST /v1/chat/completions"] = {"choices": [{"message": message}]}
    assert not play(connected(server), "a", scenario).passed


STEP = Step(calls=[Call(name="f", arguments={"a": 1, "b": "x"}, optional=["c"], result="r")])


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (made(call("f", {"a": 1, "b": " X "})), ""),
        (made(call("f", {"a": 1.0, "b": "x", "c": 7})), ""),
        (made(call("f", {"a": 2, "b": "x"})), "f: a is 2, not 1"),
        (made(call("f", {"a": "1", "b": "x"})), 'f: a is "1", not 1'),
        (made(call("f", {"a": True, "b": "x"})), "f: a is true, not 1"),
        (made(call("f", {"b": "x"})), "f: no argument a"),
        (made(call("f", {"a": 1, "b": "x", "d": 1})), "f: an argument d that nobody asked for"),
        (made(call("g", {"a": 1, "b": "x"})), "it calls g, where it should not"),
        (
            made(call("f", {"a": 1, "b": "x"}), call("f", {"a": 1, "b": "x"})),
            "it calls f, where it should not",
        ),
        (made(), "it does not call f"),
        ({"content": "f(1)"}, "it does not call f"),
        (made(call("f", "{")), "a tool call that is no JSON object"),
        (made(call("f", "[1]")), "a tool call that is no JSON object"),
        ({"tool_calls": ["f"]}, "a tool call that is no JSON object"),
        ({"tool_calls": [{"function": None}]}, "a tool call that is no JSON object"),
    ],
)
def test_a_call_is_checked_by_name_and_arguments(message: dict[str, Any], why: str) -> None:
    assert wrong(STEP, message) == why
    assert isinstance(turn(STEP, message), list)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"content": "It is 23\n degrees"}, ""),
        ({"content": "It is warm"}, "the answer does not say 23 degrees or 23°"),
        ({"content": ""}, "an empty answer"),
        ({"content": None}, "an empty answer"),
        (made(call("f", {})), "it calls f, where it should answer"),
    ],
)
def test_an_answer_is_checked_for_what_the_tool_said(message: dict[str, Any], why: str) -> None:
    assert wrong(Step(text=[["23 degrees", "23°"]]), message) == why


WEATHER = Step(text=["23"])
CITIES = Step(pairs={"Tokyo": ["21:40", "9:40"], "Nairobi": ["15:40", "3:40"]})
NOT_SAID = "the answer does not say"
ROUND = "the answer has Tokyo and Nairobi the wrong way round"


@pytest.mark.parametrize(
    ("step", "content", "why"),
    [
        (WEATHER, "It is 23°C.", ""),
        (WEATHER, "23.", ""),
        (WEATHER, '<think>warm</think>"23"', ""),
        (Step(text=["55.4"]), "55.40 CHF", ""),
        (Step(text=["55.4"]), "55.41 CHF", f"{NOT_SAID} 55.4"),
        (WEATHER, "23.00 CHF", ""),
        (WEATHER, "(CHF23)", ""),
        (WEATHER, "230", f"{NOT_SAID} 23"),
        (WEATHER, "1,23 or 23.5", f"{NOT_SAID} 23"),
        (WEATHER, "-23", f"{NOT_SAID} 23"),
        (WEATHER, "<think>It is 23.</think>I do not know.", f"{NOT_SAID} 23"),
        (Step(text=[["3", "three"]]), "Threesome, 13 or 30", f"{NOT_SAID} 3 or three"),
        (Step(text=[["3", "three"]]), "It has Three.", ""),
        (Step(), "", "an empty answer"),
        (Step(), "<think>", "an empty answer"),
        (CITIES, "It is 21:40 in Tokyo and 15:40 in Nairobi.", ""),
        (CITIES, "Nairobi: 3:40 pm\nTokyo: 9:40 pm", ""),
        (CITIES, "The times in Nairobi and Tokyo:\n- Tokyo: 21:40\n- Nairobi: 15:40", ""),
        (CITIES, "It is 15:40 in Tokyo and 21:40 in Nairobi.", ROUND),
        (CITIES, "It is 21:40 in Tokyo and 13:40 in Nairobi.", f"{NOT_SAID} Nairobi, and 15:40 or 3:40"),
    ],
)  # fmt: skip
def test_what_an_answer_says_is_a_word_or_number_of_its_own(step: Step, content: str, why: str) -> None:
    assert wrong(step, {"content": content}) == why


@pytest.mark.parametrize(
    "arguments",
    ['{"\\ud83d": 1}', '{"city": ' + "[" * 2000, '{"x": "' + "y" * 10**6 + '"}'],
    ids=["half a character", "deep", "long"],
)
def test_what_a_model_makes_up_can_be_written(arguments: str, tmp_path: Path) -> None:
    message = made(call("f", {}) | {"function": {"name": "f\ud83d", "arguments": arguments}})
    why = wrong(STEP, message)
    assert isinstance(turn(STEP, message), list)
    verdict = Verdict(passed=False, why=why)
    path = save(result(models={"a": model(tools=Rate.of_tasks({"t": verdict}), faults=[why])}), tmp_path)
    assert path.stat().st_size < 10_000


def test_the_same() -> None:
    assert same({"x": [1, {"y": "A"}]}, {"x": [1.0, {"y": "a "}]})
    assert same({"any": [1, 2]}, 2)
    assert not same([1, 2], [2, 1])
    assert not same({"x": 1}, {"x": 1, "y": 2})
    assert not same(1, None)
