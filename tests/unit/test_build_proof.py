"""The script that says what a build was made of, run by CMake over what a build leaves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.boxes import box

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
STATS = "direct_cache_hit\t3\npreprocessed_cache_hit\t1\ncache_miss\t2\n"


def proven(folder: Path, cache: str, flags: dict[str, str], compiled: str = f"seconds 5\n{STATS}") -> Any:
    """build.json of a build with ``cache`` as CMakeCache.txt and ``compiled`` as compile.txt."""
    data: dict[str, Any] = {
        "image_cmake_flags": {},
        "image_accelerator_flags": flags,
        "image_build_proofs": [],
    }
    text = box(**data).dockerfile
    script = text.partition("<<'GB10_PROOF' /proof/build.cmake\n")[2].partition("\nGB10_PROOF\n")[0]
    assert script
    for name in ("build", "out", "proof"):
        (folder / name).mkdir()
        script = re.sub(rf"(?<![\w/])/{name}/", f"{folder}/{name}/", script)
    script = script.replace("git -C /src rev-parse HEAD", "echo abc")
    (folder / "out" / "llama-server").write_text("x")
    (folder / "build" / "CMakeCache.txt").write_text(cache)
    (folder / "build" / "compile.txt").write_text(compiled)
    (folder / "p.cmake").write_text(script)
    done = subprocess.run(
        ["cmake", "-P", str(folder / "p.cmake")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "proof" / "build.json").read_text())


@pytest.mark.parametrize(
    "value",
    [
        "121", "90;121", "90;;121;", "-O2 -DX=\\\"a\\\"", "-Wl,-rpath-link,/x [a] $ORIGIN", "a\\b", "[a;b]",
        "it's", "a [b;c", "b] ; c",
    ],
)  # fmt: skip
def test_a_flag_is_said_as_it_was_given(value: str, tmp_path: Path) -> None:
    found = proven(tmp_path, f"CMAKE_CXX_FLAGS:STRING={value}\n", {"CMAKE_CXX_FLAGS": value})
    assert found["flags"] == {"CMAKE_CXX_FLAGS": value}


@pytest.mark.parametrize(
    ("compiled", "figures"),
    [
        (f"seconds 5\n{STATS}", (5, 4, 2)),
        (f"seconds -5\n{STATS}", (0, 4, 2)),  # a clock that was set back
        ("seconds 5\n", (5, 0, 0)),
        ("", (0, 0, 0)),
        ("seconds x\ncache_miss\t\n", (0, 0, 0)),
    ],
)
def test_figures_for_people_end_no_build(compiled: str, figures: tuple[int, ...], tmp_path: Path) -> None:
    found = proven(tmp_path, "GGML_CUDA:BOOL=ON\n", {"GGML_CUDA": "ON"}, compiled)
    names = ("seconds", "ccache_hits", "ccache_misses")
    assert found["compile"] == dict(zip(names, figures, strict=True))


def test_no_clock_that_can_be_set_back() -> None:
    (line,) = [
        line for line in box().dockerfile.splitlines() if "> /build/compile.txt" in line and "echo" in line
    ]
    assert "/proc/uptime" in line
    assert "date +" not in box().dockerfile
