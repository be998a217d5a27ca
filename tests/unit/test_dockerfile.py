"""The Dockerfile by its meaning, and the tag that is the hash of it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.boxes import box, raw_data


def instructions(text: str) -> list[str]:
    """One text an instruction, continued lines joined, comments out."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [line.strip() for line in lines.replace("\\\n", " ").splitlines() if line.strip()]


def cmake_flags(text: str, folder: Path) -> dict[str, str]:
    """The flags as cmake gets them: the instruction's own shell runs it, with stand-ins on PATH."""
    (run,) = [line for line in instructions(text) if "cmake -S" in line]
    script = re.sub(r"^RUN (--mount=\S+\s+)*", "", run)
    script = script.partition(" && echo ")[0]  # what it took is written down where a build is
    for name in ("cmake", "ccache"):
        program = folder / name
        program.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
        program.chmod(0o755)
    result = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    words = result.stdout.split("\0")
    words = words[: words.index("--build")]
    return dict(word[2:].split("=", 1) for word in words if word.startswith("-D"))


def test_the_box_builds_for_its_gpu(tmp_path: Path) -> None:
    flags = cmake_flags(box().dockerfile, tmp_path)
    assert flags["GGML_CUDA"] == "ON"
    assert flags["CMAKE_CUDA_ARCHITECTURES"] == "121"
    assert flags["GGML_NATIVE"] == "OFF"
    assert flags["GGML_CUDA_NCCL"] == "OFF"
    assert flags["CMAKE_CUDA_COMPILER_LAUNCHER"] == "ccache"
    # A loadable backend that fails to load is silent.
    assert flags.get("GGML_BACKEND_DL", "OFF") == "OFF"
    # Built without network, and able to start the router's children.
    assert flags["LLAMA_USE_PREBUILT_UI"] == "OFF"
    assert "LLAMA_SUBPROCESS" not in flags


def test_flags_that_llama_cpp_has_not_are_not_there(tmp_path: Path) -> None:
    # ggml takes any misspelt GGML_ name without a word.
    assert not {"GGML_CUDA_NVFP4", "LLAMA_CURL"} & set(cmake_flags(box().dockerfile, tmp_path))


def test_no_cuda_launcher_without_cuda(tmp_path: Path) -> None:
    flags = cmake_flags(box(image_accelerator_flags={"GGML_RPC": "ON"}).dockerfile, tmp_path)
    assert flags["GGML_RPC"] == "ON"
    assert not any("CUDA_COMPILER" in name for name in flags)


@pytest.mark.parametrize(
    "value", ["a b", "$HOME", "$(id)", "`id`", "it's", 'a"b', "a;b", "a\\b", "-Wl,-rpath,/x&y"]
)
def test_a_flag_reaches_cmake_to_the_letter(value: str, tmp_path: Path) -> None:
    described = box(image_accelerator_flags={"CMAKE_CXX_FLAGS": value})
    assert cmake_flags(described.dockerfile, tmp_path)["CMAKE_CXX_FLAGS"] == value


def test_the_boxs_flags_win_over_those_of_all(tmp_path: Path) -> None:
    described = box(image_cmake_flags={"X": "all", "Y": "all"}, image_accelerator_flags={"X": "box"})
    flags = cmake_flags(described.dockerfile, tmp_path)
    assert (flags["X"], flags["Y"]) == ("box", "all")


def test_the_commit_is_fetched_and_checked() -> None:
    (fetch,) = [line for line in instructions(box().dockerfile) if "git " in line and "fetch" in line]
    commit = raw_data()["llama_commit"]
    assert re.search(rf"fetch .* {commit}\b", fetch)
    assert re.search(rf'test "\$\(git .*rev-parse HEAD\)" = {commit}', fetch)
    assert "b11312" not in fetch  # a ref can move
    assert " || " not in fetch


def test_a_repository_is_one_word_of_the_shell() -> None:
    url = "https://example.org/x;touch&y"
    (fetch,) = [line for line in instructions(box(llama_repository=url).dockerfile) if "fetch" in line]
    assert f"'{url}'" in fetch


def test_two_stages_pinned_by_digest() -> None:
    found = instructions(box().dockerfile)
    bases = [line.split()[1] for line in found if line.startswith("FROM ")]
    assert [base for base in bases if base != "runtime"] == [bases[0], bases[1]]
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases[:2])
    runtime = found[[index for index, line in enumerate(found) if line.startswith("FROM")][1] :]
    # Only the programs and what they say of themselves come over: no compiler, no source.
    copies = [line for line in runtime if line.startswith(("COPY", "ADD"))]
    assert copies == [
        "COPY --from=build /out/ /usr/local/bin/",
        "COPY --from=build /proof/build.json /usr/share/gb10/",
        "COPY --from=started /tmp/said/ /usr/share/gb10/",
    ]
    assert not any(line.startswith("RUN") and ("cmake" in line or "git" in line.split()) for line in runtime)


def test_the_server_starts_against_the_stub_of_the_driver_where_there_is_no_gpu() -> None:
    stubs = "/usr/local/cuda/targets/sbsa-linux/lib/stubs"
    (started,) = [line for line in instructions(box().dockerfile) if "help.txt" in line]
    assert f"--mount=type=bind,from=build,source={stubs},target=/driver-stubs" in started
    assert "LD_LIBRARY_PATH=/driver-stubs" in started
    (started,) = [line for line in instructions(box(image_driver_stubs="").dockerfile) if "help.txt" in line]
    assert "driver-stubs" not in started


def test_an_image_that_lists_the_accelerator_without_one_is_no_proof() -> None:
    (started,) = [line for line in instructions(box().dockerfile) if "help.txt" in line]
    assert "{ ! grep '^ *CUDA0:' devices.txt; }" in started


def test_the_code_is_for_the_gpu_or_the_build_ends() -> None:
    text = box().dockerfile
    assert "cuobjdump --list-elf /out/llama-server" in text
    assert "MATCHES [==[^sm_121a$]==]" in text


@pytest.mark.parametrize("value", ["a b", 'a"b', "$HOME", "back\\slash"])
def test_labels_say_flags_to_the_letter(value: str) -> None:
    text = box(image_accelerator_flags={"CMAKE_CXX_FLAGS": value}).dockerfile
    (line,) = [line for line in text.splitlines() if "gb10.flags=" in line]
    said = line.partition("gb10.flags=")[2]
    # What Docker makes of a double-quoted word, in the shell's own reading of one.
    read = subprocess.run(
        ["sh", "-c", f"printf %s {said}"], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(read)["CMAKE_CXX_FLAGS"] == value


def test_the_server_is_not_root() -> None:
    found = instructions(box().dockerfile)
    users = [index for index, line in enumerate(found) if line.startswith("USER ")]
    assert [found[index] for index in users] == ["USER 10103:10103"]
    # All that runs after it is the server itself, as that user.
    (started,) = [line for line in found[users[0] :] if line.startswith("RUN")]
    assert "/usr/local/bin/llama-server --help > help.txt" in started
    assert found[-1] == 'ENTRYPOINT ["/usr/local/bin/llama-server"]'


def test_prepare_commands_run_in_their_stage() -> None:
    found = instructions(
        box(image_build_prepare=["echo build"], image_runtime_prepare=["echo run"]).dockerfile
    )
    second = [index for index, line in enumerate(found) if line.startswith("FROM")][1]
    assert found.index("RUN echo build") < second < found.index("RUN echo run")


def test_every_target_is_built_and_copied() -> None:
    found = "\n".join(instructions(box(image_cmake_targets=["llama-server", "llama-bench"]).dockerfile))
    assert "--target llama-server llama-bench" in found
    assert "/out/llama-bench /build/bin/llama-bench" in found


@pytest.mark.parametrize(("jobs", "word"), [(0, '-j "$(nproc)"'), (6, "-j 6 ")])
def test_jobs(jobs: int, word: str) -> None:
    assert word in box(image_build_jobs=jobs).dockerfile


def test_the_tag_is_stable_and_valid() -> None:
    assert box().image == box(lane_port=10104).image == box(models_parallel=7).image
    assert re.fullmatch(r"gb10/llama-server:b11312-[0-9a-f]{12}", box().image)
    assert box().dockerfile_file.path.startswith("/var/lib/gb10/image/b11312-")


@pytest.mark.parametrize(
    "changes",
    [
        {"llama_commit": "f" * 40},
        {"llama_ref": "b11313"},
        {"llama_repository": "https://example.org/llama.cpp"},
        {"image_build_base": "nvidia/cuda:13@sha256:" + "a" * 64},
        {"image_runtime_base": "nvidia/cuda:13@sha256:" + "a" * 64},
        {"image_build_packages": ["cmake", "git"]},
        {"image_runtime_packages": ["libgomp1"]},
        {"image_cmake_flags": {"GGML_NATIVE": "OFF"}},
        {"image_accelerator_flags": {"GGML_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": "120"}},
        {"image_cmake_targets": ["llama-server", "llama-bench"]},
        {"image_build_prepare": ["true"]},
        {"image_runtime_prepare": ["true"]},
        {"image_build_jobs": 3},
        {"lane_user_id": 10104},
    ],
)
def test_whatever_goes_into_the_image_changes_the_tag(changes: dict[str, object]) -> None:
    assert box(**changes).image != box().image


def test_the_order_of_flags_does_not_change_the_tag() -> None:
    first = box(image_cmake_flags={"A": "1", "B": "2"})
    second = box(image_cmake_flags={"B": "2", "A": "1"})
    assert first.image == second.image


@pytest.mark.parametrize("ref", ["feature/nvfp4", "vü", ".hidden", "-x", "r" * 300, "@"])
def test_any_ref_makes_a_tag_that_docker_takes(ref: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", box(llama_ref=ref).image.rpartition(":")[2])


def test_the_appliance_has_the_converter_of_the_server_s_commit_and_no_cuda() -> None:
    whole = box()
    text = whole.appliance_dockerfile
    lines = instructions(text)
    assert text.count(whole.data.llama_commit) == 3
    assert f'test "$(git -C /src rev-parse HEAD)" = {whole.data.llama_commit}' in text
    (pip,) = [line for line in lines if "pip install" in line]
    words = pip.split()
    assert "--no-deps" in words
    assert "--index-url" not in words
    assert words[words.index("--extra-index-url") + 1] == whole.data.appliance_torch_index
    assert set(whole.data.appliance_requirements) | {whole.data.appliance_torch} <= set(words)
    assert any("torch.version.cuda" in line for line in lines)
    assert lines[-2:] == [
        "USER 10103:10103",
        'ENTRYPOINT ["/opt/appliance/bin/python", "/opt/llama.cpp/convert_hf_to_gguf.py"]',
    ]


def test_the_appliance_s_tag_follows_from_all_that_goes_in() -> None:
    tags = {
        box(**changes).appliance_image
        for changes in (
            {}, {"appliance_torch": "torch==2.0.0"}, {"llama_commit": "a" * 40}, {"appliance_index": "https://x/simple"},
            {"lane_user_id": 5},
        )
    }  # fmt: skip
    assert len(tags) == 5
    assert all(tag.startswith("gb10/llm-appliance:b11312-") for tag in tags)
