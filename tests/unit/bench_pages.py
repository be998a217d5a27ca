"""A report that has everything: two boxes, a history, faults, claims with and without a figure."""

from __future__ import annotations

from gb10.bench import report
from gb10.bench.measure import skipped
from gb10.bench.on_box import FOLDER
from gb10.bench.prompts import ClientLoad
from gb10.bench.result import ClientsRow, Figure, Image, StoryRun
from gb10.bench.story import load_claims
from tests.unit.bench_runs import model, rate, result

PLAN = {
    "total_mib": 122070,
    "reserve_mib": 16384,
    "models_max": 4,
    "models": {"qwen3-coder-next": 57240.4, "gemma-4-31B": 21000.0, "made at home": None},
}
MARKUP = "<script>alert(1)</script>"
# Nothing in it where a line could be broken.
LONG = "a-model-whose-name-nobody-has-thought-of-cutting-UD-Q4_K_XL-00001-of-00002" * 2


def report_page(days: int = 6) -> str:
    """The page, with ``days`` results before the newest."""
    rows = [
        ClientsRow(clients=8, kind="short", prompt_tokens=64, tokens=128, aggregate=210.5, failures=1,
                   first_token=Figure.of([0.2]), reasons=["POST /completion answered 500: <b>full</b>"]),
        ClientsRow(clients=8, kind="long", prompt_tokens=20000, tokens=128, aggregate=12345.6, failures=0,
                   first_token=Figure.of([1234.5])),
        skipped(ClientLoad(8, "long", 20000, 128), "20128 tokens each, a request can have 8192"),
    ]  # fmt: skip
    history = [
        result(day, models={"qwen3-coder-next": model(50 + day, 1), MARKUP: model(9)}) for day in range(days)
    ]
    newest = result(
        days + 1,
        image=Image(tag="gb10/llama-server:b11312", id="sha256:1"),
        plan=PLAN,
        models={
            "qwen3-coder-next": model(
                51.0 + days, 1, coding=rate(9), tools=rate(10), clients=rows, slots={"split": rows}
            ),
            "gemma-4-31B": model(speed=None, device=None, faults=["load: it does not load"]),
            LONG: model(12345.6, 123.4, coding=rate(0), clients=rows, faults=[f"load: /models/{LONG}.gguf"]),
        },
        story={"coder-speed": {"qwen3-coder-next": StoryRun(value=51.3, spread=0.4)}},
    )
    other = result(1, host="other", models={})
    return report.page([*history, newest, other], load_claims(FOLDER / "story.yaml"))
