#!/usr/bin/env python3
"""Keep each lane that has answered, and go back to one that did.

A generation is the unit file, the presets and the lane description that a verified deploy left, with the
image that they name. The current one is that which answered last, the previous one what served before it.

Usage:
  gb10_generations.py LANE.json keep                     what is installed has answered: keep it
  gb10_generations.py LANE.json list                     all of them, as one JSON object
  gb10_generations.py LANE.json back [--to TAG|NUMBER] [--unverified] [--why TEXT]
      put an earlier lane in place, restart, and see that it answers. Without --to: the one that an earlier
      run was going to and did not bring to its end; else the current one if something else is installed,
      else the previous one. With --unverified: only if something else is installed. A second run beside the
      first waits for its end and says what it said. Prints one JSON object: {"state", "reason", "to",
      "image", "answer"}; state is back (it answers), stuck (it does not either) or nothing (there is nowhere
      to go).

The API key, the image and the model files are never touched.
Exit status: 0 done, 1 not, 2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

# The programs lie in one folder, which is where python3 looks first.
import gb10_router
from gb10_history import (
    Generation,
    GenerationError,
    add,
    contents_of,
    damaged,
    differences,
    digest,
    digest_of,
    lane_files,
    read_changes,
    read_generations,
    record,
    serve,
    served_of,
    write,
    write_all,
)

RESTART_SECONDS = 600
PAUSE_SECONDS = 0.2
GOING_TO = "going-to"  # the number of the generation that is being put in place, until it has answered
OUTCOME = "outcome.json"  # what the last `back` said
LABEL = re.compile(rb"--label gb10\.lane=(\S+)")


def keep(lane: dict[str, Any], lane_path: str) -> Generation:
    """Keep what is installed, unless that is the current one already. Raises `GenerationError`."""
    folder = Path(lane["generations"])
    with alone(folder):
        try:
            contents = {name: path.read_bytes() for name, path in lane_files(lane, lane_path).items()}
        except OSError:
            raise GenerationError("a file of the lane is missing: run the deploy again") from None
        served = served_of(folder, read_generations(folder))
        if served and served[-1].digest == digest(contents):
            kept = served[-1]
        else:
            kept = add(folder, lane["image"], image_id(lane["image"]), contents)
            record(folder, {"what": "kept", "number": kept.number, "image": kept.image})
        for name in (GOING_TO, OUTCOME):
            (folder / name).unlink(missing_ok=True)
        return kept


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """One at a time, also when the connection that began it was lost; True where another had to end first."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="ascii") as file:
        waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = True
                time.sleep(PAUSE_SECONDS)
        yield waited


def choose(
    generations: list[Generation],
    served: list[Generation],
    going: Generation | None,
    installed: str,
    to: str,
    unverified: bool,
) -> Generation:
    """Where to go back to. Raises `GenerationError`.

    ``served``: see `served_of`. ``going``: where an earlier run was going to. ``installed`` is the digest of
    what is in place.
    """
    if to:
        named = [one for one in generations if to in (one.image, one.image.rpartition(":")[2])]
        named = named or [one for one in generations if to == str(one.number)]
        if not named:
            known = (
                ", ".join(f"{one.number} ({one.image.rpartition(':')[2]})" for one in generations) or "none"
            )
            raise GenerationError(
                f"no lane with image {to} is kept, nor one of that number: there are {known}"
            )
        # Files that are in place are no running lane yet, where an earlier run did not come to its end.
        if named[-1].digest == installed and going is None:
            raise GenerationError(f"lane {to} is in place already")
        return named[-1]
    if going is not None:
        return going
    if not served:
        raise GenerationError("no lane has answered yet: there is nothing to go back to")
    if served[-1].digest != installed:
        return served[-1]
    if unverified:
        raise GenerationError("the lane is the one that answered last: going back would change nothing")
    earlier = [one for one in served if one.digest != installed]
    if not earlier:
        raise GenerationError("there is no earlier lane: this is the first that answered")
    return earlier[-1]


def back(lane: dict[str, Any], lane_path: str, to: str, unverified: bool, why: str) -> dict[str, Any]:
    """Put an earlier generation in place and see that it answers; what the usage above says."""
    folder = Path(lane["generations"])
    outcome = folder / OUTCOME
    with alone(folder) as waited:
        if waited:
            # Asked again, over a new connection: another step back would be one too many.
            with contextlib.suppress(OSError, ValueError):
                said: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
                if to in ("", said["image"], said["image"].rpartition(":")[2], str(said["to"])):
                    return said
        outcome.unlink(missing_ok=True)
        done = _back(lane, lane_path, to, unverified, why)
        with contextlib.suppress(OSError):
            write(outcome, json.dumps(done).encode())
        return done


def _back(lane: dict[str, Any], lane_path: str, to: str, unverified: bool, why: str) -> dict[str, Any]:
    folder, files = Path(lane["generations"]), lane_files(lane, lane_path)
    generations = read_generations(folder)
    served, installed = served_of(folder, generations), digest_of(files)
    going = going_to(folder, generations)
    try:
        target = choose(generations, served, going, installed, to, unverified)
        refuse_image(folder, target)
        contents = contents_of(folder, target)
        old_unit = files["unit"].read_bytes() if files["unit"].exists() else b""
        write(folder / GOING_TO, f"{target.number}\n".encode())
        write_all({path: contents[name] for name, path in files.items()})
    except GenerationError as error:
        return {"state": "nothing", "reason": str(error), "to": 0, "image": "", "answer": None}
    except OSError as error:
        reason = f"the lane's files cannot be written ({error}): make room, then run it again"
        return {"state": "nothing", "reason": reason, "to": 0, "image": "", "answer": None}
    lane = json.loads(contents["lane.json"])
    try:
        # What runs may be another lane than the files that are in place.
        same = old_unit == contents["unit"] and running_label(lane) == label_of(contents["unit"])
        take_up(lane, restart=not same)
        answer = gb10_router.verify(lane)
        if answer["state"] == "answered":
            refuse_another(lane, target, contents, files)
    except (gb10_router.RouterError, GenerationError, OSError) as error:
        answer = {"state": "down", "reason": str(error)}
    good = answer["state"] == "answered"
    if good:
        serve(folder, served, target)
        (folder / GOING_TO).unlink(missing_ok=True)
    entry = {"what": "back", "number": target.number, "image": target.image, "why": why, "answered": good}
    record(folder, {**entry, "from": installed[:12]})
    return {
        "state": "back" if good else "stuck",
        "reason": "" if good else str(answer.get("reason", "")),
        "to": target.number,
        "image": target.image,
        "answer": answer,
    }


def going_to(folder: Path, generations: list[Generation]) -> Generation | None:
    """Where a run was going to that did not bring it to its end."""
    try:
        number = int((folder / GOING_TO).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return next((one for one in generations if one.number == number), None)


def refuse_image(folder: Path, target: Generation) -> None:
    """The image's name must still mean the image that answered, or one that has proven itself since."""
    there = image_id(target.image)
    if not there:
        raise GenerationError(f"image {target.image} is not on this host any more: import it, or deploy")
    proof = folder.parent / "image" / target.image.rpartition(":")[2] / "proof.json"
    try:
        proven = dict(json.loads(proof.read_text(encoding="utf-8"))).get("id")
    except (OSError, ValueError, TypeError):
        proven = None
    if there not in (target.image_id, proven):
        raise GenerationError(
            f"{target.image} names another image than the one that answered, and it has proven nothing: "
            f"docker tag {target.image_id} {target.image}, or deploy"
        )


def refuse_another(
    lane: dict[str, Any], target: Generation, contents: dict[str, bytes], files: dict[str, Path]
) -> None:
    """What has answered must be what was put in place. Raises `GenerationError`."""
    if running_label(lane) != label_of(contents["unit"]):
        raise GenerationError(f"what answers is another container than that of lane {target.number}")
    if digest_of(files) != target.digest:
        raise GenerationError(f"somebody has changed the files of lane {target.number} meanwhile")


def label_of(unit: bytes) -> str:
    """The label of the container that a unit starts, which says its image and options."""
    found = LABEL.search(unit)
    return found[1].decode(errors="replace") if found else ""


def running_label(lane: dict[str, Any]) -> str:
    """The same of the container that runs; empty when there is none."""
    command = ["docker", "inspect", "--type", "container", "--format", '{{index .Config.Labels "gb10.lane"}}']
    done = subprocess.run([*command, lane["lane"]], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def take_up(lane: dict[str, Any], *, restart: bool) -> None:
    """Let the running lane become what its files say. Raises `GenerationError`, RouterError."""
    unit = f"{lane['lane']}.service"
    run("systemctl", "daemon-reload")
    active = gb10_router.unit_state(lane) == "active"
    if active and not restart:
        gb10_router.reload(lane)
        return
    # Our own restarts must not count as crashes.
    subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
    run("systemctl", "restart", unit)


def run(*command: str) -> str:
    """One command. Raises `GenerationError` with its last line."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=RESTART_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise GenerationError(f"{' '.join(command)}: no answer in {RESTART_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise GenerationError(f"{' '.join(command)}: {last}")
    return done.stdout


def image_id(image: str) -> str:
    """Docker's id of an image; empty when it is not there."""
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def listed(lane: dict[str, Any], lane_path: str) -> dict[str, Any]:
    """{"current", "going_to" and "next" (where `back` goes): numbers or 0, "served" and "damaged": numbers,
    "installed": digest, "generations": [...], each with "differs" and "restarts", "changes": [...]}."""
    folder = Path(lane["generations"])
    generations = read_generations(folder)
    served, going = served_of(folder, generations), going_to(folder, generations)
    files = lane_files(lane, lane_path)
    in_place = {name: path.read_bytes() for name, path in files.items() if path.exists()}
    installed = digest_of(files)
    try:
        following = choose(generations, served, going, installed, "", False).number
    except GenerationError:
        following = 0
    kept = []
    for one in generations:
        own = contents_of(folder, one)
        restarts = own["unit"] != in_place.get("unit")
        kept.append({**asdict(one), "differs": differences(own, in_place), "restarts": restarts})
    return {
        "current": served[-1].number if served else 0,
        "served": [one.number for one in served],
        "going_to": going.number if going else 0,
        "next": following,
        "damaged": damaged(folder, generations),
        "installed": installed,
        "generations": kept,
        "changes": read_changes(folder),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("lane")
    parser.add_argument("verb", choices=("keep", "list", "back"))
    parser.add_argument("--to", default="")
    parser.add_argument("--unverified", action="store_true")
    parser.add_argument("--why", default="")
    asked = parser.parse_args(arguments)
    try:
        lane = json.loads(Path(asked.lane).read_text(encoding="utf-8"))
        if asked.verb == "keep":
            kept = keep(lane, asked.lane)
            print(f"gb10: lane {kept.number} with {kept.image} is kept")
        elif asked.verb == "list":
            print(json.dumps(listed(lane, asked.lane)))
        else:
            done = back(lane, asked.lane, asked.to, asked.unverified, asked.why)
            print(json.dumps(done))
            return 0 if done["state"] == "back" else 1
    except GenerationError as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        reason = f"{asked.lane} or a file that it names cannot be read or written: {error}"
    except (KeyError, TypeError) as error:
        reason = f"{asked.lane} is not what this program expects ({type(error).__name__}: {error})"
    else:
        return 0
    print(f"gb10: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
