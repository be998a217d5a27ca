"""The plan: the worst set against the budget, what would fit, the slots, and the command."""

from __future__ import annotations

import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from gb10.commands.plan import plan as plan_command
from gb10.faults import BadInput
from gb10.gguf import Header
from gb10.lock import Lock, LockedFile
from gb10.memory import MIB
from gb10.model import Catalogue, Clients
from gb10.plan import Budget, Found, Plan, Source, make_plan, total_of
from gb10.plan_faults import largest_context, plan_faults
from gb10.plan_sources import sources_of
from gb10.plan_view import plan_json, plan_text
from gb10.slots import Slots, ways
from tests.unit.catalogues import DEFAULTS, catalogue_text, load
from tests.unit.gguf_files import gguf

SIZES = {"a": 100, "b": 200, "c": 300}
"""MiB of the weights of three models."""

SHAPE = {
    "llama.block_count": 4,
    "llama.embedding_length": 1024,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 32768,
}


def header(**more: Any) -> Header:
    return Header("llama", {**SHAPE, **more}, {}, (), 0)


def three(folder: Path, extra: str = "") -> Catalogue:
    models = "".join(f"  {name}: {{repo: lab/{name}, file: {name}.gguf{extra}}}\n" for name in SIZES)
    return load(folder, f"{DEFAULTS}models:\n{models}")


def sources(catalogue: Catalogue) -> dict[tuple[str, str], Source]:
    return {
        (f"lab/{name}", f"{name}.gguf"): Source(header(), size * MIB)
        for name, size in SIZES.items()
        if catalogue.model(name)
    }


def planned(catalogue: Catalogue, total: int, models_max: int | None = None) -> Plan:
    return make_plan(catalogue, sources(catalogue), Budget(total, 0, 10, models_max))


def needed(catalogue: Catalogue, count: int) -> int:
    """MiB of the worst set, rounded up."""
    return -(-total_of(planned(catalogue, 10**6).worst(count)) // MIB)


def lines(plan: Plan, catalogue: Catalogue) -> list[str]:
    return [str(fault) for fault in plan_faults(plan, catalogue)]


def test_the_parts_of_a_preset(tmp_path: Path) -> None:
    (preset, *_) = planned(three(tmp_path), 10**6).presets
    assert preset.child
    assert preset.child.bytes_of("weights") == 100 * MIB
    assert preset.child.bytes_of("KV cache") == 4 * 4096 * 2 * 256 * 2
    assert preset.child.bytes_of("prompt cache") == 64 * MIB
    assert preset.child.bytes_of("overhead") == 10 * MIB
    assert preset.child.kv_bytes_per_token == 4096


def test_the_worst_set_is_the_heaviest_one(tmp_path: Path) -> None:
    plan = planned(three(tmp_path), 10**6)
    for count in (1, 2, 3):
        by_hand = max(total_of(chosen) for chosen in itertools.combinations(plan.presets, count))
        assert total_of(plan.worst(count)) == by_hand
        assert total_of(plan.sets(count)[0]) == by_hand
    assert [preset.name for preset in plan.worst(2)] == ["c", "b"]


@pytest.mark.parametrize("fits", [0, 1, 2, 3])
def test_auto_takes_the_largest_that_fits(tmp_path: Path, fits: int) -> None:
    catalogue = three(tmp_path)
    room = needed(catalogue, fits) if fits else needed(catalogue, 1) - 1
    plan = planned(catalogue, room)
    assert plan.models_max == plan.largest == fits
    assert bool(lines(plan, catalogue)) == (fits == 0)


def test_one_byte_too_much_is_refused(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    assert lines(planned(catalogue, needed(catalogue, 2), 2), catalogue) == []
    assert lines(planned(catalogue, needed(catalogue, 2) - 1, 2), catalogue) != []


def test_the_refusal_has_the_numbers_and_what_would_fit(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    room = needed(catalogue, 2) - 1
    (line,) = lines(planned(catalogue, room, 2), catalogue)
    assert f"models-max 2 can need {needed(catalogue, 2)} MiB of {room} MiB" in line
    assert "(c + b)" in line
    assert "set models-max to 1, or give c `ctx-size: " in line
    smaller = int(line.rsplit("`ctx-size: ", 1)[1].rstrip("`"))
    again = three(tmp_path, f", ctx-size: {smaller}")
    assert total_of(planned(again, room, 2).worst(2)) <= room * MIB


def test_the_largest_context_is_the_largest(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    plan = planned(catalogue, needed(catalogue, 2) - 5, 2)
    largest = largest_context(plan, "c", 2)
    assert largest
    text = (tmp_path / "models.yaml").read_text()
    for ctx, good in ((largest, True), (largest + 256, False)):
        changed = load(tmp_path, text.replace("file: c.gguf", f"file: c.gguf, ctx-size: {ctx}"))
        assert (total_of(planned(changed, plan.budget.total_mib, 2).worst(2)) <= plan.budget.bytes) == good
    assert largest_context(planned(catalogue, 200, 2), "c", 2) is None
    assert largest_context(plan, "nobody", 2) is None


def test_no_advice_that_the_clients_could_not_live_with(tmp_path: Path) -> None:
    catalogue = three(tmp_path, ", clients: {count: 1, tokens: 4096}")
    (line,) = lines(planned(catalogue, needed(catalogue, 2) - 1, 2), catalogue)
    assert "ctx-size" not in line


def test_a_model_that_never_fits(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    (line,) = lines(planned(catalogue, needed(catalogue, 1) - 1), catalogue)
    assert "models.c: c alone needs" in line
    assert line.endswith("300 MiB of that are its weights: take a smaller file, or give it `ctx-size: 3840`")


def test_every_model_that_never_fits_is_named(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    found = lines(planned(catalogue, 100), catalogue)
    assert [name for name in "abc" if any(f"{name} alone needs" in line for line in found)] == ["a", "b", "c"]


def test_the_refusal_names_the_part_that_takes_most(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("cache-ram: 16000"))
    plan = planned(catalogue, 1000)
    (line,) = lines(plan, catalogue)
    assert "16000 MiB of that are its prompt cache: set its `cache-ram` to" in line
    room = int(line.rpartition("to ")[2].removesuffix(" at most"))
    for size, good in ((room, True), (room + 1, False)):
        again = load(tmp_path, catalogue_text(f"cache-ram: {size}"))
        assert (lines(planned(again, 1000), again) == []) == good
    catalogue = load(tmp_path, catalogue_text("ctx-size: 1000000"))
    (line,) = lines(planned(catalogue, 1000), catalogue)
    assert "are its KV cache: give it `ctx-size: " in line


def test_random_catalogues_never_overcommit(tmp_path: Path) -> None:
    chance = random.Random(1)
    catalogue = three(tmp_path)
    for _ in range(200):
        sizes = {(f"lab/{n}", f"{n}.gguf"): Source(header(), chance.randrange(1, 1000) * MIB) for n in SIZES}
        plan = make_plan(catalogue, sizes, Budget(chance.randrange(1, 3000), 0, 10, None))
        every = [
            sum(p.total for p in chosen) for chosen in itertools.combinations(plan.presets, plan.models_max)
        ]
        assert all(total <= plan.budget.bytes for total in every)


def test_a_reserve_is_never_planned(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    budget = Budget(needed(catalogue, 2) + 50, 51, 10, 2)
    assert lines(make_plan(catalogue, sources(catalogue), budget), catalogue)


def test_an_unknown_model_is_named_with_the_command(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    known = sources(catalogue)
    del known["lab/b", "b.gguf"]
    plan = make_plan(catalogue, known, Budget(10**6, 0, 10, 2))
    (preset,) = plan.unknown
    assert preset.unknown == "unknown until `gb10 pin b`"
    (line,) = lines(plan, catalogue)
    assert "models.b: its memory is unknown until `gb10 pin b`: run `gb10 pin b`" in line
    assert plan_json(plan, [])["presets"][1]["unknown"] == preset.unknown


def test_a_draft_or_projector_that_is_unknown_makes_the_model_unknown(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("projector: mmproj.gguf"))
    known = {("lab/a", "a.gguf"): Source(header(), MIB)}
    assert make_plan(catalogue, known, Budget(10**6, 0, 0, 1)).unknown
    known["lab/a", "mmproj.gguf"] = Source(None, 7 * MIB)
    (preset,) = make_plan(catalogue, known, Budget(10**6, 0, 0, 1)).known
    assert preset.child
    assert preset.child.bytes_of("projector") == 7 * MIB


def test_a_draft_counts_with_its_own_cache(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("draft: {repo: lab/d, file: d.gguf}"))
    known = {("lab/a", "a.gguf"): Source(header(), MIB), ("lab/d", "d.gguf"): Source(header(), 5 * MIB)}
    (preset,) = make_plan(catalogue, known, Budget(10**6, 0, 0, 1)).known
    assert preset.child
    assert preset.child.bytes_of("draft") > 5 * MIB + 4 * 4096 * 2 * 256 * 2


def test_models_found_on_the_box_count(tmp_path: Path) -> None:
    catalogue = three(tmp_path)
    found = [Found("stray", Source(header(), 900 * MIB)), Found("broken", Source())]
    plan = make_plan(catalogue, sources(catalogue), Budget(10**6, 0, 10, 1), found)
    assert plan.worst(1)[0].name == "stray"
    assert any("broken" in line and "move it away" in line for line in lines(plan, catalogue))


def test_options_of_a_preset_that_change_memory(tmp_path: Path) -> None:
    known = {("lab/a", "a.gguf"): Source(header(), MIB)}

    def kv(entry: str) -> int:
        (preset,) = make_plan(load(tmp_path, catalogue_text(entry)), known, Budget(10**6, 0, 0, 1)).known
        assert preset.child
        return preset.child.bytes_of("KV cache")

    assert kv("cache-type: q8_0") == kv("") * 34 / 32 / 2
    assert kv("parallel: 3\nkv-unified: false") == kv("") / 4096 * 3 * 1536


def test_more_on_startup_than_fit(tmp_path: Path) -> None:
    catalogue = three(tmp_path, ", load-on-startup: true")
    (line,) = lines(planned(catalogue, 10**6, 2), catalogue)
    assert "3 model(s) with `load-on-startup` and models-max 2" in line


def test_a_cache_type_that_llama_cpp_would_not_load(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("cache-type: q8_0"))
    narrow = Source(header(**{"llama.attention.key_length": 16}), MIB)
    plan = make_plan(catalogue, {("lab/a", "a.gguf"): narrow}, Budget(10**6, 0, 0, 1))
    (line,) = lines(plan, catalogue)
    assert "32 elements, which do not divide a head of 16: set `cache-type: f16`" in line


def test_clients_beyond_the_training_context(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text("ctx-size: 65536\nclients: {count: 1, tokens: 40000}"))
    plan = make_plan(catalogue, {("lab/a", "a.gguf"): Source(header(), MIB)}, Budget(10**6, 0, 0, 1))
    (line,) = lines(plan, catalogue)
    assert "clients of 40000 tokens, and the model was trained for 32768" in line


def test_clients_that_fit(tmp_path: Path) -> None:
    catalogue = load(
        tmp_path, catalogue_text("ctx-size: 8192\nparallel: 2\nclients: {count: 2, tokens: 3000}")
    )
    (preset,) = make_plan(
        catalogue, {("lab/a", "a.gguf"): Source(header(), MIB)}, Budget(10**6, 0, 0, 1)
    ).known
    assert preset.clients_fit == pytest.approx(8192 / 3000)


def test_the_three_ways() -> None:
    unified, split, per_slot = ways(32768, 8)
    assert (unified.way, split.way, per_slot.way) == ("unified", "split", "per slot")
    assert (unified.longest, split.longest, per_slot.longest) == (32768, 4096, 4096)
    assert "every request in the pool fails" in unified.overflow
    assert "400" in split.overflow
    assert "400" in per_slot.overflow
    assert "every request" in Slots(8192, 8, unified=True, per_slot=8192).overflow
    assert Slots(8192, 1, unified=True).overflow.startswith("a request that is too long gets 400")


@pytest.mark.parametrize(
    ("slots", "clients", "fits"),
    [
        # Measured: 8 x 6000 into 32768 cells, all eight got 500; with 8192 for each slot all eight passed.
        (Slots(32768, 8, unified=True), Clients(8, 6000), False),
        (Slots(65536, 8, unified=True, per_slot=8192), Clients(8, 6000), True),
        (Slots(262144, 8, unified=False), Clients(8, 20000), True),
        (Slots(262144, 8, unified=True), Clients(8, 20000), True),
        (Slots(212992, 8, unified=True), Clients(8, 26000), True),
        (Slots(212992, 8, unified=True), Clients(9, 20000), False),
    ],
)
def test_who_fits(slots: Slots, clients: Clients, fits: bool) -> None:
    assert (slots.refuse(clients) is None) == fits


def test_headers_and_sizes_come_from_the_lock(tmp_path: Path) -> None:
    text = DEFAULTS + "models:\n  a: {repo: lab/a, file: a-00001-of-00002.gguf}\n"
    catalogue = load(tmp_path, text)

    def lock(second: int | None, kept: dict[str, Any] | None) -> Lock:
        first = LockedFile("lab/a", "c" * 40, "a-00001-of-00002.gguf", 5, None, kept)
        other = LockedFile("lab/a", "c" * 40, "a-00002-of-00002.gguf", second, None, None)
        return Lock(files={(file.repo, file.file): file for file in (first, other)})

    key = ("lab/a", "a-00001-of-00002.gguf")
    whole = sources_of(catalogue, lock(7, header().to_dict()))[key]
    assert whole.size == 12
    assert whole.header is not None
    assert whole.header.get("block_count") == 4
    assert sources_of(catalogue, lock(None, None))[key] == Source(None, None)
    with pytest.raises(BadInput, match="gb10 pin a"):
        sources_of(catalogue, lock(7, {"architecture": "llama"}))


def test_headers_come_from_files_where_the_lock_has_none(tmp_path: Path) -> None:
    catalogue = load(tmp_path, catalogue_text())
    folder = tmp_path / "lab" / "a"
    folder.mkdir(parents=True)
    data = gguf({"general.architecture": "llama", **SHAPE})
    (folder / "a.gguf").write_bytes(data)
    source = sources_of(catalogue, Lock(), tmp_path)["lab/a", "a.gguf"]
    assert source.size == len(data)
    (folder / "a.gguf").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="no GGUF file"):
        sources_of(catalogue, Lock(), tmp_path)


def test_the_plan_as_text_and_json(tmp_path: Path) -> None:
    catalogue = three(tmp_path, ", parallel: 2, ctx-size: 8192")
    plan = planned(catalogue, 400, 2)
    faults = plan_faults(plan, catalogue)
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(plan_text(plan, faults))
    shown = console.export_text()
    assert "models.c: c alone needs" in shown.partition("REFUSED")[2]
    assert "2 unified *" in shown
    assert "DOES NOT FIT" in shown
    data = plan_json(plan, faults)
    json.dumps(data)
    assert data["ok"] is False
    assert data["worst"]["models"] == ["c", "b"]
    assert data["models_max_largest"] == plan.largest
    assert [way["slots"] for way in data["presets"][0]["ways"]] == ["unified", "split", "per slot"]


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(plan_command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_the_command_for_one_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = gguf({"general.architecture": "llama", **SHAPE}) + bytes(3 * MIB)
    path.write_bytes(data)
    figures = run(
        "--gguf",
        str(path),
        "--ctx-size",
        "65536",
        "--parallel",
        "4",
        "--no-kv-unified",
        "--cache-type",
        "q8_0",
    )
    assert figures["weights_mib"] == round(len(data) / MIB, 2)
    assert figures["kv_cache_mib"] == 4 * 65536 * 2 * 256 * 34 / 32 / MIB
    assert figures["recurrent_state_mib"] == 0
    assert figures["kv_bytes_per_token"] == 4 * 2 * 256 * 34 / 32
    unified = run("--gguf", str(path), "--ctx-size", "100", "--parallel", "4", "--kv-unified")
    assert unified["kv_cache_mib"] == 4 * 256 * 2 * 256 * 2 / MIB
    text = CliRunner().invoke(plan_command, ["--gguf", str(path)])
    assert text.exit_code == 0
    assert "KV cache" in text.output


def test_the_command_for_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="no GGUF file"):
        CliRunner().invoke(plan_command, ["--gguf", str(tmp_path / "m.gguf")], catch_exceptions=False)
    with pytest.raises(BadInput, match="No such file"):
        CliRunner().invoke(plan_command, ["--gguf", str(tmp_path / "n.gguf")], catch_exceptions=False)
