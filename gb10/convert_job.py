"""One conversion on one box, as data: where its files lie, and the jobs that build, fetch and make. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gb10.conversion import SOURCES
from gb10.convert_expect import Expectation, expectation
from gb10.convert_source import Source
from gb10.desired import HARDENING, Desired
from gb10.gguf import Header
from gb10.lock import LockedFile, Recipe
from gb10.model import own_repo
from gb10.operations.detached import Job
from gb10.rendering import TOP, PlacedFile

WORK = ".convert"
"""Folder below the models folder for what is being made."""

PROGRAM = "gb10_convert.py"
AGAIN = "run the command again"
_PIDS = 512


@dataclass(frozen=True)
class Making:
    """The conversion of ``source`` into ``file`` of the model ``name``."""

    box: Desired
    name: str
    file: str
    source: Source
    outtype: str

    # -- places on the box ----------------------------------------------------------------------

    @property
    def source_folder(self) -> str:
        return f"{self.box.data.models_dir}/{SOURCES}/{self.source.repo}/{self.source.commit[:12]}"

    @property
    def work_folder(self) -> str:
        return f"{self.box.data.models_dir}/{WORK}/{self.name}"

    @property
    def part(self) -> str:
        """The file while it is made and not proven yet."""
        return f"{self.work_folder}/{self.file}.part"

    @property
    def result(self) -> str:
        return f"{self.box.data.models_dir}/{own_repo(self.name)}/{self.file}"

    @property
    def folder(self) -> str:
        """Folder of the jobs' logs and specs."""
        return f"{self.box.data.state_dir}/convert/{self.name}"

    # -- what is made ----------------------------------------------------------------------------

    @cached_property
    def expected(self) -> Expectation:
        """What the result should be."""
        return expectation(self.source.tensors, self.outtype)

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.source.repo, self.box.data.llama_commit, self.outtype)

    def locked(self, size: int, sha256: str, header: Header | None = None) -> LockedFile:
        """The lock's entry of the result; ``size`` in bytes."""
        return LockedFile(
            own_repo(self.name),
            self.source.commit,
            self.file,
            size,
            sha256,
            header.to_dict() if header else None,
            self.recipe,
        )

    @property
    def entry(self) -> str:
        """The catalogue entry that serves the result, as text to paste."""
        source = f"repo: {self.source.repo}, revision: {self.source.commit}, outtype: {self.outtype}"
        named = f"    file: {self.file}\n" if self.file != f"{self.name}.gguf" else ""
        return f"  {self.name}:\n    source: {{{source}}}\n{named}"

    # -- what the programs on the box are given ---------------------------------------------------

    @property
    def container(self) -> str:
        return f"gb10-convert-{self.name}"

    @property
    def question_command(self) -> tuple[str, ...]:
        """The converter with nothing but a config.json, which it reads from its standard input."""
        ask = (
            "mkdir /tmp/model && cat > /tmp/model/config.json && exec /opt/appliance/bin/python "
            "/opt/llama.cpp/convert_hf_to_gguf.py --dry-run --outfile /tmp/x.gguf /tmp/model"
        )
        return (
            "docker", "run", "--rm", "--interactive", "--pull", "never", "--log-driver", "none",
            "--network", "none", *_words(HARDENING), "--entrypoint", "sh",
            self.box.appliance_image, "-c", ask,
        )  # fmt: skip

    @property
    def docker_command(self) -> tuple[str, ...]:
        """The container: no network, the source read only, nothing writable but the work folder and /tmp."""
        data = self.box.data
        return (
            "docker", "run", "--rm", "--name", self.container, "--pull", "never", "--log-driver", "none",
            "--network", "none", "--user", f"{data.lane_user_id}:{data.lane_user_id}", *_words(HARDENING),
            "--pids-limit", str(_PIDS),
            # The lane comes first: the processor is shared after it, and memory is taken from here.
            "--cpu-shares", "128", "--oom-score-adj", "1000",
            # Not --mount, which ends a path at a comma; the program sees to it that both folders are there.
            "--volume", f"{self.source_folder}:/source:ro", "--volume", f"{self.work_folder}:/work",
            self.box.appliance_image, "--outfile", f"/work/{self.file}.part", "--outtype", self.outtype,
            # Without a name the converter takes that of the folder.
            "--model-name", self.name, "/source",
        )  # fmt: skip

    @property
    def spec(self) -> Mapping[str, Any]:
        """What ``files/gb10_convert.py`` is given; its docstring says what each key is."""
        data = self.box.data
        recipe = [self.source.commit, *vars(self.recipe).values(), self.box.appliance_image, self.name]
        return {
            "source": self.source_folder,
            "files": {file.file: file.size for file in self.source.files},
            "work": self.work_folder,
            "part": f"{self.file}.part",
            "state": self.make_job.folder,
            "result": self.result,
            "models_dir": data.models_dir,
            "user": data.lane_user_id,
            "image": self.box.appliance_image,
            "command": list(self.docker_command),
            "container": self.container,
            "unit": self.make_job.unit,
            "recipe": hashlib.sha256("\n".join(recipe).encode()).hexdigest(),
            "tensors": self.expected.tensors,
            "expected_bytes": self.expected.file_bytes,
            "reserve_bytes": data.models_reserve_gib * 1024**3,
            "memory_bytes": self.expected.memory_bytes,
        }

    @property
    def spec_file(self) -> PlacedFile:
        return PlacedFile(f"{self.folder}/spec.json", _json(self.spec))

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the downloader is given: the source, with room left for the result."""
        data = self.box.data
        return {
            **{key: value for key, value in self.box.fetch_manifest.items() if key != "files"},
            "search": [],
            "reserve_bytes": data.models_reserve_gib * 1024**3 + self.expected.file_bytes,
            "files": [
                {
                    **{key: getattr(file, key) for key in ("repo", "revision", "file", "size", "sha256")},
                    "path": f"{self.source_folder}/{file.file}",
                }
                for file in self.source.files
            ],
        }

    @property
    def manifest_file(self) -> PlacedFile:
        return PlacedFile(f"{self.folder}/source.json", _json(self.manifest))

    @property
    def program_file(self) -> PlacedFile:
        return PlacedFile(
            f"{self.box.data.program_dir}/{PROGRAM}", (TOP / "files" / PROGRAM).read_text(), mode="0755"
        )

    @property
    def dockerfile_file(self) -> PlacedFile:
        return PlacedFile(f"{self.box.appliance_folder}/context/Dockerfile", self.box.appliance_dockerfile)

    # -- jobs: each outlives the connection, and a second run joins it ----------------------------

    @property
    def build_job(self) -> Job:
        image = self.box.appliance_image
        return Job(
            title=f"build of {image}",
            unit=f"gb10-appliance-{image.rpartition(':')[2]}.service",
            folder=self.box.appliance_folder,
            command=(
                "docker", "build", "--progress=plain", "--tag", image,
                f"{self.box.appliance_folder}/context",
            ),
            again=AGAIN,
        )  # fmt: skip

    @property
    def fetch_job(self) -> Job:
        return Job(
            title=f"source {self.source.repo}",
            unit=f"gb10-convert-source-{self.name}.service",
            folder=f"{self.folder}/source",
            command=("python3", self.box.program_files["gb10_fetch.py"].path, self.manifest_file.path),
            again=AGAIN,
        )

    @property
    def make_job(self) -> Job:
        return Job(
            title=f"conversion of {self.name}",
            unit=f"gb10-convert-{self.name}.service",
            folder=f"{self.folder}/make",
            command=("python3", self.program_file.path, "make", f"{self.folder}/spec.json"),
            again=AGAIN,
        )


def _words(options: Iterable[str]) -> list[str]:
    return [word for option in options for word in option.split(" ")]


def _json(content: object) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
