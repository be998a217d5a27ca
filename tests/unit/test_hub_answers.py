"""What a hub answers is not believed where it says itself what it should be."""

from __future__ import annotations

import hashlib
import json
from email.message import Message

import pytest

from gb10.hub import HubClient, HubError
from gb10.web import Answer

LISTED = b'{"a": 1}'
BLOB = hashlib.sha1(b"blob 8\0" + LISTED, usedforsecurity=False).hexdigest()


def hub(monkeypatch: pytest.MonkeyPatch, came: bytes, **sibling: object) -> HubClient:
    """A hub that lists ``x.json``, which is not in LFS, and sends ``came`` for it."""
    client = HubClient("http://hub.test")
    listing = {"sha": "a" * 40, "siblings": [{"rfilename": "x.json", "size": 8, **sibling}]}

    def get(url: str, headers: object = None) -> Answer:
        return Answer(200, Message(), json.dumps(listing).encode() if "/api/" in url else came)

    monkeypatch.setattr(client._web, "get", get)
    return client


def test_a_file_without_a_sha256_is_what_the_hub_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in ({}, {"blobId": BLOB}, {"blobId": None}):
        locked = hub(monkeypatch, LISTED, **known).locked("o/m", "main", "x.json")
        assert (locked.size, locked.sha256) == (8, hashlib.sha256(LISTED).hexdigest())


@pytest.mark.parametrize("came", [b"<html>please log in</html>", b"", b'{"a": 2}'])
def test_a_login_page_is_not_locked(monkeypatch: pytest.MonkeyPatch, came: bytes) -> None:
    with pytest.raises(HubError, match="is not what the hub lists") as caught:
        hub(monkeypatch, came, blobId=BLOB).locked("o/m", "main", "x.json")
    assert "\n" not in str(caught.value)


def test_the_id_of_an_lfs_file_is_of_its_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hub(monkeypatch, b"", blobId="b" * 40, lfs={"sha256": "c" * 64})
    assert found.locked("o/m", "main", "x.json").sha256 == "c" * 64


def test_a_list_without_end_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    client = HubClient("http://hub.test")
    monkeypatch.setattr(client._web, "get", lambda _: Answer(200, Message(), b"[" * 200_000))
    with pytest.raises(HubError, match="does not answer as a model hub does"):
        client.revision("o/m", "main")
