"""Coding tasks: a question, and tests that the answer's program must pass when it is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gb10.bench.answers import program_of
from gb10.bench.result import Verdict
from gb10.bench.router import Router
from gb10.bench.sandbox import Job
from gb10.faults import BadInput, Fault

ANSWER_TOKENS = 8192  # a model that thinks first needs most of them for that
RUN_SECONDS = 10
_INSTRUCTION = (
    "Write Python 3 with nothing but the standard library. Answer with one complete program in one"
    " fenced code block; nothing is read from standard input."
)


class CodingTask(BaseModel):
    """``prompt`` is what the model is asked, ``tests`` Python that asserts, run after the answer in the same
    names. ``solution`` passes and ``wrong`` does not: they test the tests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    prompt: str
    tests: str
    solution: str
    wrong: str


Entry = TypeVar("Entry", bound=BaseModel)


def load_entries(folder: Path, kind: type[Entry]) -> list[Entry]:
    """Every YAML file of a folder, by name. Raises `BadInput` with all faults."""
    faults, found = [], []
    for path in sorted(folder.glob("*.yaml")):
        try:
            content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
            found.append(kind.model_validate({"name": path.stem, **content}))
        except (OSError, yaml.YAMLError, TypeError) as error:
            what = " ".join(str(error).split())
            faults.append(Fault(str(path), f"not a YAML mapping ({what})", "correct the file"))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            faults.append(Fault(f"{path} {place}", first["msg"], "correct the file"))
    if not found and not faults:
        faults.append(Fault(str(folder), "no task is there", "name a folder with YAML files"))
    if faults:
        raise BadInput(faults)
    return found


def attempt(
    router: Router, model: str, task: CodingTask, judge: Callable[[Job], Verdict], tokens: int = ANSWER_TOKENS
) -> Verdict:
    """Ask once and run the answer. Raises `RouterFault` where none comes."""
    begun = time.perf_counter()
    message = router.chat(model, [{"role": "user", "content": f"{task.prompt}\n{_INSTRUCTION}"}], tokens)
    code = program_of(str(message.get("content") or ""))
    if code is None:
        verdict = Verdict(passed=False, why="no program in the answer")
    else:
        verdict = judge(Job(code, task.tests, RUN_SECONDS))
    if message["finish_reason"] == "length" and not verdict.passed:
        verdict.why = f"cut off after {tokens} tokens: {verdict.why}"
    verdict.seconds = _since(begun)
    return verdict


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)
