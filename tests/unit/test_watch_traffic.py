"""Simulated traffic under the watch's own readers and judgement: what a lane that is well must never be
called, and how soon one at a third of its speed is."""

from __future__ import annotations

import random

import pytest
from gb10_watch_speed import DEEP_TOKENS
from gb10_watch_state import DEGRADED, HEALTHY, Model

from tests.unit.served import BASELINE, NEVER, Client, Lane, Request, Server

THIRD = 3.0
DEEP = 60_000


def client(prompt: int, answer: int, pause: float = 0.3, first: float = 0.0, **more: float) -> Client:
    return Client(lambda: Request(prompt, answer), lambda: pause, first=first, **more)


def crowd(count: int, first: float = 1.0, until: float = NEVER) -> list[Client]:
    return [client(100, 100, 0.1, first + 0.3 * one, until=until) for one in range(count)]


def said_after(lane: Lane) -> float:
    """Seconds until the lane was first called slow."""
    assert lane.changes, "never said"
    assert lane.changes[0][1] == DEGRADED
    return lane.changes[0][0]


# -- a lane that is well ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [1, 3, 8, 60, 300, 2000])
def test_one_client(answer: int) -> None:
    server = Server("a")
    server.clients.append(client(100, answer))
    assert Lane(server).run(900).changes == []


def test_eight_clients_that_come_and_go() -> None:
    server = Server("a")
    for begin in range(10, 900, 45):
        server.clients.extend(crowd(8, begin, begin + 20))
    server.clients.append(client(100, 400, 1.0))
    assert Lane(server).run(900).changes == []


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("answer", [100, 3000])
def test_beside_requests_that_no_look_ever_sees(pause: float, answer: int) -> None:
    # A prompt in one batch and one token: it begins and ends in one step, which is long for all.
    server = Server("a", reads=1500.0)
    server.clients += [client(100, answer), client(1500, 1, pause, first=20)]
    assert Lane(server).run(600).changes == []


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("answer", [60, 1500])
@pytest.mark.parametrize("reads", [400.0, 800.0])
def test_beside_a_model_whose_batches_are_too_long_for_figures(names: str, answer: int, reads: float) -> None:
    chance = random.Random(1)
    servers = {"a": Server("a"), "b": Server("b", reads=reads)}
    servers["a"].clients.append(client(200, answer))
    servers["b"].clients.append(
        Client(lambda: Request(20_000, 100), lambda: chance.uniform(15, 45), first=20)
    )
    assert Lane(*[servers[name] for name in names], share=3.0).run(1200).changes == []


def counted(server: Server, before: float) -> Server:
    """With so many tokens and about as many steps in its counters."""
    server.tokens, server.seconds, server.prompts = before, before / BASELINE, 3 * before
    server.steps = server.busy = before * 1.1
    return server


@pytest.mark.parametrize("before", [1e5, 3e5, 9e5, 3e6, 1e7])
@pytest.mark.parametrize("answer", [300, 3000])
@pytest.mark.parametrize("pauses", [(0.2, 1.5), (1.0, 2.5), (3.2, 3.2)])
def test_beside_such_requests_where_the_counters_hide_steps(
    before: float, answer: int, pauses: tuple[float, float]
) -> None:
    chance = random.Random(1)
    server = counted(Server("a", reads=1000.0), before)
    server.clients += [
        client(100, answer),
        Client(lambda: Request(2000, 1), lambda: chance.uniform(*pauses), first=20.3),
    ]
    assert Lane(server).run(900).changes == []


@pytest.mark.parametrize("pauses", [(1.0, 4.0), (3.0, 5.0)])
def test_canaries_beside_large_embeddings_of_another_model(pauses: tuple[float, float]) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        servers = Server("a"), Server("b", reads=2000.0)
        servers[0].clients.extend(crowd(8, 10, until=60))
        servers[1].clients.append(
            Client(lambda: Request(4000, 0), lambda chance=chance: chance.uniform(*pauses), first=10.3)
        )
        lane = Lane(*servers, share=3.0)
        lane.refusing = frozenset({"b"})
        assert lane.run(1800).changes == []


class DeepServer(Server):
    """A third of its speed beyond 16384 tokens of context, as a model may be by nature."""

    def step_seconds(self) -> float:
        deep = any(request.cached + request.prompt > DEEP_TOKENS for request in self.working)
        return super().step_seconds() * (3 if deep else 1)


@pytest.mark.parametrize(("period", "jitter"), [(10, 0.0), (10, 1.0), (7, 1.0), (15, 3.0), (0, 6.0)])
def test_short_answers_far_into_a_context(period: int, jitter: float) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        server = DeepServer("a")
        server.clients.append(
            Client(
                lambda: Request(100, 35, cached=DEEP),
                lambda chance=chance: chance.uniform(0.0 if period else 2.0, jitter),
                first=5 + seed,
                period=period,
            )
        )
        assert Lane(server).run(3600).changes == []


@pytest.mark.parametrize("late", [0.05, 0.3, 0.6, 3.0])
def test_canaries_that_always_meet_a_visitor_of_another_model(late: float) -> None:
    servers = Server("a"), Server("b", reads=3000.0)
    servers[0].clients.extend(crowd(8, 10, until=60))
    servers[1].clients.append(client(2000, 40, 0.0, first=10 + late, period=10))
    assert Lane(*servers, share=3.0).run(1800).changes == []


@pytest.mark.parametrize("answer", [1, 40])
def test_canaries_that_always_meet_a_visitor_of_the_same_model(answer: int) -> None:
    server = Server("a")
    server.clients.extend(crowd(8, 10, until=60))
    server.clients.append(client(1900, answer, 0.0, first=60.2, period=10))
    assert Lane(server).run(1800).changes == []


def test_a_rate_that_somebody_else_asks_for_too() -> None:
    server = Server("a")
    server.clients.append(client(100, 60))
    lane = Lane(server)
    for look in range(200):
        if look % 3:
            server.metrics()
        lane.look()
    assert lane.changes == []
    assert lane.history.speeds["a"].figure == pytest.approx(BASELINE, rel=0.02)


# -- a lane at a third of its speed -----------------------------------------------------------------------


@pytest.mark.parametrize("answer", [6, 8, 60, 300, 2000])
def test_one_client_is_enough_within_a_minute(answer: int) -> None:
    server = Server("a", slow=THIRD)
    server.clients.append(client(100, answer))
    lane = Lane(server).run(900)
    assert said_after(lane) <= 60
    assert len(lane.changes) == 1, "and it is said once"


@pytest.mark.parametrize("answer", [30, 60, 200, 1000])
def test_guessed_tokens_are_no_second_client(answer: int) -> None:
    server = Server("a", slow=THIRD)
    server.clients.append(Client(lambda: Request(100, answer, a_step=3), lambda: 0.2))
    lane = Lane(server, baseline=3 * BASELINE).run(900)
    assert said_after(lane) <= 60
    assert len(lane.changes) == 1


@pytest.mark.parametrize(("answer", "visitor", "period"), [(60, 40, 20), (60, 40, 30), (1000, 40, 20)])
def test_a_visitor_now_and_then_hides_nothing(answer: int, visitor: int, period: int) -> None:
    chance = random.Random(1)
    server = Server("a", slow=THIRD)
    server.clients += [
        client(100, answer),
        Client(lambda: Request(50, visitor), lambda: period * chance.uniform(0.7, 1.3), first=5),
    ]
    lane = Lane(server).run(1800)
    assert said_after(lane) <= 60
    assert len(lane.changes) == 1


@pytest.mark.parametrize("pause", [4, 8, 20])
def test_an_embedding_now_and_then_hides_nothing(pause: int) -> None:
    chance = random.Random(1)
    servers = Server("a", slow=THIRD), Server("b")
    servers[0].clients.append(client(100, 100))
    servers[1].clients.append(
        Client(lambda: Request(20, 0), lambda: pause * chance.uniform(0.5, 1.5), first=2)
    )
    lane = Lane(*servers)
    lane.refusing = frozenset({"b"})
    assert said_after(lane.run(1800)) <= 60


@pytest.mark.parametrize("before", [0.0, 1e5, 9e5, 1.2e6])
def test_counters_that_are_rounded(before: float) -> None:
    for slow in (1.0, THIRD):
        server = counted(Server("a", slow=slow), before)
        server.clients.append(client(100, 60))
        lane = Lane(server).run(900)
        assert (lane.changes == []) if slow == 1.0 else said_after(lane) <= 60


@pytest.mark.parametrize("pause", [3, 5, 6, 7, 8, 9, 10, 12])
def test_short_answers_with_pauses_are_enough_in_a_while(pause: int) -> None:
    # A figure takes several of them, and the canaries meet the next one.
    chance = random.Random(1)
    server = Server("a", slow=THIRD)
    server.clients.append(Client(lambda: Request(100, 20), lambda: pause * chance.uniform(0.9, 1.1), first=1))
    lane = Lane(server).run(900)
    assert said_after(lane) <= 600
    assert len(lane.changes) == 1


class ScrapedLane(Lane):
    """Somebody else asks for the figures just before each look."""

    def models(self) -> tuple[Model, ...]:
        for server in self.servers:
            server.metrics()
        return super().models()


@pytest.mark.parametrize("answer", [30, 200])
def test_somebody_else_who_always_asks_for_the_rate_first_hides_nothing(answer: int) -> None:
    server = Server("a", slow=THIRD)
    server.clients.append(client(100, answer))
    assert said_after(ScrapedLane(server).run(900)) <= 60


@pytest.mark.parametrize("last", [0, 20])
@pytest.mark.parametrize("where", ["a", "b"])
def test_a_few_tokens_left_over_keep_no_canary_away(last: int, where: str) -> None:
    servers = {"a": Server("a", slow=THIRD), "b": Server("b")}
    servers["a"].clients.extend(crowd(8, until=60))
    if last:
        servers[where].clients.append(client(20, last, NEVER, first=76))
    lane = Lane(*servers.values()).run(600)
    assert said_after(lane) <= 120
    assert len(lane.changes) == 1


def test_only_a_crowd_is_no_proof() -> None:
    # In the docs: whether eight clients are slow each, or the lane is, does not show in their figures.
    server = Server("a", slow=THIRD)
    server.clients.extend(crowd(8))
    lane = Lane(server).run(600)
    assert lane.changes == []
    assert lane.history.speeds["a"].suspect


def test_well_again_under_a_crowd() -> None:
    server = Server("a", slow=THIRD)
    server.clients.extend(crowd(8, until=60))
    lane = Lane(server).run(150)
    assert lane.state == DEGRADED
    server.slow = 1.0
    server.clients.extend(crowd(8, lane.at))
    assert lane.run(60).state == HEALTHY
