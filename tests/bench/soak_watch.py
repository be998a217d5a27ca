"""No false alarm: mixed traffic for an hour, and not one change of state: `make soak-watch`."""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console

from tests.bench.watch import cost, cost_table
from tests.lab import deploying, lane, watching
from tests.lab.errors import LabError
from tests.lab.host import LabHost
from tests.lab.progress import say

MODELS = ("tiny-a", "tiny-b", "small-c")
WORDS = "one two three four five six seven eight nine ten eleven twelve "
PHASE_SECONDS = 45


class Client:
    """Chats through a tunnel; counts what came back."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.key = port, key
        self.answers: Counter[str] = Counter()

    def chat(self, model: str, words: int, tokens: int) -> None:
        content = (WORDS * (words // 12 + 1))[: words * 4]
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": content}],
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            self.answers[str(connection.getresponse().status)] += 1
        except (OSError, http.client.HTTPException) as error:
            self.answers[type(error).__name__] += 1
            time.sleep(0.5)  # the lane is being restarted: thousands of refused connections are no traffic
        finally:
            connection.close()

    def many(
        self,
        clients: int,
        until: float,
        models: tuple[str, ...],
        words: int,
        tokens: int,
        pause_seconds: float = 0.0,
    ) -> None:
        """So many at once until then, each with a pause between an answer and its next question."""

        def work(number: int) -> None:
            chosen = random.Random(number)
            while time.monotonic() < until:
                self.chat(chosen.choice(models), words, tokens)
                time.sleep(pause_seconds)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def baselines(host: LabHost, client: Client) -> dict[str, float]:
    """Tokens per second of each model, one client alone, as the watch sees them: the highest figure, since
    whatever else runs here makes a model slower."""
    found: dict[str, float] = {}
    for model in MODELS:
        until = time.monotonic() + 30
        asking = threading.Thread(target=client.many, args=(1, until, (model,), 20, 32))
        asking.start()
        while asking.is_alive():
            asking.join(4)
            seen = {one["name"]: one["tokens_per_second"] for one in watching.status(host)["models"]}
            found[model] = max(found.get(model, 0.0), seen[model] or 0.0)
    return found


def phase(host: LabHost, client: Client, what: str, told: dict[str, object]) -> None:
    """One kind of traffic for a while. ``told`` is the data of every deploy."""
    until = time.monotonic() + PHASE_SECONDS
    if what == "idle":
        time.sleep(PHASE_SECONDS)
    elif what == "one client":
        client.many(1, until, ("tiny-a",), 20, 32, pause_seconds=1)
    elif what == "long prompts":
        client.many(2, until, ("tiny-b",), 450, 8)
    elif what == "8 clients":
        client.many(8, until, ("tiny-b",), 20, 16)
    elif what == "model swaps":
        client.many(2, until, MODELS, 20, 8, pause_seconds=0.5)
    elif what == "deploy, nothing to do":
        _deploy(host, **told)
    elif what == "deploy, lane restarted":
        # Another unit: the deploy restarts the lane, under traffic.
        threading.Thread(target=client.many, args=(1, until, ("tiny-a",), 20, 32), daemon=True).start()
        _deploy(host, lane_pids_limit=random.randint(1000, 4000), **told)


def _deploy(host: LabHost, **data: object) -> None:
    done = deploying.deploy(host, data=data)
    if done.returncode:
        raise click.ClickException(done.stdout[-2000:])


PHASES = (
    "idle", "one client", "long prompts", "8 clients", "model swaps", "deploy, nothing to do", "8 clients",
    "one client", "deploy, lane restarted", "model swaps",
)  # fmt: skip


@click.command()
@click.option("--name", default="demo", show_default=True, help="A lab host that was deployed.")
@click.option("--minutes", default=60, show_default=True)
def main(name: str, minutes: int) -> None:
    """Exit status 1 when the watch has changed its state or acted."""
    host = LabHost(name)
    try:
        host.up()
        _deploy(host)
        watching.fresh(host)
    except LabError as error:
        raise click.ClickException(str(error)) from None
    key = host.ssh(f"cat {lane.KEY}", sudo=True).stdout.strip()
    with lane.tunnel(host) as port, TemporaryDirectory() as folder:
        client = Client(port, key)
        measured = baselines(host, client)
        say(f"baselines: {measured}")
        models = {name: {"tokens_per_second": speed} for name, speed in measured.items()}
        Path(folder, f"{host.name}.json").write_text(json.dumps({"version": 1, "models": models}))
        told: dict[str, object] = {"watch_baselines": folder}
        _deploy(host, **told)
        watching.fresh(host)
        since = host.ssh("date +%s").stdout.strip()
        began, rounds = time.monotonic(), Counter[str]()
        costs = [cost(host)]
        while time.monotonic() - began < minutes * 60:
            what = PHASES[sum(rounds.values()) % len(PHASES)]
            say(f"{(time.monotonic() - began) / 60:.0f} min: {what}; {dict(client.answers)}")
            phase(host, client, what, told)
            rounds[what] += 1
            costs.append(cost(host))
    line = f"journalctl --unit gb10-watch.service --since @{since} --output short-iso --no-pager"
    journal = host.ssh(line, sudo=True).stdout
    said = [one for one in journal.splitlines() if "healthy" in one or "degraded" in one or "failed" in one]
    acted = watching.actions(host)
    Console().print(cost_table(costs, f"{(costs[-1].at - costs[0].at) / 60:.0f} minutes of mixed traffic"))
    click.echo(f"phases: {dict(rounds)}")
    click.echo(f"answers: {dict(client.answers)}")
    click.echo(f"state changes and reasons: {len(said)}, actions: {len(acted)}")
    for one in (*said, *(json.dumps(entry) for entry in acted)):
        click.echo(one)
    sys.exit(bool(said or acted))


if __name__ == "__main__":
    main()
