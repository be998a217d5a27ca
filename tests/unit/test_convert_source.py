"""Which files of a repository are the source, and repositories that cannot be one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gb10.convert_source import Source, read_source
from gb10.hub import HubClient, HubError
from tests.lab import nvfp4
from tests.lab.hub import Hub, HubFile, HubRepo, HubServer

COMMIT = "a" * 40
Read = Callable[[], Source]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nvfp4.write(nvfp4.Nvfp4Spec("x", layers=2, parts=2), tmp_path)
    return tmp_path


@pytest.fixture
def read(folder: Path) -> Iterator[Read]:
    """Reads the folder as a repository of a hub, as it is at the call."""
    with HubServer(Hub()) as server:

        def look() -> Source:
            files = tuple(HubFile(path.name, path) for path in sorted(folder.iterdir()))
            server.hub.repos["lab/x"] = HubRepo("lab/x", COMMIT, files)
            return read_source(HubClient(server.url), "lab/x", "main", lambda _: None)

        yield look


def test_the_files_that_are_taken(folder: Path, read: Read) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"the same weights once more")
    (folder / "modeling_x.py").write_text("raise SystemExit")
    source = read()
    names = {file.file for file in source.files}
    assert {"config.json", "tokenizer.model", "hf_quant_config.json"} <= names
    assert {name for name in names if name.endswith("safetensors")} == {
        f"model-0000{number}-of-00002.safetensors" for number in (1, 2)
    }
    assert not {"consolidated.safetensors", "modeling_x.py", "README.md", "pytorch_model.bin"} & names
    config = json.loads(source.config)
    assert (source.commit, config["architectures"]) == (COMMIT, ["LlamaForCausalLM"])
    assert "quantization_config" not in config
    assert source.size == sum((folder / name).stat().st_size for name in names)
    assert all(file.sha256 and file.revision == COMMIT for file in source.files)


def test_the_index_says_which_files_hold_the_weights(folder: Path, read: Read) -> None:
    (folder / "model-old.safetensors").write_bytes(b"of an earlier upload")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "nvfp4-00002"))
    (folder / "model-00002-of-00002.safetensors").rename(folder / "nvfp4-00002-of-00002.safetensors")
    weights = [file.file for file in read().files if file.file.endswith(".safetensors")]
    assert weights == ["model-00001-of-00002.safetensors", "nvfp4-00002-of-00002.safetensors"]


def test_names_that_the_downloader_does_not_take_are_left_out(folder: Path, read: Read) -> None:
    odd = ("x (1).json", "tokenizer+x.json", "config.json.part.json", "ü.txt")
    for name in (*odd, "apart.json"):
        (folder / name).write_text("{}")
    names = {file.file for file in read().files}
    assert not names & set(odd)
    assert {"apart.json", "config.json"} <= names


def _odd_weights(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model (1).safetensors").write_bytes(b"")


def _deep_config(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 200_000)


def _without_part(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def _cut(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("[")


def _only_gguf(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "x.gguf").write_bytes(b"GGUF")


def _index_of_another(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"no.such": "model-00001-of-00002.safetensors"}})
    )


def _index_elsewhere(folder: Path) -> None:
    weight_map = {"a": "../../etc/x.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _index_without_map(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            _without_part,
            "model-00002-of-00002.safetensors is missing, and model.safetensors.index.json names it",
        ),
        (_cut, "model-00002-of-00002.safetensors: cut off: its header says"),
        (_no_config, "no config.json in it"),
        (_broken_config, "config.json is no JSON object"),
        (_deep_config, "config.json is no JSON object"),
        (_odd_weights, "'model (1).safetensors' is no plain file name"),
        (_only_gguf, "its GGUF files are served as they are"),
        (_index_of_another, "the tensor no.such is in no file"),
        (_index_without_map, "has no weight_map of safetensors files"),
        (_index_elsewhere, "has no weight_map of safetensors files"),
    ],
)
def test_what_cannot_be_converted(
    folder: Path, read: Read, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(folder)
    with pytest.raises(HubError, match=r"^lab/x: [^\n]*$") as caught:
        read()
    assert words in str(caught.value)
