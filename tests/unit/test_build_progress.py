"""A build's plain output, for people."""

from __future__ import annotations

from gb10.build_progress import BuildProgress

HEAD = """\
#0 building with "default" instance using docker driver
#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 2.31kB done
#5 [build 1/6] FROM docker.io/nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:7d2f6a
#5 CACHED
#6 [build 2/6] RUN apt-get update  && DEBIAN_FRONTEND=noninteractive apt-get install -y cmake
#6 2.482 Get:1 http://ports.example.org noble InRelease [256 kB]
""".splitlines()


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def ninja(done: int, total: int = 300) -> str:
    return f"#10 {done / 2:.2f} [{done}/{total}] Building CXX object ggml/src/ggml.cpp.o"


def test_nothing_yet() -> None:
    assert BuildProgress().progress([]) == ""
    assert BuildProgress().progress(HEAD[:3]) == ""


def test_a_step_of_the_dockerfile() -> None:
    said = BuildProgress().progress(HEAD)
    assert said.startswith("step build 2/6: RUN apt-get update")
    assert len(said) < 90


def test_compiling_with_the_time_that_is_left() -> None:
    clock = Clock()
    reader = BuildProgress(clock)
    reader.progress(HEAD)
    assert reader.progress([ninja(1)]) == "compiling 1/300, 0 %"
    clock.now = 50
    assert reader.progress([ninja(60), ninja(101)]) == "compiling 101/300, 33 %, about 1:39 left"
    # Silence: what was known stays.
    assert reader.progress([]).startswith("compiling 101/300")
    assert reader.progress([ninja(300)]) == "compiling 300/300, 100 %, about 0:00 left"


def test_joined_in_the_middle() -> None:
    # What a run before had compiled says nothing about the speed of this one.
    reader = BuildProgress(Clock())
    assert reader.progress([ninja(200)]) == "compiling 200/300, 66 %"
    assert reader.progress([ninja(210)]) == "compiling 210/300, 70 %, about 0:45 left"


def test_what_was_compiled_before_one_joined_took_its_time_too() -> None:
    # All of it is read in one go: by this machine's clock it took no time at all.
    reader = BuildProgress(Clock())
    assert reader.progress([ninja(n) for n in range(1, 112)]) == "compiling 111/300, 37 %, about 1:34 left"


def test_the_next_step_ends_the_compilation() -> None:
    reader = BuildProgress()
    reader.progress([ninja(300)])
    assert (
        reader.progress(["#11 [build 6/6] RUN mkdir /out && strip"])
        == "step build 6/6: RUN mkdir /out && strip"
    )
    assert reader.progress(["#12 [stage-1 3/4] COPY --from=build /out/ /usr/local/bin/"]).startswith(
        "step stage-1 3/4"
    )


SOLVE = 'ERROR: failed to solve: process "/bin/sh -c cmake" did not complete successfully: exit code: 1'


def test_failure_shows_the_telling_lines() -> None:
    lines = [ninja(n).replace("ggml.cpp", "error.cpp") for n in range(30)] + [
        "#10 99.1 /src/ggml/src/ggml-cuda/mmq.cu(12): error: identifier is undefined",
        "#10 99.2 ninja: build stopped: subcommand failed.",
        "------",
        " > [build 5/7] RUN cmake:",
        "99.1 /src/ggml/src/ggml-cuda/mmq.cu(12): error: identifier is undefined",
        "99.2 ninja: build stopped: subcommand failed.",
        "------",
        SOLVE,
    ]
    # Once each, though Docker shows a step's last lines again.
    assert BuildProgress().failure(lines) == [
        "/src/ggml/src/ggml-cuda/mmq.cu(12): error: identifier is undefined",
        "ninja: build stopped: subcommand failed.",
        "did not complete successfully: exit code: 1",
    ]


def test_failure_passes_over_the_steps_beside_it() -> None:
    lines = [
        "#10 1.0 <command-line>: fatal error: /missing.h: No such file or directory",
        *(f"#11 {n}.0 Unpacking libgpg-error{n}:amd64 (1.51-4) ..." for n in range(40)),
        '#10 ERROR: process "/bin/sh -c cmake" did not complete successfully: exit code: 1',
        *(f"#11 {n}.0 Setting up libgpg-error{n}:amd64 (1.51-4) ..." for n in range(40)),
        "#11 CANCELED",
        SOLVE,
    ]
    assert BuildProgress().failure(lines) == [
        "<command-line>: fatal error: /missing.h: No such file or directory",
        "did not complete successfully: exit code: 1",
    ]


def test_a_step_that_names_no_error_has_its_last_words() -> None:
    lines = [
        "#5 0.1 no luck",
        "------",
        " > [stage 2/3] RUN x:",
        "0.1 no luck",
        "------",
        "Dockerfile:3",
        SOLVE,
    ]
    assert BuildProgress().failure(lines) == ["no luck", "did not complete successfully: exit code: 1"]
    assert len(BuildProgress().failure([f"error: {'x' * 5000}"])[0]) == 300


def test_failure_without_a_telling_line_shows_the_last_ones() -> None:
    lines = [ninja(n) for n in range(30)]
    assert BuildProgress().failure(lines) == lines[-12:]
    assert BuildProgress().failure([]) == []
