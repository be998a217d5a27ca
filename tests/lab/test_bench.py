"""The bench on a real host: figures, the sandbox's walls, and a box that is afterwards as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gb10.bench.on_box import BoxUnderTest
from gb10.bench.result import Verdict
from gb10.bench.result import load as load_result
from gb10.bench.sandbox import ROOT, Job
from gb10.remote import connected
from tests.lab import deploying, lane, paths
from tests.lab.host import LabHost

pytestmark = pytest.mark.alone

GB10 = Path(sys.executable).with_name("gb10")
# Short answers: models of random weights never end by themselves.
SHORT = ("--quick", "--runs", "2", "--tasks", "1", "--answer-limit", "16", "--long", "300")
STORY = """
slots-speed:
  says: More slots serve more clients.
  unit: aggregate tok/s
  sides:
    parallel 2: {model: tiny-b, keys: {parallel: "2", kv-unified: "true"}}
    as it is: {model: tiny-b, story: 99}
not-here:
  says: A model that nobody has.
  unit: tok/s
  sides:
    it: {model: gemma-4-31B, story: 55.4}
"""


@pytest.fixture(scope="module")
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


@pytest.fixture(scope="module")
def under_test(host: LabHost) -> Iterator[BoxUnderTest]:
    with connected(paths.REPOSITORY / deploying.INVENTORY, host.name) as box:
        yield BoxUnderTest(box)


def command(host: LabHost, *words: object) -> list[str]:
    inventory = ("--inventory", str(deploying.INVENTORY), "--host", host.name)
    return [str(GB10), "bench", *map(str, words), *inventory]


def bench(host: LabHost, *words: object) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it, its output and errors together."""
    return subprocess.run(
        command(host, *words),
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


@contextmanager
def begun(host: LabHost, *words: object) -> Iterator[subprocess.Popen[str]]:
    """The command in the background, ended with the block."""
    process = subprocess.Popen(
        command(host, *words),
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def loaded(host: LabHost) -> list[str]:
    return sorted(name for name, state in lane.models(host).items() if state == "loaded")


def presets(host: LabHost) -> str:
    """The preset file with owner and mode, and the hash of what the router has read."""
    line = f"stat -c '%u:%g %a' {lane.PRESETS}; cat {lane.PRESETS} /run/{lane.CONTAINER}/presets.sha256"
    return host.ssh(line, sudo=True).stdout


def left_behind(host: LabHost) -> str:
    """Units, files and processes of the bench that are still there."""
    line = (
        "systemctl list-units --all --no-legend --plain 'gb10-sandbox*';"
        f" ls -d {ROOT} /etc/llamacpp-playground/*hold* 2>/dev/null; pgrep -af '[p]ython3 -I -c'"
    )
    return host.ssh(line, sudo=True, check=False).stdout


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def measured(host: LabHost, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A whole short bench: the result file, the baselines, the output."""
    folder = tmp_path_factory.mktemp("bench")
    before = (loaded(host), presets(host))
    done = bench(
        host, "tiny-b", "alpha", *SHORT, "--slots", "--save-baseline",
        "--out", folder / "results", "--baselines", folder / "baselines",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert (loaded(host), presets(host)) == before
    assert left_behind(host).strip() == ""
    (path,) = (folder / "results").iterdir()
    return path, folder / "baselines" / f"{host.name}.json", done.stdout


def test_a_bench_from_end_to_end(host: LabHost, measured: tuple[Path, Path, str]) -> None:
    path, _, output = measured
    result = load_result(path)
    assert set(result.models) == {"tiny-a", "tiny-b"}  # alpha is a name of tiny-a
    for name, found in result.models.items():
        assert found.faults == [], name
        assert found.load is not None
        assert found.load.seconds > 0
        assert found.speed is not None
        assert len(found.speed.generation.runs) == 2
        assert found.speed.tokens == 32  # no earlier end
        assert found.speed.prompt_tokens == 256  # nothing from a cache
        assert found.device is not None
        assert (found.device.state, found.device.name) == ("answered", "RPC0")
        # Random weights write no program and call no tool.
        assert found.coding is not None
        assert (found.coding.passed, found.coding.of) == (0, 1)
        assert found.tools is not None
        assert (found.tools.passed, found.tools.of) == (0, 1)
        assert all(task.why for rate in (found.coding, found.tools) for task in rate.tasks.values())
    many = {(row.kind, row.clients): row for row in result.models["tiny-b"].clients}
    assert set(many) == {(kind, count) for kind in ("short", "long") for count in (1, 4)}
    assert all(row.failures == 0 and row.aggregate and not row.skipped for row in many.values())
    assert set(result.models["tiny-b"].slots) == {"unified", "split"}
    assert "it has one slot" in output


def test_the_result_says_what_was_measured(
    host: LabHost, measured: tuple[Path, Path, str], under_test: BoxUnderTest
) -> None:
    result = load_result(measured[0])
    box = under_test.box
    assert result.image.tag == box.image
    assert result.image.id.startswith("sha256:")
    assert result.presets == box.presets_digest
    assert result.llama.commit == box.data.llama_commit
    assert result.driver
    assert set(result.plan.models) == {"tiny-a", "tiny-b", "small-c"}


def test_a_baseline_is_what_the_watch_reads(measured: tuple[Path, Path, str]) -> None:
    result = load_result(measured[0])
    content: Any = json.loads(measured[1].read_text())
    assert content["version"] == 1
    entry = content["models"]["tiny-b"]
    assert set(entry) == {"tokens_per_second", "spread", "image", "presets", "measured"}
    speed = result.models["tiny-b"].speed
    assert speed is not None
    assert entry["tokens_per_second"] == speed.generation.median


def test_the_key_is_nowhere(host: LabHost, measured: tuple[Path, Path, str]) -> None:
    key = host.ssh(f"cat {lane.KEY}", sudo=True).stdout.strip()
    assert key
    for text in (measured[0].read_text(), measured[1].read_text(), measured[2]):
        assert key not in text


def test_compare_and_report_of_real_results(
    host: LabHost, measured: tuple[Path, Path, str], tmp_path: Path
) -> None:
    same = subprocess.run(
        [str(GB10), "bench", "compare", str(measured[0]), str(measured[0])], capture_output=True, check=False
    )
    assert same.returncode == 0, same.stderr
    out = tmp_path / "report.html"
    line = [str(GB10), "bench", "report", "--results", str(measured[0].parent), "--out", str(out)]
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    assert "tiny-b" in out.read_text()


# -- the sandbox -------------------------------------------------------------------------------------

HARMLESS = "def add(a, b):\n    return a + b\n"
FORKS = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
ROUTER = ("127.0.0.1", lane.PORT)
DOCKER = "/run/docker.sock"


def judged(under_test: BoxUnderTest, code: str, tests: str = "", seconds: float = 5) -> Verdict:
    return under_test.judge(Job(code, tests, seconds))


def test_a_right_answer_passes_and_a_wrong_one_does_not(under_test: BoxUnderTest) -> None:
    assert judged(under_test, HARMLESS, "assert add(1, 2) == 3") == Verdict(passed=True)
    wrong = judged(under_test, HARMLESS, "assert add(1, 2) == 4")
    assert (wrong.passed, wrong.why) == (False, "assert add(1, 2) == 4: AssertionError")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param("while True: pass", "still running after 3 s", id="endless loop"),
        pytest.param("import time\ntime.sleep(1000)", "still running after 3 s", id="sleeps"),
        pytest.param(FORKS, "still running after 3 s", id="fork bomb"),
        pytest.param("x = bytearray(2 << 30)", "MemoryError", id="memory"),
        pytest.param("x = b'1' * 4096\nf = open('a', 'wb')\nwhile True: f.write(x)", "File too large",
                     id="large file"),
        pytest.param("for n in range(9): open(f'{n}', 'wb').write(b'x' * (4 << 20))", "No space left",
                     id="many files"),
        pytest.param("open('/etc/gb10-was-here', 'w')", "Read-only file system", id="writes outside"),
        pytest.param("open('/usr/bin/python3', 'ab')", "Permission denied|Read-only", id="writes a program"),
        pytest.param(f"open('{lane.KEY}').read()", "No such file", id="reads the key"),
        pytest.param("open('/etc/passwd').read()", "No such file", id="reads the accounts"),
        pytest.param(f"import socket\nsocket.create_connection({ROUTER})", "OSError", id="asks the router"),
        pytest.param(f"import socket\nsocket.socket(socket.AF_UNIX).connect('{DOCKER}')", "No such file",
                     id="asks docker"),
        pytest.param("import os\nos.setuid(0)", "PermissionError", id="becomes root"),
        pytest.param("import sys\nsys.exit(0)", "SystemExit", id="leaves early"),
        pytest.param("import os\nos._exit(0)", "before its tests", id="leaves at once"),
        pytest.param("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "", id="kills its judge"),
    ],
)  # fmt: skip
def test_what_an_answer_cannot_do(host: LabHost, under_test: BoxUnderTest, code: str, why: str) -> None:
    verdict = judged(under_test, code, "", 3)
    assert not verdict.passed
    assert any(word in verdict.why for word in why.split("|")), verdict.why
    assert "gb10-sandbox-" not in host.ssh("systemctl list-units --all --no-legend").stdout
    assert host.ssh("ls /etc/gb10-was-here", check=False).returncode != 0


def test_what_it_starts_ends_with_it(host: LabHost, under_test: BoxUnderTest) -> None:
    orphan = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(1000)\n"
    assert judged(under_test, orphan).passed  # nothing was tested, and nothing may stay
    groups = host.ssh("cat /proc/[0-9]*/cgroup", sudo=True, check=False).stdout
    assert "gb10-sandbox-" not in groups


def test_it_writes_in_one_small_folder_only(under_test: BoxUnderTest) -> None:
    looks = """
import os
found = []
for folder, _, _ in os.walk("/"):
    try:
        open(folder + "/was-here", "w")
        found.append(folder)
    except OSError:
        pass
"""
    assert judged(under_test, looks, "assert found == ['/work'], found", 30) == Verdict(passed=True)
    # And the next one finds nothing there.
    assert judged(under_test, "import os", "assert os.listdir('/work') == []") == Verdict(passed=True)


def test_the_box_lives_on(host: LabHost, under_test: BoxUnderTest) -> None:
    assert lane.chat(host)[0] == 200
    under_test.clean()
    assert left_behind(host).strip() == ""


# -- when it is cut --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_other_presets_are_put_back(host: LabHost, tmp_path: Path, number: signal.Signals) -> None:
    before = (loaded(host), presets(host))
    words = ("tiny-b", "--part", "load", "--part", "slots", *SHORT, "--long", "1500", "--out", tmp_path)
    with begun(host, *words) as process:
        wait_for(lambda: presets(host) != before[1])
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    # The box does it by itself, whoever is left at this end.
    wait_for(lambda: presets(host) == before[1])
    wait_for(lambda: left_behind(host).strip() == "")
    if number == signal.SIGINT:
        assert process.returncode == 130, output
        assert loaded(host) == before[0]
        assert "The box is as it was" in output
        (path,) = tmp_path.iterdir()
        assert load_result(path).interrupted
    else:
        # Nobody is left to load what was loaded; the next request does.
        assert process.returncode == -signal.SIGKILL
        assert lane.chat(host)[0] == 200
        for name in set(loaded(host)) - set(before[0]):
            lane.curl(host, "/models/unload", {"model": name})


def test_one_at_a_time(host: LabHost, tmp_path: Path) -> None:
    long_answers = ("--part", "coding", "--answer-limit", "8000")
    with begun(host, "tiny-b", *long_answers, "--out", tmp_path) as process:
        wait_for(lambda: "tiny-b" in loaded(host))
        for second in (
            bench(host, "tiny-a", "--part", "load", "--out", tmp_path),
            deploying.deploy(host),
            deploying.gb10(host, "rollback", "--yes"),
        ):
            assert second.returncode != 0
            assert "the box is held by" in second.stdout
            assert "(gb10 bench)" in second.stdout
            assert "Traceback" not in second.stdout
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    # The answer that was being written ended with it: its model did not have to be killed.
    assert "Interrupted. The box is as it was." in output
    assert "tiny-b" not in loaded(host)
    assert deploying.changed(deploying.deploy(host).stdout) == []


def test_a_router_that_goes_away_is_one_line(host: LabHost, tmp_path: Path) -> None:
    long_answers = ("--part", "load", "--part", "coding", *SHORT, "--answer-limit", "8000")
    try:
        with begun(host, "tiny-b", *long_answers, "--out", tmp_path) as process:
            wait_for(lambda: "tiny-b" in loaded(host))
            time.sleep(1)
            host.ssh(f"systemctl stop {lane.UNIT}", sudo=True)
            output, _ = process.communicate(timeout=120)
    finally:
        host.ssh(f"systemctl start {lane.UNIT}", sudo=True)
        lane.wait_answering(host)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert "no longer answers" in output
    (path,) = tmp_path.iterdir()
    assert load_result(path).models["tiny-b"].load is not None


def test_the_story_with_what_is_there(host: LabHost, tmp_path: Path) -> None:
    claims = tmp_path / "story.yaml"
    claims.write_text(STORY)
    before = (loaded(host), presets(host))
    done = bench(host, "story", "--quick", "--claims", claims, "--out", tmp_path / "results")
    assert done.returncode == 0, done.stdout
    assert (loaded(host), presets(host)) == before
    (path,) = (tmp_path / "results").iterdir()
    told = load_result(path).story
    assert all(run.value for run in told["slots-speed"].values())
    assert told["not-here"]["it"].value is None
    row = next(line for line in done.stdout.splitlines() if "nobody has" in line)
    assert "55.4" in row
    assert "not measured" in row


def test_a_busy_model_is_not_pushed_out(host: LabHost, tmp_path: Path) -> None:
    body = json.dumps({"model": "tiny-a", "prompt": "x", "n_predict": 500, "stream": True})
    # Several clients of one slot: at any time one of them is answered.
    script = f"""
key=$(cat {lane.KEY})
for client in 1 2 3; do
  while :; do
    curl -s -o /dev/null -H "Authorization: Bearer $key" -d '{body}' http://127.0.0.1:{lane.PORT}/completion
  done &
done
wait
"""
    host.ssh("cat > /run/busy.sh", sudo=True, stdin=script)
    host.ssh("systemd-run --quiet --collect --unit=busy sh /run/busy.sh", sudo=True)
    try:
        wait_for(lambda: _busy(host))
        done = bench(host, "tiny-b", "--part", "load", "--out", tmp_path / "asked")
        beside = bench(host, "tiny-b", "--part", "speed", *SHORT, "--yes", "--out", tmp_path / "beside")
    finally:
        host.ssh("systemctl stop busy", sudo=True)
    assert done.returncode == 1
    assert "tiny-a answers 1 request now" in done.stdout
    assert list((tmp_path / "asked").iterdir()) == []
    # Who goes on all the same gets no figure of two.
    assert beside.returncode == 1
    assert "tiny-a answers somebody else" in beside.stdout
    (path,) = (tmp_path / "beside").iterdir()
    assert load_result(path).models["tiny-b"].speed is None


def _busy(host: LabHost) -> bool:
    status, content = lane.curl(host, "'/slots?model=tiny-a&autoload=false'")
    return status == 200 and any(slot["is_processing"] for slot in json.loads(content))
