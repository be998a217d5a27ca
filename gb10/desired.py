"""What should be on a box: one frozen tree, computed once from data, catalogue and lock.

Stages, `gb10 render` and everything that compares a box with its description read this tree; none
computes a value a second time. Nothing here touches a host.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from gb10 import nightly, watch_config
from gb10.boxdata import AUTO, BoxData
from gb10.catalogue import Catalogue
from gb10.cmake_options import is_on
from gb10.facts.probe import probe_source
from gb10.fetch_manifest import fetch_manifest
from gb10.found import MOUNTS, FoundModel, places
from gb10.lock import Lock
from gb10.plan import Budget, Plan, make_plan
from gb10.plan_sources import sources_of
from gb10.presets import render_presets
from gb10.rendering import TOP, PlacedFile, json_text, render, tag_part, unit_escape

KEYRING = "/usr/share/keyrings/gb10-nvidia-container-toolkit.gpg"
NIGHTLY_UNITS = ("gb10-drift.service", "gb10-drift.timer")
# What runs on the box, copied as it is.
PROGRAMS = (
    "gb10_gate.py",
    "gb10_router.py",
    "gb10_fetch.py",
    "gb10_image.py",
    "gb10_history.py",
    "gb10_generations.py",
    "gb10_drift.py",
    *watch_config.PROGRAMS,
)
# Nothing in these options leaves a process more rights than it needs to serve.
HARDENING = (
    "--read-only",
    "--tmpfs /tmp:rw,nosuid,nodev,size=1g",
    "--cap-drop ALL",
    "--security-opt no-new-privileges",
)


@dataclass(frozen=True)
class Desired:
    """The whole description of one box. Texts are complete file contents, paths are paths on the box.

    ``found`` are the models that lie on the box beside the catalogue's, None until somebody has looked: they
    are served and counted too. The unit does not depend on which they are, but for models-max ``auto``.
    """

    data: BoxData
    catalogue: Catalogue
    lock: Lock
    found: tuple[FoundModel, ...] | None = None
    baselines: Mapping[str, watch_config.Baseline] = field(default_factory=dict)  # of models on this box

    # -- toolkit --------------------------------------------------------------------------------

    @cached_property
    def toolkit_files(self) -> tuple[PlacedFile, ...]:
        """The apt source and the version pin of the container toolkit."""
        return (
            PlacedFile(
                "/etc/apt/sources.list.d/gb10-nvidia-container-toolkit.sources",
                render(
                    "nvidia-container-toolkit.sources.j2",
                    # deb822 sources know no $(ARCH): a flat repository is named by its whole path.
                    apt_url=self.data.toolkit_apt_url.replace("$(ARCH)", self.debian_architecture),
                    keyring=KEYRING,
                ),
            ),
            PlacedFile(
                "/etc/apt/preferences.d/gb10-nvidia-container-toolkit",
                render(
                    "nvidia-container-toolkit.pref.j2",
                    packages=self.data.toolkit_packages,
                    version=self.data.toolkit_version,
                ),
            ),
        )

    @property
    def debian_architecture(self) -> str:
        """Debian's name of the box's architecture: ``arm64`` for ``aarch64``."""
        names = {"aarch64": "arm64", "x86_64": "amd64"}
        return names.get(self.data.expect_architecture, self.data.expect_architecture)

    # -- image ----------------------------------------------------------------------------------

    @cached_property
    def cmake_flags(self) -> dict[str, str]:
        """The build's -D flags, sorted by name; the accelerator's win."""
        return dict(sorted((self.data.image_cmake_flags | self.data.image_accelerator_flags).items()))

    @cached_property
    def dockerfile(self) -> str:
        """The Dockerfile: everything that goes into the image is named in it."""
        data, flags = self.data, self.cmake_flags
        return render(
            "Dockerfile.j2",
            build_base=data.image_build_base,
            runtime_base=data.image_runtime_base,
            build_packages=data.image_build_packages,
            runtime_packages=data.image_runtime_packages,
            build_prepare=data.image_build_prepare,
            runtime_prepare=data.image_runtime_prepare,
            repository=data.llama_repository,
            commit=data.llama_commit,
            ref=data.llama_ref,
            cmake_flags=flags,
            uses_cuda=is_on(flags.get("GGML_CUDA", "OFF")),
            targets=data.image_cmake_targets,
            jobs=data.image_build_jobs,
            build_proofs=data.image_build_proofs,
            driver_stubs=data.image_driver_stubs,
            device=data.accelerator_device,
            image_name=data.image_name,
            user_id=data.lane_user_id,
        )

    @cached_property
    def image(self) -> str:
        """Name and tag of the image; the tag ends in the hash of the Dockerfile."""
        digest = hashlib.sha256(self.dockerfile.encode()).hexdigest()
        return f"{self.data.image_name}:{tag_part(self.data.llama_ref)}-{digest[:12]}"

    @property
    def dockerfile_file(self) -> PlacedFile:
        return PlacedFile(f"{self.image_folder}/context/Dockerfile", self.dockerfile)

    @property
    def image_folder(self) -> str:
        """The build's folder on the box: its log, and below ``context`` the Dockerfile."""
        return f"{self.data.state_dir}/image/{self.image.rpartition(':')[2]}"

    @property
    def image_expectation(self) -> str:
        """Digest of what an image has to prove beyond its tag: with other data it proves itself again."""
        data = self.data
        wanted = [*data.image_system_info, data.accelerator_device, data.accelerator_cdi]
        return hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:16]

    @cached_property
    def image_file(self) -> PlacedFile:
        """What the program that builds and proves the image is given."""
        data = self.data
        content = {
            "name": data.image_name,
            "image": self.image,
            "folder": self.image_folder,
            "history": f"{data.state_dir}/image/builds.json",
            "commit": data.llama_commit,
            "flags": self.cmake_flags,
            "system_info": list(data.image_system_info),
            "expectation": self.image_expectation,
            "lane": {
                "lane": data.lane_name,
                "image": self.image,
                "cdi": data.accelerator_cdi,
                "device": data.accelerator_device,
                "environment": self.environment,
            },
        }
        return PlacedFile(f"{self.image_folder}/image.json", json_text(content))

    # -- appliance: not part of a deploy, `gb10 convert` builds it --------------------------------

    @cached_property
    def appliance_dockerfile(self) -> str:
        """The Dockerfile of the image in which models are converted."""
        data = self.data
        return render(
            "appliance.Dockerfile.j2",
            base=data.appliance_base,
            packages=data.appliance_packages,
            index=data.appliance_index,
            torch_index=data.appliance_torch_index,
            requirements=(data.appliance_torch, *data.appliance_requirements),
            repository=data.llama_repository,
            commit=data.llama_commit,
            ref=data.llama_ref,
            name=data.appliance_name,
            user_id=data.lane_user_id,
        )

    @cached_property
    def appliance_image(self) -> str:
        """Name and tag of the appliance; the tag ends in the hash of its Dockerfile."""
        digest = hashlib.sha256(self.appliance_dockerfile.encode()).hexdigest()
        return f"{self.data.appliance_name}:{tag_part(self.data.llama_ref)}-{digest[:12]}"

    @property
    def appliance_folder(self) -> str:
        """The folder of its build on the box."""
        return f"{self.data.state_dir}/appliance/{self.appliance_image.rpartition(':')[2]}"

    # -- models -----------------------------------------------------------------------------------

    @cached_property
    def fetch_manifest(self) -> Mapping[str, Any]:
        """What the downloader on the box is given."""
        data = self.data
        return fetch_manifest(
            self.catalogue,
            self.lock,
            models_dir=data.models_dir,
            hub=data.models_hub,
            token_file=data.models_token_file or None,
            parallel=data.models_parallel,
            reserve_bytes=data.models_reserve_gib * 1024**3,
            search=list(data.models_search),
        )

    @property
    def fetch_manifest_file(self) -> PlacedFile:
        return PlacedFile(f"{self.data.state_dir}/models.json", json_text(self.fetch_manifest))

    @cached_property
    def budget(self) -> Budget:
        """What the models may take together."""
        data = self.data
        return Budget(
            data.memory_total_mib,
            data.memory_reserve_mib,
            data.memory_overhead_mib,
            None if data.lane_models_max == AUTO else int(data.lane_models_max),
        )

    @cached_property
    def plan(self) -> Plan:
        """The memory plan of all models. Raises `BadInput` when a header in the lock is none."""
        found = None if self.found is None else [model.counted for model in self.found]
        return make_plan(self.catalogue, sources_of(self.catalogue, self.lock), self.budget, found)

    # -- lane ---------------------------------------------------------------------------------------

    @property
    def unit(self) -> str:
        return f"{self.data.lane_name}.service"

    @property
    def key_path(self) -> str:
        """The API key, made on the box; its content is never read from here."""
        return f"{self.data.lane_config_dir}/api-key"

    @property
    def presets_path(self) -> str:
        return f"{self.data.lane_config_dir}/models.ini"

    @property
    def lane_path(self) -> str:
        return f"{self.data.lane_config_dir}/lane.json"

    @cached_property
    def environment(self) -> dict[str, str]:
        """Environment of the container, and so of every model's process."""
        return {
            # Closes both doors: without the device the router does not start and no model loads.
            "LLAMA_ARG_DEVICE": self.data.accelerator_device,
            # The router looks for no model by itself: the preset file names all, also those that are found.
            "LLAMA_CACHE": "/nonexistent",
            **self.data.lane_environment,
        }

    @property
    def default_model(self) -> str:
        """The model that `verify` loads when none is: the first that loads on startup, or the first."""
        return next(iter((*self.catalogue.on_startup, *self.catalogue.enabled))).name

    @cached_property
    def presets_file(self) -> PlacedFile:
        text = render_presets(
            self.catalogue,
            device=self.data.accelerator_device,
            models_dir=PurePosixPath(self.data.models_dir),
            found={model.name: model.keys for model in self.found or ()},
        )
        return PlacedFile(self.presets_path, text)

    @property
    def presets_digest(self) -> str:
        """sha256 of the preset file."""
        return hashlib.sha256(self.presets_file.content.encode()).hexdigest()

    @property
    def lane_host(self) -> str:
        """The lane's address for programs on the box."""
        return "127.0.0.1" if self.data.lane_address == "0.0.0.0" else self.data.lane_address  # noqa: S104

    @cached_property
    def lane_file(self) -> PlacedFile:
        """What the on-box programs know of the lane."""
        data = self.data
        content = {
            "lane": data.lane_name,
            "host": self.lane_host,
            "port": data.lane_port,
            "image": self.image,
            "cdi": data.accelerator_cdi,
            "device": data.accelerator_device,
            "signal": data.accelerator_signal.model_dump(),
            "wait_seconds": data.accelerator_wait_seconds,
            "environment": self.environment,
            "default_model": self.default_model,
            "generations": f"{data.state_dir}/generations",
            "key_file": self.key_path,
            "presets": self.presets_path,
            "folders": sorted(places(data).values()),
        }
        return PlacedFile(self.lane_path, json_text(content))

    @cached_property
    def lane_hash(self) -> str:
        """Hash of all that a running container cannot change: it is the container's label."""
        parts = [self.image, *self._fixed_docker_options, *self.router_arguments]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @property
    def docker_options(self) -> tuple[str, ...]:
        """Options of the lane's ``docker run``, one line of the unit each."""
        return (*self._fixed_docker_options, f"--label gb10.lane={self.lane_hash}")

    @cached_property
    def _fixed_docker_options(self) -> tuple[str, ...]:
        data = self.data
        environment = (f"--env {shlex.quote(f'{name}={value}')}" for name, value in self.environment.items())
        return (
            f"--name {data.lane_name}",
            "--pull never",
            # The unit's journal has it all; Docker's own copy would grow without bound.
            "--log-driver none",
            f"--device {data.accelerator_cdi}",
            f"--publish {data.lane_address}:{data.lane_port}:{data.lane_port}",
            f"--user {data.lane_user_id}:{data.lane_user_id}",
            *HARDENING,
            f"--pids-limit {data.lane_pids_limit}",
            f"--volume {data.models_dir}:{data.models_dir}:ro",
            f"--volume {data.lane_config_dir}:{data.lane_config_dir}:ro",
            # Unlike --volume, --mount makes no folder, owned by root, where none is: the gate sees to it.
            *(
                f"--mount type=bind,source={path},target={MOUNTS[kind]},readonly"
                for kind, path in places(data).items()
            ),
            *environment,
        )

    @cached_property
    def router_arguments(self) -> tuple[str, ...]:
        """Arguments of llama-server in router mode, one line of the unit each."""
        data = self.data
        return (
            "--host 0.0.0.0",  # inside the container; --publish says who reaches it
            f"--port {data.lane_port}",
            f"--models-preset {self.presets_path}",
            f"--models-max {self.plan.models_max}",
            f"--api-key-file {self.key_path}",
            "--offline",
            "--metrics",
            "--no-ui",
        )

    @cached_property
    def unit_file(self) -> PlacedFile:
        data = self.data
        text = render(
            "lane.service.j2",
            lane=data.lane_name,
            address=data.lane_address,
            port=data.lane_port,
            accelerator_wait=data.accelerator_wait_seconds,
            stop_seconds=data.lane_stop_seconds,
            program_dir=data.program_dir,
            config_dir=data.lane_config_dir,
            lane_file=self.lane_path,
            docker_options=[*(unit_escape(option) for option in self.docker_options)],
            image=self.image,
            router_arguments=[unit_escape(argument) for argument in self.router_arguments],
        )
        return PlacedFile(f"/etc/systemd/system/{self.unit}", text)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that root's programs and their data lie in: nobody else may write there."""
        data, watch = self.data, watch_config.CONFIG.rpartition("/")[0]
        return tuple(sorted({data.program_dir, data.state_dir, data.lane_config_dir, watch}))

    # -- the record and the nightly look ------------------------------------------------------------

    @property
    def record_path(self) -> str:
        """What the last deploy recorded: see gb10/record.py."""
        return f"{self.data.state_dir}/deployed.json"

    @property
    def drift_path(self) -> str:
        """What the nightly look found."""
        return f"{self.data.state_dir}/drift.json"

    @cached_property
    def nightly_files(self) -> tuple[PlacedFile, ...]:
        """The program, what it shares with `gb10 drift`, its settings, and the units that run it."""
        folder, settings = self.data.program_dir, f"{self.data.state_dir}/nightly.json"
        look, mask = probe_source("drift_state.py"), (TOP / "gb10/drift/mask.py").read_text()
        values = {
            "program": f"{folder}/gb10_drift.py",
            "settings": settings,
            "record": self.record_path,
            "result": self.drift_path,
            "calendar": self.data.drift_calendar,
        }
        files = (
            self.program_files["gb10_drift.py"],
            PlacedFile(f"{folder}/drift_state.py", look, mode="0755"),
            PlacedFile(f"{folder}/gb10_mask.py", mask),
            PlacedFile("/etc/systemd/system/gb10-drift.service", render("gb10-drift.service.j2", **values)),
            PlacedFile("/etc/systemd/system/gb10-drift.timer", render("gb10-drift.timer.j2", **values)),
        )
        content = nightly.settings(self, [settings, *(file.path for file in files)])
        # A hook's address is often all that guards it.
        return (*files, PlacedFile(settings, json_text(content), mode="0600"))

    # -- watch --------------------------------------------------------------------------------------

    @cached_property
    def watch_description(self) -> str:
        """Hash of all that a running watch has read: it tells it back."""
        parts = [self.program_files[name].content for name in ("gb10_router.py", *watch_config.PROGRAMS)]
        parts += [self.lane_file.content, self._watch_config, *self._watch_units("").values()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @cached_property
    def watch_files(self) -> tuple[PlacedFile, ...]:
        """Settings, user and units of the watch."""
        number = self.data.lane_user_id
        # Its number is in its name: another number in the data is another user.
        user = f'u gb10-{number} {number} "gb10 watch and model servers" /\n'
        units = self._watch_units(self.watch_description)
        return (
            PlacedFile(watch_config.CONFIG, self._watch_config),
            PlacedFile(watch_config.USER_FILE, user),
            *(PlacedFile(f"/etc/systemd/system/{unit}", text) for unit, text in units.items()),
        )

    @cached_property
    def _watch_config(self) -> str:
        return json_text(watch_config.watch_config(self.data, self.catalogue, self.baselines, self.lane_path))

    def _watch_units(self, description: str) -> dict[str, str]:
        data = self.data
        values = {
            "lane": data.lane_name,
            "address": data.lane_address,
            "program_dir": data.program_dir,
            "config": watch_config.CONFIG,
            "description": description,
            "user_id": data.lane_user_id,
            "kernel_log": data.watch_kernel_log,
            "folder": watch_config.watch_folder(data),
            "webhook_file": data.watch_webhook_file,
            "notify_command": list(data.notify_command),
            "socket": watch_config.SOCKET,
            "hand_run": watch_config.HAND_RUN,
        }
        return {unit: render(f"{unit}.j2", **values) for unit in watch_config.UNITS}

    # -- everything ---------------------------------------------------------------------------------

    @cached_property
    def program_files(self) -> dict[str, PlacedFile]:
        """The on-box programs by their file name."""
        folder = self.data.program_dir
        texts = {name: (TOP / "files" / name).read_text() for name in PROGRAMS}
        return {
            # What is only imported cannot be run.
            name: PlacedFile(f"{folder}/{name}", text, mode="0755" if text.startswith("#!") else "0644")
            for name, text in texts.items()
        }

    def files(self) -> Iterable[PlacedFile]:
        """Every file that the deploy puts on the box, in the order of the stages."""
        yield from (file for name, file in self.program_files.items() if name != "gb10_drift.py")
        yield from self.toolkit_files
        yield self.dockerfile_file
        yield self.image_file
        yield self.fetch_manifest_file
        yield self.presets_file
        yield self.lane_file
        yield self.unit_file
        yield from self.nightly_files
        yield from self.watch_files
