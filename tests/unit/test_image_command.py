"""``gb10 image`` tells what the box says, and does not take silence for an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyinfra.api.exceptions import PyinfraError

from gb10.commands import image
from gb10.facts.docker import Generations, Images, ImageState
from gb10.faults import BadInput
from gb10.image_file import read_image_file, write_sum
from tests.unit.boxes import FactHost, box
from tests.unit.test_image_file import image_file

GOLDEN = Path(__file__).with_name("golden") / "image"
PROOF = json.loads((GOLDEN / "proof-rpc.json").read_text())
Shown = Callable[..., Result]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """``gb10 image`` on a box that answers with these images."""

    def run(images: Any, *arguments: str, known: Any = None, state: str = "absent") -> Result:
        @contextmanager
        def connected(*_: Any) -> Iterator[FactHost]:
            lanes = known or Generations.default()
            yield FactHost({Images: images, Generations: lanes, ImageState: state})

        monkeypatch.setattr(image, "connected", connected)
        monkeypatch.setattr(image, "desired", lambda _: box())
        return CliRunner().invoke(image.image, arguments)

    return run


def there(**changes: Any) -> dict[str, Any]:
    proof = PROOF | {"id": "sha256:1", "expectation": box().image_expectation}
    entry = {"image": box().image, "id": "sha256:1", "size": 1, "created": "2026", "used_by": []}
    return {**entry, "proof": proof, **changes}


def test_a_proven_one(shown: Shown) -> None:
    done = shown([there()])
    assert done.exit_code == 0, done.output
    assert "with the accelerator it lists RPC0" in done.output
    assert json.loads(shown([there()], "--json").output)["proven"] is True


def test_the_proof_of_another_image_is_not_shown(shown: Shown) -> None:
    done = shown([there(id="sha256:2")])
    assert done.exit_code == 1
    assert done.output.endswith("not proven: the proof is of another image that had this name\n")
    done = shown([there(id="sha256:2")], "--json")
    assert (done.exit_code, json.loads(done.output)["proven"]) == (1, False)


def test_an_export_into_no_folder_is_refused_before_anything(tmp_path: Path) -> None:
    done = CliRunner().invoke(image.image, ["export", str(tmp_path / "no" / "x.tar")])
    assert isinstance(done.exception, BadInput)
    assert "there is no folder" in str(done.exception)


def test_none_is_not_the_same_as_no_answer(shown: Shown) -> None:
    done = shown([])
    assert (done.exit_code, done.output) == (1, f"\n{box().image}: not on the box\n")
    done = shown(None)
    assert isinstance(done.exception, PyinfraError)
    assert "does not say which images it has" in str(done.exception)


def test_an_image_that_was_imported_before_the_first_deploy_is_there(shown: Shown) -> None:
    done = shown([], state="unproven")
    assert done.exit_code == 1
    assert done.output.endswith("on the box, not proven: the next deploy lets it prove itself\n")


def test_an_import_holds_the_box_and_says_what_was_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    @contextmanager
    def connected(*_: Any) -> Iterator[FactHost]:
        yield FactHost({})

    monkeypatch.setattr(image, "connected", connected)
    monkeypatch.setattr(image, "desired", lambda _: box())
    monkeypatch.setattr(image, "_line", lambda *_: str(10**12))
    monkeypatch.setattr(image.deploy_lock, "take", lambda _, what: done.append(f"held for {what}"))
    monkeypatch.setattr(image, "_send", lambda *_: done.append("sent"))
    path = image_file(tmp_path, [box().image])
    said = CliRunner().invoke(image.image, ["import", str(path)]).output
    assert done == ["held for gb10 image import", "sent"]
    assert "no image.tar.sha256 beside it, so whether it was changed is not known" in said
    write_sum(path, read_image_file(path).sha256)
    assert "not known" not in CliRunner().invoke(image.image, ["import", str(path)]).output
