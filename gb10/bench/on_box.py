"""A connected box as the bench needs it: router behind a tunnel, sandbox, presets, and what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.host import Host

from gb10.bench.coding import CodingTask, load_entries
from gb10.bench.result import Device, Image, Llama, Plan, Result, Settings, Verdict
from gb10.bench.router import Router
from gb10.bench.run import Bench, Options, Show
from gb10.bench.sandbox import Job, clean, judge
from gb10.bench.tools import Scenario
from gb10.bench.tunnel import read_key, run_as_root, wire_to
from gb10.bench.variants import Presets, keys_of, slots_by
from gb10.desired import Desired
from gb10.facts.answer import read_answer
from gb10.facts.bench_box import BenchBox
from gb10.facts.found import found_on
from gb10.faults import BadInput, Fault
from gb10.inventory import desired
from gb10.plan_view import plan_json
from gb10.preset_options import near_miss
from gb10.rendering import TOP
from gb10.revision import revision_of
from gb10.slots import Slots

PROBE_SECONDS = 90
FOLDER = TOP / "bench"


class BoxUnderTest:
    """One connected host, for the time of a bench. Raises `BadInput` and `PyinfraError` when it cannot be
    one."""

    def __init__(self, host: Host) -> None:
        box = desired(host)
        self.host = host
        self.box: Desired = replace(box, found=found_on(host, box).models)
        self.router = Router(wire_to(host, box.data.lane_port, box.lane_host), read_key(host, box.key_path))
        self.presets = Presets(host, self.box)
        # Models that may be unloaded while they answer somebody: that was asked.
        self.cut: list[str] = []
        self._trained = {
            preset.name: preset.shape.context_length for preset in self.box.plan.presets if preset.shape
        }

    def run(self, command: Sequence[str], stdin: str, seconds: float) -> tuple[int, str, str]:
        """A command on the box, as root."""
        return run_as_root(self.host, command, stdin, seconds)

    def bench(self, show: Show, options: Options) -> Bench:
        """What the measurements need."""
        return Bench(
            router=self.router,
            presets=self.presets,
            slots=self.slots,
            free_mib=self.free_mib,
            judge=self.judge,
            device=self.device,
            show=show,
            options=options,
            cut=self.cut,
            coding=load_entries(FOLDER / "coding", CodingTask) if "coding" in options.parts else (),
            scenarios=load_entries(FOLDER / "tools", Scenario) if "tools" in options.parts else (),
        )

    def slots(self, model: str) -> tuple[Slots, int]:
        """The slots by the preset file that is on the box now, and the trained context in tokens (0:
        unknown)."""
        return slots_by(keys_of(self.presets.text(), model)), self._trained.get(model, 0)

    def free_mib(self) -> int | None:
        """MemAvailable, or None where the box does not say."""
        for line in self.run(["cat", "/proc/meminfo"], "", PROBE_SECONDS)[1].splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) // 1024
        return None

    def judge(self, job: Job) -> Verdict:
        """Run an answer in the sandbox."""
        return judge(self.run, job)

    def device(self, model: str) -> Device:
        """Where a loaded model's process runs, by the lane's own signal."""
        program = self.box.program_files["gb10_router.py"].content
        line = ["python3", "-I", "-c", program, self.box.lane_path, "probe", "--model", model]
        try:
            answer = read_answer(self.run(line, "", PROBE_SECONDS)[1].splitlines())
        except FactProcessError as error:
            return Device(state="down", name=str(error))
        # The program prints JSON, and JSON may hold anything.
        return Device(
            state=str(answer.state), name=str(answer.device or answer.reason), holder=str(answer.holder)
        )

    def clean(self) -> None:
        """Take away what the sandbox left."""
        clean(self.run)

    def result(self, options: Options) -> Result:
        """The head of a result: what this box is now."""
        data = self.box.data
        question = {"lane": data.lane_name, "presets": self.box.presets_path}
        said: dict[str, str] = self.host.get_fact(BenchBox, question=question)
        return Result(
            host=self.host.name,
            started=datetime.now(UTC).replace(microsecond=0),
            git=git_revision(TOP),
            image=Image(tag=said.get("image", ""), id=said.get("image_id", "")),
            presets=said.get("presets", ""),
            llama=Llama(ref=data.llama_ref, commit=data.llama_commit),
            driver=said.get("driver", ""),
            settings=Settings(
                parts=list(options.parts),
                runs=options.runs,
                prompt_tokens=options.prompt,
                answer_tokens=options.answer,
                long_tokens=options.long,
                tasks=options.tasks,
                clients=list(options.clients),
                answer_limit=options.answer_limit,
            ),
            plan=plan_of(self.box),
        )

    def choose(self, names: Sequence[str]) -> list[str]:
        """The models to measure: those named (aliases too), or all of the catalogue that are served. Raises
        `BadInput` for a name that the router does not serve."""
        served = list(self.router.states())
        if not names:
            return [model.name for model in self.box.catalogue.enabled if model.name in served]
        chosen, faults = [], []
        for name in names:
            model = self.box.catalogue.model(name)
            known = model.name if model else name
            if known in served:
                chosen.append(known)
            elif model and not model.enabled:
                faults.append(
                    Fault(name, f"the catalogue has it off: {model.reason}", "turn it on and deploy")
                )
            else:
                faults.append(Fault(name, "the router serves no such model", near_miss(name, tuple(served))))
        if faults:
            raise BadInput(faults)
        return list(dict.fromkeys(chosen))

    def not_served(self) -> list[str]:
        """Models that the catalogue has on and the router does not serve."""
        served = self.router.states()
        return [model.name for model in self.box.catalogue.enabled if model.name not in served]

    @property
    def off(self) -> dict[str, str]:
        """Models of the catalogue that are off, with their reasons."""
        return {model.name: f"off: {model.reason}" for model in self.box.catalogue.off}


def plan_of(box: Desired) -> Plan:
    """The memory plan in MiB: what the report draws."""
    found = plan_json(box.plan, [])
    return Plan(
        total_mib=found["budget"]["total_mib"],
        reserve_mib=found["budget"]["reserve_mib"],
        models_max=found["models_max"],
        models={preset["name"]: preset.get("total_mib") for preset in found["presets"]},
    )


def git_revision(folder: Path) -> str:
    """The project's commit, with ``+`` where files differ from it; empty outside of a repository."""
    found = revision_of(folder)
    return f"{found.commit}+" if found.dirty else found.commit
