"""Build flags are checked against what the pinned llama.cpp declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10.cmake_options import built_architectures, load_cmake_options
from gb10.cmake_source import CMAKE_FILE, options_from_cmake
from gb10.faults import BadInput
from gb10.inventory import desired, load_inventory
from tests.unit.boxes import box

FILES = {
    "CMakeLists.txt": """
# option(LLAMA_COMMENTED "not one" ON)
option(LLAMA_TOOLS "llama: \\"tools\\"" ON)
llama_option_depr(WARNING     LLAMA_CUDA                GGML_CUDA)
llama_option_depr(WARNING     LLAMA_CURL)
""",
    "ggml/CMakeLists.txt": """
    option(GGML_CUDA            "ggml: use CUDA"      OFF)
set   (GGML_MODE "size" CACHE STRING
        "ggml: compression mode")
set_property(CACHE GGML_MODE PROPERTY STRINGS "none;speed;size")
set(GGML_DIR "" CACHE PATH "ggml: folder")
set(NOT_ONE 1)
""",
}


def problems(**flags: str) -> list[str]:
    return [str(fault) for fault in load_cmake_options().faults(flags, {name: name for name in flags})]


def test_the_list_is_read_from_the_source() -> None:
    made = options_from_cmake(FILES, ref="b1", commit="c" * 40)
    assert made == {
        "ref": "b1",
        "commit": "c" * 40,
        "options": [
            {"name": "GGML_CUDA", "kind": "bool", "about": "ggml: use CUDA"},
            {"name": "GGML_DIR", "kind": "path", "about": "ggml: folder"},
            {
                "name": "GGML_MODE",
                "kind": "string",
                "about": "ggml: compression mode",
                "allowed": ["none", "speed", "size"],
            },
            {"name": "LLAMA_TOOLS", "kind": "bool", "about": 'llama: \\"tools\\"'},
        ],
        "removed": {"LLAMA_CUDA": "GGML_CUDA", "LLAMA_CURL": ""},
    }


def test_a_text_without_options_is_refused() -> None:
    with pytest.raises(ValueError, match="no option found"):
        options_from_cmake({"CMakeLists.txt": "<html>"}, ref="b1", commit="c" * 40)


@pytest.mark.parametrize(
    "path", ["CMakeLists.txt", "ggml/src/ggml-cuda/CMakeLists.txt", "tools/server/CMakeLists.txt"]
)
def test_files_of_a_servers_build_are_read(path: str) -> None:
    assert CMAKE_FILE.fullmatch(path)


@pytest.mark.parametrize(
    "path", ["examples/CMakeLists.txt", "tests/CMakeLists.txt", "ggml/cmake/common.cmake"]
)
def test_other_files_are_not(path: str) -> None:
    assert not CMAKE_FILE.fullmatch(path)


def test_the_kept_list_is_of_the_pinned_commit() -> None:
    assert load_cmake_options().commit == box().data.llama_commit


def test_every_flag_of_the_data_is_declared() -> None:
    data = box().data
    assert problems(**data.image_cmake_flags, **data.image_accelerator_flags) == []


def test_a_swallowed_flag_says_what_gives_the_effect() -> None:
    (line,) = problems(GGML_CUDA_NVFP4="ON")
    assert line.startswith("GGML_CUDA_NVFP4: llama.cpp b11312 has no option GGML_CUDA_NVFP4: ")
    assert "CMAKE_CUDA_ARCHITECTURES = 121 gives 121a" in line
    assert "the nearest option is GGML_CUDA_" in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GGML_CUDA_GRAPH", "ON", "did you mean GGML_CUDA_GRAPHS?"),
        ("CMAKE_CUDA_ARCHITECTURE", "121", "did you mean CMAKE_CUDA_ARCHITECTURES?"),
        ("LLAMA_CUBLAS", "ON", "any more: use GGML_CUDA"),
        ("LLAMA_CURL", "OFF", "there is LLAMA_OPENSSL"),
        ("GGML_RPC", "perhaps", "write ON or OFF"),
        ("GGML_CUDA_COMPRESSION_MODE", "fast", "it takes one of none, speed, balance, size"),
        ("FOO", "1", "remove it: it would change nothing"),
    ],
)
def test_faults(name: str, value: str, words: str) -> None:
    (line,) = problems(**{name: value})
    assert words in line


def test_cmakes_own_variables_are_taken() -> None:
    assert (
        problems(CMAKE_CXX_FLAGS_RELEASE="-O1", CMAKE_CUDA_FLAGS="-lineinfo", CMAKE_BUILD_TYPE="Release")
        == []
    )


@pytest.mark.parametrize(
    ("value", "built"),
    [
        ("121", "121a"),
        ("121-real", "121a-real"),
        ("120;121", "120a;121a"),
        ("90", "90"),
        ("121a-real", "121a-real"),
    ],
)
def test_what_llama_cpp_makes_of_an_architecture(value: str, built: str) -> None:
    assert built_architectures(value) == built


def test_the_fault_names_file_key_and_line(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.py"
    inventory.write_text('gb10 = [("one", {"image_accelerator_flags": {"GGML_CUDA_NVFP4": "ON"}})]\n')
    (host,) = load_inventory(inventory)
    with pytest.raises(BadInput) as caught:
        desired(host)
    (fault,) = caught.value.faults
    assert str(fault).startswith("data of host one image_accelerator_flags.GGML_CUDA_NVFP4: ")


def test_another_commit_wants_its_own_list(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.py"
    inventory.write_text(f'gb10 = [("one", {{"llama_commit": "{"d" * 40}"}})]\n')
    (host,) = load_inventory(inventory)
    with pytest.raises(BadInput, match="run `gb10 pin llama"):
        desired(host)


def test_a_list_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cmake_options.json"
    path.write_text("{")
    with pytest.raises(BadInput, match="not a list of build options"):
        load_cmake_options(path)
