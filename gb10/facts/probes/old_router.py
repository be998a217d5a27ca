"""A hand-made router as it is: see OldRouter in gb10/facts/old_router.py for question and answer."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys

UNIT_FOLDERS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")


def run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def unit_text(unit: str) -> str:
    """The unit with its drop-ins, as systemd joins them; empty when there is none."""
    return run("systemctl", "cat", "--no-pager", unit)


def listener(port: int) -> tuple[str, str]:
    """(unit, container id) of whoever listens on a TCP port; empty texts where there is none."""
    match = re.search(r"pid=(\d+)", run("ss", "--no-header", "--tcp", "--listening", "--processes",
                                        "--numeric", f"sport = :{port}"))  # fmt: skip
    if not match:
        return "", ""
    try:
        with open(f"/proc/{match[1]}/cgroup", encoding="ascii") as file:
            group = file.read()
    except OSError:
        return "", ""
    container = re.search(r"(?:docker-|/docker/)([0-9a-f]{64})", group)
    unit = re.search(r"/([^/\n]+\.service)", group)
    return (unit[1] if unit else ""), (container[1] if container else "")


def container_on(port: int) -> str:
    """Name of the container that publishes a port, running or not; empty when there is none."""
    names = run("docker", "ps", "--all", "--filter", f"publish={port}", "--format", "{{.Names}}").split()
    return names[0] if names else ""


def unit_with(*texts: str) -> str:
    """The unit file that holds one of the texts and starts a llama-server; an own one before the system's."""
    for folder in UNIT_FOLDERS:
        for path in sorted(glob.glob(f"{folder}/*.service")):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    content = file.read()
            except OSError:
                continue
            starts = "docker run" in content or "llama-server" in content or "docker start" in content
            if starts and any(
                re.search(rf"(?<![\w-]){re.escape(text)}(?![\w-])", content) for text in texts if text
            ):
                return os.path.basename(path)
    return ""


def inspected(name: str) -> dict[str, object] | None:
    """Docker's answer about a container, and what its image sets by itself; None when there is no such
    one."""
    try:
        container = json.loads(run("docker", "container", "inspect", name))[0]
    except (ValueError, IndexError):
        return None
    image = run("docker", "image", "inspect", "--format", "{{json .Config.Env}}", str(container["Image"]))
    return {"container": container, "image_environment": json.loads(image or "[]") or []}


def content_of(path: str) -> str | None:
    """Text of a file, None when it cannot be read."""
    try:
        # As it is: a carriage return ends a line for llama.cpp.
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def main(question: dict[str, object]) -> dict[str, object]:
    if question.get("read"):
        return {"content": content_of(str(question["read"]))}
    port, unit, container = int(str(question["port"])), str(question["unit"] or ""), ""
    if not unit:
        process_unit, process_container = listener(port)
        container = container_on(port) or process_container
        known = inspected(container) if container else None
        name = str(known["container"]["Name"]).lstrip("/") if known else ""  # type: ignore[index]
        foreign = process_unit in ("docker.service", "containerd.service")
        unit = unit_with(name, str(port)) if name or not process_unit or foreign else process_unit
    text = unit_text(unit) if unit else ""
    return {"unit": unit, "text": text, "inspect": inspected(container) if container else None}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
