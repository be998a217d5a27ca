#!/usr/bin/env python3
"""Build the lane's image, prove what it is, and keep only the images that are needed.

Usage:
  gb10_image.py IMAGE.json build             build; the image gets its tag only when every proof holds
  gb10_image.py IMAGE.json prove             the same proofs again, of the image that is there; one that is no
                                             build of this description is built
  gb10_image.py IMAGE.json retag ID          the tag names ID again, unless what it names is such a build too
  gb10_image.py IMAGE.json list [whole]      all images of that name, as one JSON object; whole: with the
                                             help text of each
  gb10_image.py IMAGE.json prune TAG...      remove these images, with what was kept of their builds; one that
                                             a container uses is never removed

A build whose proofs do not hold is kept as NAME:failed, for somebody to look at. The proofs that need the
accelerator are taken here and not in the build: Docker gives it to containers, not to builds.
Exit status: 0 done, 1 not, with the reason in the last line; 2 bad usage.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# The programs lie in one folder, which is where python3 looks first.
import gb10_gate

TALK_SECONDS = 120  # for Docker, and for a server that only says what it is
BUILDS_KEPT = 20
NO_MODEL = "/nonexistent.gguf"  # llama-server says what it is, then finds no model and ends


LABEL = "gb10.image"  # which image it was built as: its tag is the hash of all that went in


class ImageError(Exception):
    """The image is not what it should be, or Docker would not do it: one line."""


class OtherImage(ImageError):
    """It is no build of this description, whatever its name says."""


def docker(*arguments: str, timeout: float = TALK_SECONDS) -> subprocess.CompletedProcess[str]:
    """One docker command. Raises `ImageError` when it gives no answer."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"docker {arguments[0]} gave no answer in {timeout:.0f} s") from None
    except OSError as error:
        raise ImageError(f"docker cannot be run: {error.strerror}") from None


def _good(done: subprocess.CompletedProcess[str], what: str) -> str:
    if done.returncode:
        raise ImageError(f"{what}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return done.stdout


# -- what an image says of itself ------------------------------------------------------------------------


def proof_of(spec: dict[str, Any], image: str) -> dict[str, Any]:
    """Every proof of ``image``. Raises `ImageError` with the first one that does not hold, `OtherImage` when
    it was made of something else.

    {"id", "expectation", "size" (bytes), "user", "bases", "build" (its build.json), "version",
    "options" (--help, as text), "device", "devices" (those that it lists here), "system_info"}
    """
    shown = built_as(spec, image)
    try:
        build = json.loads(_kept(image, "build.json"))
        made_of = {"commit": build["commit"], "flags": build["flags"]}
    except (ValueError, KeyError, TypeError):
        raise OtherImage(f"{image} says in no build.json what it was made of") from None
    for what, found in made_of.items():
        if found != spec[what]:
            raise OtherImage(f"proof of the {what}: it was built with {found}, not {spec[what]}")
    return {
        "id": shown["Id"],
        "expectation": spec["expectation"],
        "size": shown["Size"],
        "user": shown["Config"].get("User", ""),
        "bases": {name: _base(reference) for name, reference in build["bases"].items()},
        "build": build,
        "version": _kept(image, "version.txt"),
        "options": _kept(image, "help.txt"),
        "device": spec["lane"]["device"],
        **accelerator_proof(spec, image),
    }


def built_as(spec: dict[str, Any], image: str) -> dict[str, Any]:
    """What Docker says of ``image``, once that was built as the one of ``spec``. Raises `ImageError`."""
    shown: dict[str, Any] = json.loads(_good(docker("image", "inspect", image), f"{image} is not in Docker"))[
        0
    ]
    name = (shown["Config"].get("Labels") or {}).get(LABEL, "nothing of this kind")
    if name != spec["image"]:
        raise OtherImage(f"{image} was built as {name}, not as {spec['image']}")
    return shown


def _base(reference: str) -> str:
    """A base as it was: its reference with a digest, or the id of one that only lies in this Docker."""
    if "@sha256:" in reference:
        return reference
    done = docker("image", "inspect", "--format", "{{.Id}}", reference)
    return f"{reference} (local, {done.stdout.strip()})" if done.returncode == 0 else f"{reference} (unknown)"


def _kept(image: str, name: str) -> str:
    path = f"/usr/share/gb10/{name}"
    command = ["run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "cat", image, path]
    return _good(docker(*command), f"{image} has no {path}")


def accelerator_proof(spec: dict[str, Any], image: str) -> dict[str, Any]:
    """What the server lists and says of itself where it has the accelerator. Raises `ImageError`."""
    lane = {**spec["lane"], "lane": f"{spec['lane']['lane']}-proof", "image": image}
    reason, _ = gb10_gate.look(lane)
    if reason:
        raise ImageError(f"proof of the accelerator: {reason}")
    command = gb10_gate.look_command(lane)
    command = [*command[1:-1], "--log-verbosity", "4", "--model", NO_MODEL]
    said = docker(*command)
    line = system_info(said.stdout + said.stderr)
    for wanted in spec["system_info"]:
        if wanted not in line:
            raise ImageError(
                f"proof of the system info: {wanted!r} is not in what it says: {line or 'nothing'}"
            )
    return {"devices": [spec["lane"]["device"]], "system_info": line}


def system_info(log: str) -> str:
    """llama.cpp's line on what it was compiled for, without its time and thread counts; or an empty text."""
    for line in log.splitlines():
        _, found, rest = line.partition("system_info: ")
        if found:
            return rest.partition(" | ")[2].strip(" |")
    return ""


# -- building ----------------------------------------------------------------------------------------------


def build(spec: dict[str, Any]) -> None:
    """Build, prove, and only then give the image its tag. Raises `ImageError`."""
    folder = Path(spec["folder"])
    history = read_history(spec)
    if history:
        print(f"gb10: the last build took {history[-1]['seconds']:.0f} s", flush=True)
    started, clock = time.time(), time.monotonic()  # the time of day may be set meanwhile
    iid = folder / "image.id"
    # Its output is the job's: BuildKit's own words, with ninja's progress in them.
    command = ["docker", "build", "--progress=plain", f"--label={LABEL}={spec['image']}"]
    command += [f"--iidfile={iid}", str(folder / "context")]
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode:
        raise ImageError("docker build failed")
    seconds = time.monotonic() - clock
    image = iid.read_text(encoding="ascii").strip()
    try:
        proof = proof_of(spec, image)
    except ImageError as error:
        kept = f"{spec['name']}:failed"
        docker("image", "tag", image, kept)
        raise ImageError(f"{error} (the image is kept as {kept})") from None
    proof |= {"built": stamp(started), "seconds": round(seconds)}
    write_json(folder / "proof.json", proof)
    if proof["build"]["compile"]["seconds"] <= seconds + 1:
        # Not one that only took layers out of the cache: it would promise too much.
        entry = {"image": spec["image"], "built": proof["built"], "seconds": proof["seconds"]}
        write_json(Path(spec["history"]), [*history, entry][-BUILDS_KEPT:])
    _good(docker("image", "tag", image, spec["image"]), "docker image tag")
    print(f"gb10: {spec['image']} is proven: {summary(proof)}", flush=True)


def summary(proof: dict[str, Any]) -> str:
    """One line for people: size, what it lists, what its compile found in ccache."""
    compiled = proof["build"]["compile"]
    found, missed = compiled["ccache_hits"], compiled["ccache_misses"]
    return (
        f"{proof['size'] / 1e6:.0f} MB, {proof['device']} listed, compiled in {compiled['seconds']} s "
        f"({found} of {found + missed} files from ccache)"
    )


def prove(spec: dict[str, Any]) -> None:
    """Take the proofs of an image that is there, as one that came from a file. Raises `ImageError`.

    One that only has the name of ours is built; one that is ours and does not work here would not by that.
    """
    try:
        proof = proof_of(spec, spec["image"])
    except OtherImage as error:
        print(f"gb10: {error}: it is built again", flush=True)
        build(spec)
        return
    path = Path(spec["folder"]) / "proof.json"
    try:
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        known = {}
    if known.get("id") != proof["id"]:
        known = {}  # the time of another build
    write_json(path, {key: known[key] for key in ("built", "seconds") if key in known} | proof)
    print(f"gb10: {spec['image']} is proven: {summary(proof)}", flush=True)


def retag(spec: dict[str, Any], former: str) -> None:
    """Undo what somebody did to the tag: it names the image with the id ``former`` again, if that is there.

    A build of this description, as one that was imported, stays: it has to prove itself next. Nothing is
    removed. Raises `ImageError`.
    """
    try:
        built_as(spec, spec["image"])
    except OtherImage as error:
        if docker("image", "inspect", former).returncode:
            print(f"gb10: {error}: it is built again", flush=True)
            return
        _good(docker("image", "tag", former, spec["image"]), "docker image tag")
        print(f"gb10: {error}: the tag names {former} again", flush=True)
    else:
        print(f"gb10: {spec['image']} is another build of the same now: it has to prove itself", flush=True)


def read_history(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Builds that compiled, oldest first: {"image", "built", "seconds"}; [] when there is no such file."""
    try:
        history: list[dict[str, Any]] = json.loads(Path(spec["history"]).read_text(encoding="utf-8"))
        return [entry for entry in history if isinstance(entry["seconds"], (int, float))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def stamp(seconds: float) -> str:
    """A point in time as text, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def write_json(path: Path, content: object) -> None:
    """Write a file so that a power cut leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


# -- keeping -----------------------------------------------------------------------------------------------


def images(spec: dict[str, Any], *, whole: bool) -> list[dict[str, Any]]:
    """All images of the name, newest first: {"image", "id", "size" (bytes), "created", "used_by", "proof"}.

    ``used_by`` are the containers, running or not, that were made from it; ``proof`` its proof.json or null.
    """
    listed = _good(
        docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", spec["name"]), "docker image ls"
    )
    names = [name for name in listed.split() if not name.endswith(":<none>")]
    if not names:
        return []
    # One may go between the two commands: what is found is printed all the same.
    # An image with two names is shown twice.
    shown = {entry["Id"]: entry for entry in json.loads(docker("image", "inspect", *names).stdout or "[]")}
    used = _used_images()
    found = []
    for entry in shown.values():
        for name in sorted(set(entry["RepoTags"]) & set(names)):
            found.append(
                {
                    "image": name,
                    "id": entry["Id"],
                    "size": entry["Size"],
                    "created": entry["Created"],
                    "used_by": used.get(entry["Id"], []),
                    "proof": _proof_file(spec, name, whole),
                }
            )
    return sorted(found, key=lambda entry: str(entry["created"]), reverse=True)


def _used_images() -> dict[str, list[str]]:
    """Image id to the containers made from it."""
    containers = _good(docker("ps", "--all", "--quiet"), "docker ps").split()
    if not containers:
        return {}
    used: dict[str, list[str]] = {}
    for line in docker("inspect", "--format", "{{.Image}} {{.Name}}", *containers).stdout.splitlines():
        image, _, name = line.partition(" ")
        used.setdefault(image, []).append(name.lstrip("/"))
    return used


def _proof_file(spec: dict[str, Any], image: str, whole: bool) -> Any:
    tag = image.rpartition(":")[2]
    path = Path(spec["folder"]).parent / tag / "proof.json"
    try:
        proof = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return proof if whole else {key: value for key, value in proof.items() if key != "options"}


def prune(spec: dict[str, Any], tags: list[str]) -> None:
    """Remove images by name. Raises `ImageError` on one that a container uses, or that is not ours."""
    for image in tags:
        if not image.startswith(f"{spec['name']}:"):
            raise ImageError(f"{image} is not an image of {spec['name']}")
        # Without --force: Docker itself refuses an image that a container uses.
        _good(docker("image", "rm", image), f"{image} is not removed")
        folder = Path(spec["folder"]).parent / image.rpartition(":")[2]
        if folder != Path(spec["folder"]):
            # A proof that outlives its image would be taken for that of the next one of this name.
            shutil.rmtree(folder, ignore_errors=True)
        print(f"gb10: {image} removed", flush=True)


def main(arguments: list[str]) -> int:
    verbs = {"build": build, "prove": prove}
    more = {"list": (2, 3), "prune": (3, 99), "retag": (3, 3)}
    fewest, most = more.get(arguments[1] if len(arguments) > 1 else "", (2, 2))
    if not fewest <= len(arguments) <= most or arguments[1] not in (*verbs, *more):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        if arguments[1] == "list":
            print(json.dumps({"images": images(spec, whole=arguments[2:] == ["whole"])}))
        elif arguments[1] == "prune":
            prune(spec, arguments[2:])
        elif arguments[1] == "retag":
            retag(spec, arguments[2])
        else:
            verbs[arguments[1]](spec)
    except ImageError as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        reason = f"{arguments[0]} or what it names cannot be read: {error}"
    except (KeyError, TypeError) as error:
        reason = f"{arguments[0]} is not what this program expects ({type(error).__name__}: {error})"
    else:
        return 0
    print(f"gb10: {reason}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
