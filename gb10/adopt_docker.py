"""A ``docker run`` command, an answer of ``docker inspect`` or a bare server, as one typed container."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

# Flags of `docker run` that take no value; every other one takes one.
_ALONE = frozenset(
    {"detach", "interactive", "tty", "rm", "privileged", "init", "read-only", "no-healthcheck", "publish-all"}
    | {"sig-proxy", "oom-kill-disable", "quiet", "disable-content-trust", "use-api-socket", "help"}
)
_SHORT = {
    "d": "detach", "i": "interactive", "t": "tty", "P": "publish-all", "q": "quiet",
    "e": "env", "v": "volume", "p": "publish", "u": "user", "w": "workdir", "h": "hostname", "m": "memory",
    "l": "label", "a": "attach", "c": "cpu-shares",
}  # fmt: skip
ANY_ADDRESS = "0.0.0.0"  # noqa: S104  (what Docker takes when none is named)


@dataclass(frozen=True)
class Published:
    """A port of the container on the host."""

    address: str
    host_port: int
    container_port: int


@dataclass(frozen=True)
class Container:
    """What a lane needs to know of a container. ``image`` None: no container, the server runs on the host.

    ``arguments`` follow the program. ``options`` are all other flags of ``docker run`` by their long name, in
    the order given, once for each time.
    """

    image: str | None
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    name: str = ""
    published: tuple[Published, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    host_network: bool = False
    passed_on: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def option(self, name: str) -> str | None:
        """The last value of a flag, or None."""
        values = self.options.get(name)
        return values[-1] if values else None


def container_of(argv: Sequence[str], environment: Mapping[str, str]) -> Container:
    """The container that ``argv`` starts, or the bare server; ``environment`` is of the starting process."""
    if PurePosixPath(argv[0]).name not in ("docker", "podman"):
        return Container(None, tuple(argv[1:]), dict(environment))
    start = next(at for at, word in enumerate(argv) if word in ("run", "create")) + 1
    options: dict[str, tuple[str, ...]] = {}
    image = ""
    arguments: tuple[str, ...] = ()
    words = list(argv[start:])
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            image, arguments = word, tuple(words)
            break
        for name, value in _flags(word, words):
            options[name] = (*options.get(name, ()), value)
    return _container(image, arguments, options, environment)


def _flags(word: str, rest: list[str]) -> Iterator[tuple[str, str]]:
    """The flags in one word, which may take their value from ``rest``."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = {"net": "network", "dns-opt": "dns-option"}.get(name, name)
        if not equals and name not in _ALONE:
            value = rest.pop(0) if rest else ""
        if not (equals and name in _ALONE and value == "false"):
            yield name, value
        return
    letters = word[1:]
    while letters:
        name, letters = _SHORT.get(letters[0], letters[0]), letters[1:]
        if name in _ALONE:
            yield name, ""
            continue
        value = letters.removeprefix("=") if letters else (rest.pop(0) if rest else "")
        yield name, value
        return


def _container(
    image: str, arguments: tuple[str, ...], options: dict[str, tuple[str, ...]], around: Mapping[str, str]
) -> Container:
    environment: dict[str, str] = {}
    passed_on: list[str] = []
    for entry in options.pop("env", ()):
        name, equals, value = entry.partition("=")
        if equals or name in around:
            environment[name] = value if equals else around[name]
        else:
            passed_on.append(name)
    entrypoint = options.pop("entrypoint", ())
    # An image whose entry point is a shell or nothing has the program as first argument.
    if not entrypoint and arguments and PurePosixPath(arguments[0]).name == "llama-server":
        arguments = arguments[1:]
    mounts = [pair for entry in options.pop("volume", ()) if (pair := _volume(entry))]
    mounts += [pair for entry in options.pop("mount", ()) if (pair := _mount(entry))]
    return Container(
        image=image,
        arguments=arguments,
        environment=environment,
        name=(options.pop("name", ("",)))[-1],
        published=tuple(port for entry in options.pop("publish", ()) if (port := _published(entry))),
        mounts=tuple(mounts),
        host_network="host" in options.get("network", ()),
        passed_on=tuple(passed_on),
        options=options,
    )


def _volume(entry: str) -> tuple[str, str] | None:
    """(folder in the container, folder on the host) of ``HOST:CONTAINER[:MODE]``; None for a named volume."""
    parts = entry.split(":")
    if len(parts) < 2 or not parts[0].startswith("/"):
        return None
    return parts[1].rstrip("/") or "/", parts[0].rstrip("/") or "/"


def _mount(entry: str) -> tuple[str, str] | None:
    parts = dict(part.partition("=")[::2] for part in entry.split(","))
    source = parts.get("source") or parts.get("src") or ""
    target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
    return _volume(f"{source}:{target}") if source and target else None


def _published(entry: str) -> Published | None:
    """``[ADDRESS:]HOST:CONTAINER[/tcp]``; None where the host's port is left to Docker or is a range."""
    match = re.fullmatch(r"(?:(?P<address>\[[^\]]*\]|[^:]*):)?(?P<host>\d+):(?P<inner>\d+)(?:/tcp)?", entry)
    if not match:
        return None
    return Published(match["address"] or ANY_ADDRESS, int(match["host"]), int(match["inner"]))


def container_from_inspect(answer: Mapping[str, Any], image_environment: Sequence[str]) -> Container:
    """The container that ``docker inspect`` describes; what its image sets by itself is left out."""
    config, host = answer["Config"], answer["HostConfig"]
    options: dict[str, tuple[str, ...]] = {
        "env": tuple(entry for entry in config.get("Env") or () if entry not in image_environment),
        "name": (str(answer["Name"]).lstrip("/"),),
        "volume": tuple(
            f"{mount['Source']}:{mount['Destination']}"
            for mount in answer.get("Mounts") or ()
            if mount.get("Type") == "bind"
        ),
        "publish": tuple(
            f"{binding.get('HostIp') or ANY_ADDRESS}:{binding['HostPort']}:{inner}"
            for inner, bindings in (host.get("PortBindings") or {}).items()
            for binding in bindings or ()
            if ":" not in (binding.get("HostIp") or "")
        ),
    }
    plain = {
        "network": host.get("NetworkMode") if host.get("NetworkMode") == "host" else "",
        "user": config.get("User"),
        "pids-limit": host.get("PidsLimit"),
        "stop-timeout": config.get("StopTimeout"),
        "restart": (host.get("RestartPolicy") or {}).get("Name"),
        "runtime": host.get("Runtime") if host.get("Runtime") != "runc" else "",
        "privileged": host.get("Privileged"),
        "memory": host.get("Memory"),
    }
    options |= {name: (str(value),) for name, value in plain.items() if value and value not in ("no", -1)}
    for request in host.get("DeviceRequests") or ():
        if request.get("Driver") == "cdi":
            options["device"] = (*options.get("device", ()), *(request.get("DeviceIDs") or ()))
        else:
            options["gpus"] = ("all",)
    for device in host.get("Devices") or ():
        options["device"] = (*options.get("device", ()), str(device["PathOnHost"]))
    arguments = [str(word) for word in answer.get("Args") or ()]
    program = PurePosixPath(str(answer.get("Path", ""))).name
    if program != "llama-server":
        # Behind an init or a shell's exec the server is one of the arguments.
        at = next((at for at, word in enumerate(arguments) if word.endswith("llama-server")), None)
        arguments = arguments if at is None else arguments[at + 1 :]
    return _container(str(config.get("Image", "")), tuple(arguments), options, {})
