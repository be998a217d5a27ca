#!/usr/bin/env python3
"""Brings model files to the box, and proves them before they get their name.

    python3 gb10_fetch.py MANIFEST.json            fetch what is missing; JSON lines on stdout; exit 0 or 1
    python3 gb10_fetch.py --check MANIFEST.json    say what is there; reads no file's content; changes nothing

The manifest (JSON) has: models_dir, hub (URL), token_file (path or null), parallel (downloads at a time),
reserve_bytes (disk space to leave free), search (folders that may hold the files already), and files, each
with repo, revision, file, size (bytes), sha256 and path (absolute, in models_dir). Optional: attempts (in a
row, without progress), timeout_s and backoff_s (seconds); of a file: made, the command that makes it where no
hub has it, so that it is proven and never fetched.

How it stays safe:
- Bytes go to PATH.part; PATH.part.json says how many of them are on the disk for sure. It may be killed at
  any moment, and the next run goes on from there. That is why no signal is handled.
- A file gets its name after its size and its sha256 are right. A set of shards gets its names together.
- Nothing is deleted or overwritten but this program's own .part files. Another file under a wanted name has
  it until the right one is proven; then it is set aside as NAME.set-aside-TIME, and a running router is to be
  started anew (.gb10-replaced.json), for it may hold what it read of the other one.
- The token goes to the hub's own origin only, and to no output.
- It leaves the page cache as it found it: on this machine the page cache and the models share one memory.

Python 3.10 or newer, standard library only.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import re
import signal
import stat
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any, NoReturn, TextIO

CHUNK = 1 << 18
# A part is brought to the disk this often, so a cut costs at most this much.
SYNC_BYTES = 64 << 20
SYNC_SECONDS = 1.0
LONGEST_WAIT_S = 120.0
REDIRECTS = {301, 302, 303, 307, 308}
FICLONE = 0x40049409  # ioctl of linux/fs.h: the copy shares its blocks with the source (btrfs, xfs)
SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
REPLACED = ".gb10-replaced.json"
PLAIN = re.compile(r"^[A-Za-z0-9._/-]+$")
SHA256 = re.compile(r"^[0-9a-f]{64}$")


class Failed(Exception):
    """This file cannot be had. The text is the one line for the person who reads it."""


class Cut(Exception):
    """The transfer broke; another try may help. `wait_s`: how long the server asks us to wait, if it does."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class StartOver(Cut):
    """What an earlier run left did not make the right file. Raised once for a file."""


# ---------------------------------------------------------------------------------------------- manifest


@dataclass(frozen=True)
class Wanted:
    """One file that should be at `path`: `size` bytes whose digest is `sha256`."""

    repo: str
    revision: str
    file: str
    size: int
    sha256: str
    path: Path
    made: str = ""

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    @property
    def label(self) -> str:
        shard = SHARD.match(self.file)
        which = f" (shard {int(shard['number'])} of {int(shard['count'])})" if shard else ""
        return f"{self.repo}/{self.file}{which}"

    @property
    def group(self) -> str:
        """What gets its name together: the shards of one model, else the file alone."""
        shard = SHARD.match(str(self.path))
        return shard["stem"] if shard else str(self.path)


@dataclass(frozen=True)
class Manifest:
    models_dir: Path
    hub: str
    token_file: Path | None
    parallel: int
    reserve_bytes: int
    search: tuple[Path, ...]
    files: tuple[Wanted, ...]
    attempts: int = 8
    timeout_s: float = 60.0
    backoff_s: float = 1.0


def read_manifest(path: Path) -> Manifest:
    """Reads and checks the manifest. Raises `Failed` with every fault, one a line."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"{path}: the manifest cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise Failed(f"{path}: the manifest is not a JSON object")
    faults: list[str] = []

    def take(source: Mapping[str, Any], where: str, key: str, kind: type, default: Any = None) -> Any:
        value = source.get(key, default)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            faults.append(f"{path}: {where}{key}: should be {kind.__name__}, is {value!r}")
            return kind()
        return value

    models_dir = Path(take(data, "", "models_dir", str))
    if not models_dir.is_absolute() or os.path.normpath(models_dir) != str(models_dir):
        faults.append(f"{path}: models_dir: should be an absolute, plain path, is {models_dir}")
    hub = take(data, "", "hub", str).rstrip("/")
    if urllib.parse.urlsplit(hub).scheme not in ("http", "https"):
        faults.append(f"{path}: hub: should be an http or https URL, is {hub!r}")
    files: list[Wanted] = []
    for number, entry in enumerate(take(data, "", "files", list)):
        where = f"files[{number}]."
        if not isinstance(entry, dict):
            faults.append(f"{path}: files[{number}]: should be an object")
            continue
        texts = {key: take(entry, where, key, str) for key in ("repo", "revision", "file", "sha256", "path")}
        size = take(entry, where, "size", int)
        for key in ("repo", "revision", "file"):
            if not PLAIN.match(texts[key]) or ".." in texts[key].split("/") or texts[key].startswith("/"):
                faults.append(f"{path}: {where}{key}: {texts[key]!r} is not a plain name")
        if not SHA256.match(texts["sha256"]):
            faults.append(f"{path}: {where}sha256: should be 64 hex digits, is {texts['sha256']!r}")
        if size <= 0:
            faults.append(f"{path}: {where}size: should be a number of bytes above 0, is {size}")
        target = Path(texts["path"])
        if os.path.normpath(target) != texts["path"] or models_dir not in target.parents:
            faults.append(f"{path}: {where}path: should be a plain path in {models_dir}, is {target}")
        if any(known.path == target for known in files):
            faults.append(f"{path}: {where}path: {target} is there twice")
        made = take(entry, where, "made", str, "")
        files.append(
            Wanted(texts["repo"], texts["revision"], texts["file"], size, texts["sha256"], target, made)
        )
    faults += [f"{path}: {text}" for text in missing_shards(files)]
    token_file = data.get("token_file")
    result = Manifest(
        models_dir=models_dir,
        hub=hub,
        token_file=Path(str(token_file)) if token_file else None,
        parallel=take(data, "", "parallel", int, 2),
        reserve_bytes=take(data, "", "reserve_bytes", int, 0),
        search=tuple(Path(str(folder)) for folder in take(data, "", "search", list, [])),
        files=tuple(files),
        attempts=take(data, "", "attempts", int, 8),
        timeout_s=take(data, "", "timeout_s", float, 60.0),
        backoff_s=take(data, "", "backoff_s", float, 1.0),
    )
    if not 1 <= result.parallel <= 16:
        faults.append(f"{path}: parallel: should be 1 to 16, is {result.parallel}")
    if faults:
        raise Failed("\n".join(faults))
    return result


def missing_shards(files: Sequence[Wanted]) -> list[str]:
    """A line for each shard that its own set's names promise but the manifest does not list."""
    sets: dict[tuple[str, int], set[int]] = {}
    for wanted in files:
        shard = SHARD.match(wanted.file)
        if shard:
            key = (f"{wanted.repo}/{shard['stem']}", int(shard["count"]))
            sets.setdefault(key, set()).add(int(shard["number"]))
    return [
        f"{stem}: shard {number} of {count} is missing from the manifest"
        for (stem, count), there in sets.items()
        for number in range(1, count + 1)
        if number not in there
    ]


def read_token(path: Path | None) -> str | None:
    """The hub's token, or None when there is no such file. Raises `Failed` when others may read the file."""
    if path is None or not path.exists():
        return None
    if path.stat().st_mode & 0o077:
        raise Failed(f"{path}: the token can be read by others: chmod 600 {path}")
    token = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"[!-~]+", token):
        raise Failed(f"{path}: the token file is empty or holds more than one word")
    return token


# ---------------------------------------------------------------------------------------------- reporting


@dataclass
class Track:
    """How far one file has come; the reporter's clock reads it once a second."""

    label: str
    phase: str
    size: int
    done: int = 0
    seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=11))

    def speed(self) -> float:
        """Bytes per second over the last ten seconds."""
        now = time.monotonic()
        self.seen.append((now, self.done))
        then, done = self.seen[0]
        return max(0.0, (self.done - done) / (now - then)) if now > then else 0.0


class Report:
    """JSON lines on a stream, never with the secret in them."""

    def __init__(self, stream: TextIO, secret: str | None = None) -> None:
        self.stream, self.secret = stream, secret
        self._lock = threading.Lock()
        self._tracks: list[Track] = []
        threading.Thread(target=self._clock, daemon=True).start()

    def emit(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields})
        if self.secret:
            line = line.replace(self.secret, "***")
        # A reader that has gone away is no reason to stop a download.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self.stream.write(line + "\n")
            self.stream.flush()

    @contextlib.contextmanager
    def track(self, wanted: Wanted, phase: str, done: int = 0) -> Iterator[Track]:
        track = Track(wanted.label, phase, wanted.size, done)
        track.speed()
        self._tracks.append(track)
        try:
            yield track
        finally:
            self._tracks.remove(track)

    def _clock(self) -> None:
        while True:
            time.sleep(1.0)
            for track in list(self._tracks):
                speed = track.speed()
                self.emit(
                    "progress",
                    file=track.label,
                    phase=track.phase,
                    done=track.done,
                    size=track.size,
                    bytes_per_second=round(speed),
                    eta_seconds=round((track.size - track.done) / speed) if speed >= 1 else None,
                )


# ---------------------------------------------------------------------------------------------- disk


def write_atomically(path: Path, data: Mapping[str, Any]) -> None:
    """Writes JSON so that a reader, even after a power cut, finds the old text or the new one."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written to the file system that `folder` is, or will be, on."""
    while not folder.exists():
        folder = folder.parent
    figures = os.statvfs(folder)
    return figures.f_bavail * figures.f_frsize


def human(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10_000_000 else f"{count} bytes"


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def set_aside(path: Path, models_dir: Path) -> Path:
    """Renames a file out of the way and returns its new name; notes the moment, on the clock by which systemd
    tells when a service started."""
    moment = {"boot": boot_id(), "monotonic_us": time.monotonic_ns() // 1000}
    write_atomically(models_dir / REPLACED, moment)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.set-aside-{stamp}")
    while os.path.lexists(aside):
        aside = aside.with_name(f"{aside.name}-")
    path.rename(aside)
    return aside


def closed(path: Path, models_dir: Path) -> list[Path]:
    """The file and the folders on the way to it that not everybody may read. The server is another user."""
    folders = [models_dir, *(folder for folder in path.parents if models_dir in folder.parents)]
    ways = [*((folder, 0o005) for folder in folders), (path, 0o004)]
    return [way for way, needed in ways if way.exists() and way.stat().st_mode & needed != needed]


class Verified:
    """What was read once need not be read again: path -> sha256, as long as size, mtime and inode stay."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._entries: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            known = json.loads(path.read_text(encoding="utf-8")).items()
            self._entries = {key: value for key, value in known if isinstance(value, dict)}

    @staticmethod
    def _mark(path: Path) -> dict[str, int] | None:
        try:
            figures = path.stat()
        except OSError:
            return None
        return {"size": figures.st_size, "mtime_ns": figures.st_mtime_ns, "inode": figures.st_ino}

    def sha256(self, path: Path) -> str | None:
        """The digest that this very file had when it was read, or None."""
        entry, mark = self._entries.get(str(path)), self._mark(path)
        if entry is None or mark is None or any(entry.get(key) != value for key, value in mark.items()):
            return None
        return str(entry.get("sha256"))

    def remember(self, path: Path, sha256: str) -> None:
        mark = self._mark(path)
        if mark is None:
            return
        with self._lock:
            self._entries[str(path)] = {**mark, "sha256": sha256}
            self._entries = {key: entry for key, entry in self._entries.items() if Path(key).exists()}
            # Only speed is lost if this cannot be written.
            with contextlib.suppress(OSError):
                write_atomically(self._path, self._entries)


def digest_of(path: Path, track: Track, limit: int | None = None) -> Any:
    """The running sha256 object of a file's first `limit` bytes (all by default)."""
    digest, left = hashlib.sha256(), sys.maxsize if limit is None else limit
    with path.open("rb", buffering=0) as stream:
        while left > 0 and (data := stream.read(min(left, 4 << 20))):
            digest.update(data)
            left -= len(data)
            track.done += len(data)
            os.posix_fadvise(stream.fileno(), 0, stream.tell(), os.POSIX_FADV_DONTNEED)
    return digest


class Part:
    """The file PATH.part while it grows. Its first `done` bytes have gone through `digest`."""

    def __init__(self, wanted: Wanted, report: Report, reserve_bytes: int) -> None:
        self.wanted, self.reserve_bytes = wanted, reserve_bytes
        self.state = wanted.part.with_name(wanted.part.name + ".json")
        self.etag: str | None = None
        self.done = self._synced = 0
        self.spliced = False  # made of more than one response
        self.doubted = False  # was started over for that once
        self.digest = hashlib.sha256()
        with self._disk():
            known = self._known()
            self._handle = os.open(wanted.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            if known:
                with report.track(wanted, "hash") as track:
                    self.digest = digest_of(wanted.part, track, known)
                self.done, self.spliced = known, True
            os.ftruncate(self._handle, self.done)
            os.lseek(self._handle, self.done, os.SEEK_SET)
        self._synced, self._synced_at = self.done, time.monotonic()

    def _known(self) -> int:
        """Bytes of an earlier run that are on the disk for sure and belong to this very file."""
        try:
            state = json.loads(self.state.read_text(encoding="utf-8"))
            same = state["sha256"] == self.wanted.sha256 and state["size"] == self.wanted.size
            synced = int(state["synced"])
            self.etag = str(state["etag"]) if state["etag"] else None
            there = self.wanted.part.stat()
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        return synced if same and stat.S_ISREG(there.st_mode) and 0 < synced <= there.st_size else 0

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Turns an error of the disk into the line that says what to do."""
        try:
            yield
        except OSError as error:
            kept = f"; {human(self._synced)} are kept in {self.wanted.part}" if self._synced else ""
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                free = human(free_bytes(self.wanted.path.parent))
                raise Failed(f"the disk is full ({free} free): make room and run again{kept}") from None
            raise Failed(f"cannot write {self.wanted.part}: {error.strerror}{kept}") from None

    def write(self, data: bytes) -> None:
        with self._disk():
            left = memoryview(data)
            while left:
                left = left[os.write(self._handle, left) :]
        self.digest.update(data)
        self.done += len(data)
        due = self.done - self._synced >= SYNC_BYTES
        if due or time.monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()
            if free_bytes(self.wanted.path.parent) < self.reserve_bytes:
                raise Failed(
                    f"the disk has less than the {human(self.reserve_bytes)} left that must stay free: "
                    f"make room and run again; {human(self._synced)} are kept in {self.wanted.part}"
                )

    def sync(self) -> None:
        """Data first, then the state that vouches for it."""
        with self._disk():
            os.fdatasync(self._handle)
            os.posix_fadvise(self._handle, 0, self.done, os.POSIX_FADV_DONTNEED)
            self._synced, self._synced_at = self.done, time.monotonic()
            wanted = self.wanted
            write_atomically(
                self.state,
                {"etag": self.etag, "sha256": wanted.sha256, "size": wanted.size, "synced": self.done},
            )

    def restart(self) -> None:
        with self._disk():
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
        self.digest, self.done, self.spliced, self.etag = hashlib.sha256(), 0, False, None
        self.sync()

    def discard(self) -> None:
        self.wanted.part.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._handle)


# ---------------------------------------------------------------------------------------------- hub


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are followed by hand: each hop decides anew whether the token may go along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.lower()


class Hub:
    """The one place that talks to the network."""

    def __init__(self, manifest: Manifest, token: str | None) -> None:
        self.base, self.token, self.token_file = manifest.hub, token, manifest.token_file
        self.timeout_s = manifest.timeout_s
        self._opener = urllib.request.build_opener(NoRedirect())

    def open(self, wanted: Wanted, offset: int, etag: str | None) -> http.client.HTTPResponse:
        """The file's bytes from `offset` on (status 206), or from 0 (status 200) if the server will not."""
        revision = urllib.parse.quote(wanted.revision, safe="")
        url = f"{self.base}/{wanted.repo}/resolve/{revision}/{urllib.parse.quote(wanted.file)}"
        attested = False
        for _ in range(6):
            scheme, host = origin(url)
            if scheme != "https" and not scheme == origin(self.base)[0] == "http":
                raise Failed(f"the hub redirects to {scheme}://{host}, which is less safe: refused")
            request = urllib.request.Request(url, headers={"User-Agent": "gb10-fetch"})  # noqa: S310
            if self.token and origin(url) == origin(self.base):
                request.add_header("Authorization", f"Bearer {self.token}")
            if offset:
                request.add_header("Range", f"bytes={offset}-")
                # Where the hub itself vouches for the sha256 the bytes are the same on any of its servers,
                # whatever ETag each of them makes up; else the ETag must be the one that we began with.
                if etag and not attested and not etag.startswith("W/"):
                    request.add_header("If-Range", etag)
            try:
                response: http.client.HTTPResponse = self._opener.open(request, timeout=self.timeout_s)
            except urllib.error.HTTPError as error:
                with error:
                    location = error.headers.get("Location")
                    if error.code not in REDIRECTS or not location:
                        self._refuse(wanted, url, error.code, error.headers)
                    attested = self._attest(wanted, error.headers) or attested
                    url = urllib.parse.urljoin(url, location)
                continue
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Cut(f"{host}: {getattr(error, 'reason', error)}") from None
            self._attest(wanted, response.headers)
            return response
        raise Failed("the hub redirects in a circle")

    @staticmethod
    def _attest(wanted: Wanted, headers: Message) -> bool:
        """True if the hub says that this is the sha256 wanted; raises `Failed` if it says another."""
        size, etag = headers.get("X-Linked-Size"), headers.get("X-Linked-Etag")
        if size and size.isdigit() and int(size) != wanted.size:
            raise Failed(
                f"the hub has {size} bytes, the lock says {wanted.size}: `gb10 pin --check` tells more"
            )
        digest = (etag or "").removeprefix("W/").strip('"').lower()
        if not SHA256.match(digest):
            return False
        if digest != wanted.sha256:
            raise Failed(
                f"the hub's sha256 is {digest}, the lock says {wanted.sha256}: `gb10 pin --check` tells more"
            )
        return True

    def _refuse(self, wanted: Wanted, url: str, code: int, headers: Message) -> NoReturn:
        host = origin(url)[1]
        reason = re.sub(r"[^\w .,:-]", "", headers.get("X-Error-Code") or "")[:60]
        said = f"{code} {reason}".strip()
        if code in (401, 403) and origin(url) == origin(self.base):
            if self.token:
                hint = f"the token in {self.token_file} does not open {wanted.repo}: ask for access to it"
            elif self.token_file:
                hint = f"a gated (or unknown) model, and the token file {self.token_file} is not there"
            else:
                hint = "a gated (or unknown) model, and no token file is set"
            raise Failed(f"{said} from {host}: {hint}")
        if code in (404, 410):
            raise Failed(
                f"{said} from {host}: no {wanted.file} in {wanted.repo} at revision {wanted.revision}"
            )
        # The address that a redirect gave may have run out (401, 403): the next try asks for a new one.
        if code in (401, 403, 408, 416, 425, 429) or code >= 500:
            after = headers.get("Retry-After") or ""
            raise Cut(f"{said} from {host}", float(after) if after.isdigit() else None)
        raise Failed(f"{said} from {host} for {wanted.file}")


# ---------------------------------------------------------------------------------------------- fetching


@dataclass(frozen=True)
class Ready:
    """A proven file that waits for its name. `staged` is None when it has it already; `replaces`: another
    file has that name, and is to be set aside."""

    wanted: Wanted
    staged: Path | None
    how: str
    source: Path | None = None
    replaces: bool = False


class Fetcher:
    def __init__(self, manifest: Manifest, hub: Hub, report: Report, verified: Verified) -> None:
        self.manifest, self.hub, self.report, self.verified = manifest, hub, report, verified
        self.to_come = to_come(manifest, verified)
        self.found = find_copies(manifest, self.to_come)

    def check_space(self) -> None:
        """Before the first byte: do all the files fit, with the reserve? Raises `Failed` with the numbers."""
        shortage = shortage_of(self.manifest, self.to_come, self.found)
        if shortage:
            raise Failed(f"{shortage}: make room; nothing was fetched")

    def prepare(self, wanted: Wanted) -> Ready:
        """Brings one file as far as it goes without its name. Raises `Failed`."""
        replaces = os.path.lexists(wanted.path)
        if replaces and (ready := self._already_there(wanted)):
            return ready
        wanted.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        for copy in self.found.get(wanted, ()):
            ready = self._take_copy(wanted, copy, replaces)
            if ready:
                return ready
        if wanted.made:
            raise Failed(f"{wanted.path} is not there, and no hub has it: run `{wanted.made}`")
        self._download(wanted)
        return Ready(wanted, wanted.part, "download", replaces=replaces)

    def _already_there(self, wanted: Wanted) -> Ready | None:
        """What has the name, if it is the right file; None if it is to be set aside. Raises `Failed`."""
        path = wanted.path
        if not path.is_file():
            raise Failed(f"{path} is there, but it is no file: move it away")
        size = path.stat().st_size
        if size != wanted.size:
            other = f"{size} bytes, the lock says {wanted.size}"
        else:
            sha256 = self._known_digest(wanted, path)
            if sha256 == wanted.sha256:
                return Ready(wanted, None, "already there", path)
            other = f"sha256 {sha256}, the lock says {wanted.sha256}"
        if wanted.made:
            way = f"no hub has the right one: `gb10 models rm` its model, then `{wanted.made}`"
            raise Failed(f"another file is at {path} ({other}); {way}")
        self.report.emit("note", file=wanted.label, message=f"another file is at {path} ({other})")
        return None

    def _known_digest(self, wanted: Wanted, path: Path) -> str:
        sha256 = self.verified.sha256(path)
        if sha256 is None:
            with self.report.track(wanted, "hash") as track:
                sha256 = str(digest_of(path, track).hexdigest())
            self.verified.remember(path, sha256)
        return sha256

    def _take_copy(self, wanted: Wanted, copy: Path, replaces: bool) -> Ready | None:
        """A copy on the box, as a hard link if that can be, else copied; None if it is another file.

        No symbolic link: the container sees the models folder alone, so it would point to nothing in there.
        """
        staged = wanted.part.with_name(wanted.path.name + ".copy.part")
        staged.unlink(missing_ok=True)
        try:
            if self._known_digest(wanted, copy) != wanted.sha256:
                return None
            # A link shares the mode; a file that only its owner may read is of no use to the container.
            if copy.stat().st_mode & stat.S_IROTH:
                with contextlib.suppress(OSError):
                    os.link(copy, staged)
                    if staged.samefile(copy) and self.verified.sha256(copy) == wanted.sha256:
                        return Ready(wanted, staged, "hard link", copy, replaces)
            staged.unlink(missing_ok=True)
            if free_bytes(staged.parent) < wanted.size + self.manifest.reserve_bytes:
                raise Failed(f"{copy} would do, but the disk has no room for a second copy: make room")
            with self.report.track(wanted, "copy") as track:
                if copy_file(copy, staged, track) == wanted.sha256:
                    return Ready(wanted, staged, "copy", copy, replaces)
        except OSError as error:
            self.report.emit("note", file=wanted.label, message=f"{copy} is of no use: {error}: downloading")
        staged.unlink(missing_ok=True)
        return None

    def _download(self, wanted: Wanted) -> None:
        """Fills PATH.part until it is proven. Tries again as long as it gets on. Raises `Failed`."""
        part = Part(wanted, self.report, self.manifest.reserve_bytes)
        tries, best = 0, part.done
        try:
            while True:
                try:
                    self._transfer(part)
                    return
                except Cut as cut:
                    part.sync()
                    # A hundredth of the file counts as getting on; so there is an end to it on any line.
                    if isinstance(cut, StartOver):
                        tries, best = 0, 0
                    elif part.done >= best + max(1, wanted.size // 100):
                        tries, best = 0, part.done
                    tries += 1
                    if tries >= self.manifest.attempts:
                        kept = f"; {human(part.done)} are kept in {wanted.part}" if part.done else ""
                        raise Failed(f"{cut} (gave up after {tries} tries without progress{kept})") from None
                    wait = (
                        cut.wait_s if cut.wait_s is not None else self.manifest.backoff_s * 2 ** (tries - 1)
                    )
                    wait = min(wait, LONGEST_WAIT_S)
                    self.report.emit(
                        "retry", file=wanted.label, reason=str(cut), done=part.done, wait_seconds=wait
                    )
                    time.sleep(wait)
        finally:
            part.close()
            if not part.done:
                part.discard()

    def _transfer(self, part: Part) -> None:
        """One request, up to the proven end. Raises `Cut` or `Failed`."""
        wanted = part.wanted
        if part.done < wanted.size:
            with self.hub.open(wanted, part.done, part.etag) as response:
                expect_body(part, response)
                with self.report.track(wanted, "download", part.done) as track:
                    while part.done < wanted.size:
                        try:
                            data = response.read1(CHUNK)
                        except (OSError, http.client.HTTPException, ValueError) as error:
                            raise Cut(
                                f"the connection broke at {part.done} of {wanted.size} bytes: {error}"
                            ) from None
                        if not data:
                            raise Cut(
                                f"the server closed the connection at {part.done} of {wanted.size} bytes"
                            )
                        part.write(data[: wanted.size - part.done])
                        track.done = part.done
        part.sync()
        sha256 = part.digest.hexdigest()
        if sha256 == wanted.sha256:
            return
        if part.spliced and not part.doubted:
            part.restart()
            part.doubted = True
            raise StartOver("the resumed bytes do not make the right sha256: starting over")
        part.discard()
        raise Failed(f"the sha256 is {sha256}, the lock says {wanted.sha256}: {wanted.part} was removed")

    def name(self, ready: Ready) -> None:
        """The last step: the proven file gets its name. Raises `Failed`."""
        wanted = ready.wanted
        if ready.staged is not None:
            aside = None
            if os.path.lexists(wanted.path) and not ready.replaces:
                raise Failed(f"{wanted.path} has come up meanwhile: not overwritten")
            try:
                if ready.replaces:
                    aside = set_aside(wanted.path, self.manifest.models_dir)
                ready.staged.rename(wanted.path)
                sync_folder(wanted.path.parent)
            except OSError as error:
                raise Failed(f"cannot give {wanted.path} its name: {error.strerror}") from None
            wanted.part.unlink(missing_ok=True)
            wanted.part.with_name(wanted.part.name + ".json").unlink(missing_ok=True)
            self.verified.remember(wanted.path, wanted.sha256)
            if aside:
                told = f"the file that was at {wanted.path} is kept as {aside.name}"
                self.report.emit("note", file=wanted.label, message=told)
        for way in closed(wanted.path, self.manifest.models_dir):
            way.chmod(way.stat().st_mode | (0o005 if way.is_dir() else 0o004))
            self.report.emit("note", file=wanted.label, message=f"{way} was not readable for the server")
        fields: dict[str, Any] = {"file": wanted.label, "path": str(wanted.path), "size": wanted.size}
        if ready.source:
            self.report.emit("used-in-place", **fields, how=ready.how, source=str(ready.source))
        else:
            self.report.emit("done", **fields)


def expect_body(part: Part, response: http.client.HTTPResponse) -> None:
    """Checks the head of a response against what was asked for, and sets the part to where it starts."""
    wanted, start, total = part.wanted, 0, response.headers.get("Content-Length")
    if response.status == 206:
        shape = re.match(r"bytes (\d+)-\d+/(\d+|\*)$", response.headers.get("Content-Range") or "")
        if not shape or int(shape[1]) != part.done:
            part.restart()
            raise Cut("the server answered with another range than asked for: starting over")
        start, total = part.done, shape[2]
    if total and total.isdigit() and int(total) != wanted.size:
        raise Failed(
            f"the server has {total} bytes, the lock says {wanted.size}: `gb10 pin --check` tells more"
        )
    if start != part.done:
        part.restart()  # the server ignores ranges, or has another ETag now
    elif start:
        part.spliced = True
    part.etag = response.headers.get("ETag")


def copy_file(source: Path, target: Path, track: Track) -> str:
    """Copies by shared blocks where the file system can, else byte by byte. Returns the copy's sha256."""
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        try:
            fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        except OSError:
            while data := reader.read(4 << 20):
                left = memoryview(data)
                while left:
                    left = left[writer.write(left) or 0 :]
                track.done += len(data)
                os.posix_fadvise(reader.fileno(), 0, reader.tell(), os.POSIX_FADV_DONTNEED)
        os.fsync(writer.fileno())
    track.phase, track.done = "hash", 0
    return str(digest_of(target, track).hexdigest())


def state_of(wanted: Wanted, verified: Verified) -> tuple[str, int]:
    """``missing``, ``partial``, ``wrong``, ``unverified`` or ``ok``, and how many bytes are there. By names,
    sizes and what was verified before."""
    if os.path.lexists(wanted.path):
        count = wanted.path.stat().st_size if wanted.path.is_file() else 0
        sha256 = verified.sha256(wanted.path)
        if count != wanted.size or sha256 not in (None, wanted.sha256):
            return "wrong", count
        return ("ok" if sha256 else "unverified"), count
    if wanted.part.exists():
        return "partial", min(wanted.part.stat().st_size, wanted.size)
    return "missing", 0


def to_come(manifest: Manifest, verified: Verified) -> list[Wanted]:
    """What is not there, or is known to be another file."""
    settled = ("ok", "unverified")
    return [wanted for wanted in manifest.files if state_of(wanted, verified)[0] not in settled]


def find_copies(manifest: Manifest, needed: Sequence[Wanted]) -> dict[Wanted, list[Path]]:
    """Files on the box that may be a needed one: the same size in bytes, the likeliest name first."""
    by_size: dict[int, list[Wanted]] = {}
    for wanted in needed:
        by_size.setdefault(wanted.size, []).append(wanted)
    found: dict[Wanted, list[Path]] = {}
    seen: set[tuple[int, int]] = set()
    for root in (manifest.models_dir, *manifest.search) if by_size else ():
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                try:
                    path = path.resolve(strict=True)
                    figures = path.stat()
                except (OSError, RuntimeError):
                    continue
                key = (figures.st_dev, figures.st_ino)
                if key in seen or not stat.S_ISREG(figures.st_mode) or path.name.endswith(".part"):
                    continue
                seen.add(key)
                for wanted in by_size.get(figures.st_size, ()):
                    found.setdefault(wanted, []).append(path)
    return {wanted: likeliest_first(wanted, paths) for wanted, paths in found.items()}


def likeliest_first(wanted: Wanted, paths: list[Path]) -> list[Path]:
    # A Hugging Face cache names its blobs by their sha256.
    return sorted(paths, key=lambda path: (path.name not in (wanted.sha256, wanted.path.name), str(path)))


# ---------------------------------------------------------------------------------------------- runs


def verified_in(models_dir: Path) -> Verified:
    return Verified(models_dir / ".gb10-verified.json")


def look(manifest: Manifest) -> dict[str, Any]:
    """What is there, by names, sizes and what was verified before. Reads no model file."""
    verified, files = verified_in(manifest.models_dir), []
    for wanted in manifest.files:
        state, count = state_of(wanted, verified)
        entry = {"repo": wanted.repo, "file": wanted.file, "path": str(wanted.path), "size": wanted.size}
        shut = [str(way) for way in closed(wanted.path, manifest.models_dir)]
        files.append({**entry, "state": state, "bytes": count, "closed": shut})
    return {
        "ok": all(entry["state"] == "ok" and not entry["closed"] for entry in files),
        "files": files,
        "running": holder(manifest.models_dir),
        "free_bytes": free_bytes(manifest.models_dir),
    }


def shortage_of(manifest: Manifest, needed: Sequence[Wanted], found: Mapping[Wanted, Sequence[Path]]) -> str:
    """Which disk has no room for what is to come, with the numbers; empty when all fits with the reserve.

    ``found`` are copies on the box (`find_copies`): one on the same disk becomes a link and takes none.
    """
    counts: dict[int, int] = {}
    folders: dict[int, Path] = {}
    for wanted in needed:
        folder = wanted.path.parent
        while not folder.exists():
            folder = folder.parent
        device = folder.stat().st_dev
        linkable = any(copy.stat().st_dev == device for copy in found.get(wanted, ()))
        if linkable or wanted.made:
            continue
        part = wanted.part.stat().st_blocks * 512 if wanted.part.exists() else 0
        counts[device] = counts.get(device, 0) + max(0, wanted.size - part)
        folders[device] = folder
    for device, count in counts.items():
        free = free_bytes(folders[device])
        if count + manifest.reserve_bytes > free:
            return (
                f"the disk of {folders[device]} has {human(free)} free, but {human(count)} are to come "
                f"and {human(manifest.reserve_bytes)} must stay free"
            )
    return ""


def lock_path(models_dir: Path) -> Path:
    return models_dir / ".gb10-fetch.lock"


def holder(models_dir: Path) -> str | None:
    """Who fetches into this folder now, in words; None if nobody does."""
    try:
        with lock_path(models_dir).open("r", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return stream.read(200).strip() or "another run"
    except OSError:
        pass
    return None


@contextlib.contextmanager
def sole_run(manifest: Manifest, report: Report) -> Iterator[None]:
    """One run at a time in a models folder. A second one waits, says for whom, and finds the work done."""
    with lock_path(manifest.models_dir).open("a+", encoding="utf-8") as stream:
        said = 0.0
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said >= 2.0:
                    said, now = time.monotonic(), look(manifest)
                    report.emit(
                        "waiting",
                        holder=now["running"] or "another run",
                        done=sum(entry["bytes"] for entry in now["files"]),
                        size=sum(entry["size"] for entry in now["files"]),
                    )
                time.sleep(0.2)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
        stream.flush()
        yield


def fetch(manifest: Manifest, report: Report, token: str | None) -> list[str]:
    """Brings every file of the manifest. Returns the labels of those that could not be had."""
    fetcher = Fetcher(manifest, Hub(manifest, token), report, verified_in(manifest.models_dir))
    fetcher.check_space()
    report.emit("start", files=len(manifest.files), size=sum(wanted.size for wanted in manifest.files))
    groups: dict[str, list[Wanted]] = {}
    for wanted in manifest.files:
        groups.setdefault(wanted.group, []).append(wanted)
    ready: dict[Wanted, Ready] = {}
    failed: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(manifest.parallel) as pool:
        jobs = {pool.submit(fetcher.prepare, wanted): wanted for wanted in manifest.files}
        for job in concurrent.futures.as_completed(jobs):
            wanted = jobs[job]
            try:
                ready[wanted] = job.result()
                group = groups[wanted.group]
                if all(member in ready for member in group):
                    # Last of all the first shard: it is the one that others look for.
                    for member in sorted(group, key=lambda member: member.file, reverse=True):
                        fetcher.name(ready[member])
            except (Failed, OSError) as error:
                failed.append(wanted.label)
                report.emit("error", file=wanted.label, message=f"{wanted.label}: {error}")
    for group in groups.values():
        for member in group:
            if member in ready and ready[member].staged and any(other not in ready for other in group):
                report.emit(
                    "held", file=member.label, message="whole, but waits for the other shards of its set"
                )
    return failed


def main(arguments: Sequence[str]) -> int:
    check = list(arguments[:1]) == ["--check"]
    if len(arguments) != 1 + check:
        print(__doc__, file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    began, failed, report = time.monotonic(), ["everything"], Report(sys.stdout)
    try:
        manifest = read_manifest(Path(arguments[-1]))
        if check:
            needed = to_come(manifest, verified_in(manifest.models_dir))
            shortage = shortage_of(manifest, needed, find_copies(manifest, needed))
            print(json.dumps({**look(manifest), "shortage": shortage}, indent=1))
            return 0
        report.secret = token = read_token(manifest.token_file)
        manifest.models_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with sole_run(manifest, report):
            failed = fetch(manifest, report, token)
    except (Failed, OSError) as error:
        for line in str(error).splitlines():
            report.emit("error", file=None, message=line)
    report.emit("result", ok=not failed, failed=failed, seconds=round(time.monotonic() - began, 1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
