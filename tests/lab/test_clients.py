"""A real client library over the way that a user's client takes."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.lab import lane
from tests.lab.host import LabHost


@pytest.fixture(scope="module")
def url(settled: LabHost) -> Iterator[str]:
    lane.wait_answering(settled)
    with lane.tunnel(settled) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(scope="module")
def client(settled: LabHost, url: str) -> openai.OpenAI:
    key = settled.ssh(f"cat {lane.KEY}", sudo=True).stdout.strip()
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def test_it_lists_the_models(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"tiny-a", "tiny-b", "small-c"}


def test_it_streams_a_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny-a", messages=[{"role": "user", "content": "hello"}], max_tokens=16, stream=True
    )
    events = list(stream)
    assert len(events) > 3
    assert events[-1].choices[0].finish_reason in ("length", "stop")


def test_an_alias_and_a_model_that_is_not_loaded_yet_work(client: openai.OpenAI) -> None:
    for model in ("alpha", "small-c"):
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4


def test_a_wrong_key_gets_401(url: str) -> None:
    stranger = openai.OpenAI(base_url=url, api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list()
    assert caught.value.status_code == 401


def test_the_port_is_closed_to_the_network(settled: LabHost) -> None:
    import socket

    with pytest.raises(OSError, match=r"refused|timed out"):
        socket.create_connection((str(settled.address), lane.PORT), timeout=3)
