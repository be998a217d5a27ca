#!/usr/bin/env python3
"""Run a model's answer against its tests, and say whether it passed. Only ever inside a sandbox.

Reads one JSON object from standard input: {"code": the answer, "tests": Python that asserts, "seconds": limit
of both together}.
Prints one JSON object: {"passed": bool, "why": text, empty when it passed}. Exit status 0 when it could say.

This program bounds the time and tells the reasons apart. It does not confine anything: that is what the
unit it is started in is for (gb10/bench/sandbox.py has its properties). The answer gets neither our output
nor our input, and what counts is a mark that is written after the last test: an answer that ends early has
not passed. It shares its process with its tests, so a program that looks for the mark can find it: the tests
measure honest answers.

Python 3.10 or newer, standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys

VERDICT_BYTES = 4096
# The answer's own process. Its name is that of a module, so a program that guards its main part stays quiet.
CHILD = r"""
import json, os, sys, types
job = json.loads(sys.stdin.read())
sys.stdin = open(os.devnull)
def say(mark, why):
    os.write(job["verdict"], json.dumps({"mark": mark, "why": why[:300]}).encode())
    os._exit(0)
# A module that can be found: dataclasses and pickle look their classes' module up.
sys.modules["answer"] = types.ModuleType("answer")
space = sys.modules["answer"].__dict__
try:
    exec(compile(job["code"], "answer", "exec"), space)
except BaseException as error:
    say("", f"the answer itself: {type(error).__name__}: {error}")
try:
    exec(compile(job["tests"], "tests", "exec"), space)
except BaseException as error:
    trace, line = error.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "tests" else line
        trace = trace.tb_next
    lines = job["tests"].splitlines()
    at = lines[line - 1].strip() if 0 < line <= len(lines) else "tests"
    say("", f"{at}: {type(error).__name__}: {error}".rstrip(": "))
say(job["mark"], "")
"""


def judge(code: str, tests: str, seconds: float) -> tuple[bool, str]:
    """Whether ``code`` passes ``tests`` within ``seconds``, and if not, why not."""
    mark = secrets.token_hex(8)
    read, write = os.pipe()
    job = {"code": code, "tests": tests, "mark": mark, "verdict": write}
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(write,),
        start_new_session=True,
    )
    os.close(write)
    try:
        child.communicate(json.dumps(job).encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        end_group(child)
        return False, f"still running after {seconds:g} s"
    finally:
        end_group(child)
    # Not until the end of the pipe: what the answer started may hold it open.
    os.set_blocking(read, False)
    try:
        # The first one: an answer that forks says it twice.
        said, _ = json.JSONDecoder().raw_decode(os.read(read, VERDICT_BYTES).decode())
        passed, why = said["mark"] == mark, one_line(str(said["why"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False, ending(child.returncode)
    finally:
        os.close(read)
    return passed, "" if passed else (why or "it spoke for its tests")


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End the answer's process and what it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def ending(status: int) -> str:
    """Why a process without a verdict ended."""
    if status >= 0:
        return f"it ended by itself with {status}, before its tests"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    limits = {"SIGXCPU": "too much processor time", "SIGXFSZ": "a file too large", "SIGKILL": "killed"}
    return limits.get(name, f"ended by {name}")


def one_line(text: str) -> str:
    """``text`` without line ends and control characters, at most 300 characters of it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:300]).split())


def main() -> int:
    job = json.loads(sys.stdin.read())
    passed, why = judge(job["code"], job["tests"], float(job["seconds"]))
    print(json.dumps({"passed": passed, "why": why}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
