"""Taking over a router: the project's own rendering comes back as it was, and the command with its
answers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gb10.adopt import CATALOGUE_FILE, DATA_FILE, Adoption, Base, adopt, read_old, result_faults
from gb10.adopt_report import Note
from gb10.boxdata_source import read_box_data
from gb10.catalogue import load_catalogue
from gb10.commands.adopt import adopt_command
from gb10.desired import Desired
from gb10.faults import BadInput
from gb10.inventory import CONNECTION_KEYS
from gb10.lock import load_lock
from gb10.rendering import TOP
from tests.unit.boxes import box, raw_data
from tests.unit.catalogues import DEFAULTS, OPTIONS

HERE = Path(__file__).parent / "adopt"


def own_data(**changes: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in raw_data(**changes).items()
        if not key.startswith("_") and key not in CONNECTION_KEYS
    }


def described(data: dict[str, Any], catalogue: Path, lock: Path) -> Desired:
    checked = read_box_data(data, host="box", places={})
    return Desired(checked, load_catalogue(catalogue, OPTIONS), load_lock(lock))


def taken_over(whole: Desired, data: dict[str, Any]) -> Adoption:
    notes: list[Note] = []
    old = read_old(whole.unit_file.content, whole.unit, OPTIONS, notes)
    base = Base(data, whole.catalogue, whole.lock)
    return adopt(whole.presets_file.content, "models.ini", old, base, OPTIONS, notes=notes)


def again(whole: Desired, data: dict[str, Any], folder: Path) -> tuple[Desired, Adoption]:
    """What a deploy would make of the adopted files, over the same base data."""
    adoption = taken_over(whole, data)
    (folder / CATALOGUE_FILE).write_text(adoption.catalogue)
    (folder / DATA_FILE).write_text(adoption.data)
    assert result_faults(folder, adoption, Base(data, whole.catalogue, whole.lock), OPTIONS) == []
    written = {key: value for key, value in runpy.run_path(str(folder / DATA_FILE)).items() if key[0] != "_"}
    assert written == adoption.values
    checked = read_box_data({**data, **written}, host="box", places={})
    catalogue = load_catalogue(folder / CATALOGUE_FILE, OPTIONS)
    return Desired(checked, catalogue, whole.lock), adoption


def assert_same(whole: Desired, data: dict[str, Any], folder: Path) -> None:
    second, adoption = again(whole, data, folder)
    for first_file, second_file in zip(whole.files(), second.files(), strict=True):
        assert second_file == first_file
    assert [note for note in adoption.notes if note.kind != "taken"] == []


def test_the_own_rendering_of_the_box_comes_back(tmp_path: Path) -> None:
    assert_same(box(), own_data(), tmp_path)


def test_other_data_of_a_box_come_back(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "lane_name": "other-lane",
        "lane_config_dir": "/etc/other",
        "lane_address": "0.0.0.0",
        "lane_port": 8099,
        "lane_user_id": 1234,
        "lane_models_max": 1,
        "lane_pids_limit": 512,
        "lane_stop_seconds": 77,
        "lane_environment": {"WORDS": 'it\'s 100% $HOME "x"', "LLAMA_ARG_THREADS_HTTP": "3"},
        "accelerator_cdi": "nvidia.com/gpu=0",
        "accelerator_device": "CUDA1",
        "models_dir": "/data/models",
        "models_found_cache": "/data/hub",
        "models_found_folder": "/data/loose",
    }
    whole = described(own_data(**changes), TOP / "models.yaml", TOP / "models.lock")
    second, adoption = again(whole, own_data(), tmp_path)
    assert {key: adoption.values[key] for key in changes} == changes
    assert second.unit_file == whole.unit_file
    assert second.presets_file == whole.presets_file
    assert second.lane_file == whole.lane_file


def test_the_own_rendering_of_the_lab_comes_back(tmp_path: Path) -> None:
    lab = {key: value for key, value in runpy.run_path(str(TOP / "group_data/lab.py")).items()
           if key in own_data()}  # fmt: skip
    data = own_data(**lab)
    whole = described(data, TOP / data["catalogue"], TOP / data["models_lock"])
    assert_same(whole, data, tmp_path)


def test_every_kind_of_entry_comes_back(tmp_path: Path) -> None:
    catalogue = tmp_path / "first.yaml"
    catalogue.write_text(
        DEFAULTS.replace("ctx-size: 4096", "ctx-size: 8192")
        + "  sampling: {top-p: 0.9}\n  options: {flash-attn: 'on', threads: 4}\n"
        "models:\n"
        "  a:\n    repo: lab/a\n    file: q4/a-00001-of-00002.gguf\n    aliases: [x, b.2]\n    tags: [t, u]\n"
        "    projector: mmproj-F16.gguf\n    draft: {repo: lab/d, file: d.gguf}\n"
        "    chat-template: {repo: lab/t, file: t.jinja}\n    load-on-startup: true\n"
        "  b:\n    repo: lab/b\n    file: b.gguf\n    chat-template: chatml\n    parallel: 4\n"
        "    kv-unified-per-slot: 2048\n    cache-type: q8_0\n    cache-ram: 0\n    n-gpu-layers: 12\n"
        "    load-mode: mmap\n    sampling: {temp: 0.70, seed: 7}\n"
        "    options: {chat-template-kwargs: {enable_thinking: false}, jinja: false, flash-attn: auto}\n"
        "  c:\n    repo: lab/c\n    file: c.gguf\n    parallel: 2\n    kv-unified: false\n"
    )
    data = own_data(lane_models_max=2)
    whole = described(data, catalogue, TOP / "models.lock")
    # The plan needs headers that no lock has for these: only the preset file is compared.
    base = Base(data, whole.catalogue, whole.lock)
    adoption = adopt(whole.presets_file.content, "models.ini", None, base, OPTIONS)
    (tmp_path / CATALOGUE_FILE).write_text(adoption.catalogue)
    second = described(data, tmp_path / CATALOGUE_FILE, TOP / "models.lock")
    assert second.presets_file.content == whole.presets_file.content


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(adopt_command, list(arguments))
    if isinstance(result.exception, BadInput):
        return 1, str(result.exception)
    return result.exit_code, result.output


@pytest.fixture
def nasty(tmp_path: Path) -> dict[str, Any]:
    """The report on the hand-made router beside this file, and what was written."""
    rc, text = run("--models-ini", str(HERE / "models.ini"), "--unit", str(HERE / "llama.service"),
                   "--out", str(tmp_path / "out"), "--json")  # fmt: skip
    assert rc == 0, text
    report: dict[str, Any] = json.loads(text)
    catalogue, data = (tmp_path / "out" / name for name in (CATALOGUE_FILE, DATA_FILE))
    report["catalogue"], report["data"] = catalogue.read_text(), data.read_text()
    report["model"] = load_catalogue(catalogue, OPTIONS).model
    report["values"] = runpy.run_path(str(data))
    return report


def why(report: dict[str, Any], kind: str, text: str) -> str:
    """The reason of the one line of a kind that names the text."""
    rows = [row for row in report[kind] if text in row["what"]]
    (row,) = [row for row in rows if row["what"] == text] or rows
    return str(row["why"])


def test_a_hand_made_router_becomes_a_catalogue(nasty: dict[str, Any]) -> None:
    assert nasty["ok"] is True
    coder, gemma = nasty["model"]("qwen3-coder-next"), nasty["model"]("gemma-4-31B")
    assert (coder.repo, coder.file) == (
        "unsloth/Qwen3-Coder-Next-GGUF",
        "Qwen3-Coder-Next-UD-Q4_K_XL.gguf",
    )
    assert (coder.ctx_size, coder.parallel, coder.kv_unified) == (212992, 8, True)
    assert coder.aliases == ("coder",)
    assert coder.load_on_startup
    assert gemma.revision == "c1ac76e99d5513b141e8adde7288b85c3f9c32ec"
    assert (gemma.parallel, gemma.kv_unified) == (2, False)
    assert gemma.projector.file == "mmproj-F16.gguf"
    assert dict(gemma.sampling) == {"temperature": "0.7"}
    assert nasty["model"]("gpt-oss-20b").repo == "unsloth/gpt-oss-20b-GGUF"
    assert not nasty["model"]("finetune").enabled
    assert nasty["model"]("nameless-tag").file == "n.gguf"


def test_comments_survive_and_secrets_do_not(nasty: dict[str, Any]) -> None:
    text = nasty["catalogue"]
    assert "# The router of the box under the desk." in text
    assert "# agents send seven requests at once" in text
    assert "ctx-size: 212992 # 24K prompts" in text
    everything = json.dumps({key: value for key, value in nasty.items() if key not in ("model", "values")})
    for secret in ("sk-1234567890", "hf_abcdefghijkl", "topsecret", "also-a-secret"):
        assert secret not in everything


def test_what_was_dropped_and_why(nasty: dict[str, Any]) -> None:
    assert "load-mode = none" in why(nasty, "dropped", "[*] no-mmap")
    assert "--spec-draft-n-max" in why(nasty, "dropped", "draft-max")
    assert "drops it" in why(nasty, "dropped", "ssl-key-file")
    assert "overwrites" in why(nasty, "dropped", "host = 0.0.0.0")
    assert "only `stop` was in force" in why(nasty, "dropped", "reasoning-budget-message")
    assert "no whole value" in why(nasty, "dropped", "chat-template-kwargs")
    assert "own default" in why(nasty, "dropped", "jinja = true")
    assert "the same as in [*]" in why(nasty, "dropped", "[gemma-4-31B] flash-attn")
    assert "the later in that order" not in why(nasty, "dropped", "[qwen3-coder-next] c = 4096")
    assert "did you mean `top-k`?" in why(nasty, "dropped", "topk")
    assert "stands again in line" in why(nasty, "dropped", "[gpt-oss-20b]")
    assert "second router" in why(nasty, "dropped", "[no-model]")
    assert "limits nothing" in why(nasty, "dropped", "MemoryMax")
    assert "a secret" in why(nasty, "dropped", "hf-token")
    assert "wins over every section" in why(nasty, "dropped", "[gemma-4-31B] batch-size")


def test_what_a_deploy_changes_on_purpose(nasty: dict[str, Any]) -> None:
    assert "127.0.0.1" in why(nasty, "changed", "published 0.0.0.0:10103:8080")
    assert "clients must send it" in why(nasty, "changed", "no API key")
    assert "rights" in why(nasty, "changed", "--privileged")
    assert "by CDI" in why(nasty, "changed", "--gpus all")
    assert "accelerator_device" in why(nasty, "changed", "no device is named")
    assert "quotes are a part" in why(nasty, "changed", '"/models/my-finetune.gguf"')
    assert "keeps the blank" in why(nasty, "changed", "[finetune ]")
    assert "clients must use" in why(nasty, "changed", "alias gpt-4:latest")
    assert "CPU" in why(nasty, "changed", "cache-type-k = q5_1")
    assert "off" in why(nasty, "changed", "fit is on")


def test_data_of_the_lane(nasty: dict[str, Any]) -> None:
    values = nasty["values"]
    assert values["lane_name"] == "llama"
    assert (values["lane_address"], values["lane_port"]) == ("127.0.0.1", 10103)
    assert values["lane_models_max"] == 3
    assert values["models_dir"] == "/data/models"
    assert values["models_search"] == ["/data/hub"]
    assert values["models_found_cache"] == "/data/hub"
    assert values["lane_stop_seconds"] == 20
    assert values["lane_environment"] == {
        "GREETING": "hello world", "CUDA_CACHE_PATH": "/tmp/llama", "LLAMA_ARG_THREADS_HTTP": "8"
    }  # fmt: skip


def test_faults_of_both_files_come_together(tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text("echo nothing\n")
    rc, text = run("--models-ini", str(tmp_path / "none.ini"), "--unit", str(tmp_path / "script.sh"),
                   "--out", str(tmp_path / "out"))  # fmt: skip
    assert rc == 1
    assert "none.ini: cannot be read" in text
    assert "script.sh: no command that runs llama-server" in text
    assert not (tmp_path / "out").exists()


def test_a_result_that_does_not_pass_is_written_and_says_why(tmp_path: Path) -> None:
    ini = tmp_path / "models.ini"
    ini.write_text(
        "[a]\nmodel = /srv/models/o/n/a.gguf\nalias = x\nload-on-startup = true\n"
        "[b]\nmodel = /srv/models/o/n/b.gguf\nalias = x\n"
        "kv-unified-per-slot = 4096\nc = 4096\nnp = 4\nkvu = 1\n"
    )
    rc, text = run("--models-ini", str(ini), "--out", str(tmp_path / "out"))
    assert rc == 1
    assert "`x` already names a" in text
    assert "pool of 4096 is smaller" in text
    assert (tmp_path / "out" / CATALOGUE_FILE).exists()
    rc, text = run("--models-ini", str(ini), "--out", str(tmp_path / "out"))
    assert "is there already" in text


def test_a_preset_file_is_needed(tmp_path: Path) -> None:
    rc, text = run("--out", str(tmp_path / "out"))
    assert rc == 1
    assert "--models-ini: is missing" in text


def test_the_example_of_llama_cpp(tmp_path: Path) -> None:
    rc, text = run("--models-ini", str(HERE / "presets.ini"), "--out", str(tmp_path / "out"), "--json")
    assert rc == 0, text
    catalogue = load_catalogue(tmp_path / "out" / CATALOGUE_FILE, OPTIONS)
    names = ["tiny-a", "tiny-b", "tiny-cuda", "tiny-ngl", "tiny-missing"]
    assert [model.name for model in catalogue.models] == names
    assert catalogue.enabled == ()
    assert catalogue.models[1].ctx_size == 512
    assert catalogue.models[1].cache_ram_mib == 0
    assert 'accelerator_device = "CUDA0"' in (tmp_path / "out" / DATA_FILE).read_text()
