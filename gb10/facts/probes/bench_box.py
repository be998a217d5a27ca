"""What a bench runs on: see BenchBox in gb10/facts/bench_box.py for question and answer."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def digest_of(path: str) -> str:
    """sha256 of a file, empty when there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def main(question: dict[str, str]) -> dict[str, str]:
    shown = run(
        "docker", "container", "inspect", "--format", "{{.Config.Image}} {{.Image}}", question["lane"]
    )
    image, _, image_id = shown.partition(" ")
    # One line for each GPU; they share the driver.
    driver = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return {
        "image": image,
        "image_id": image_id,
        "presets": digest_of(question["presets"]),
        "driver": driver[0].strip() if driver else "",
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
