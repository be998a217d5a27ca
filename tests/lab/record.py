"""What the lab has made so far, for data files to read. Makes nothing, needs no root, works without a lab."""

from __future__ import annotations

import json
import subprocess

from tests.lab import network, paths

NO_KEY = "0" * 40


def host_addresses() -> dict[str, str]:
    """Name to IPv4 address of every host that was ever up; empty where there is no lab."""
    records = sorted((paths.cache() / "hosts").glob("*/host.json"))
    return {
        record.parent.name: str(network.host_address(json.loads(record.read_text())["index"]))
        for record in records
    }


def toolkit_key_fingerprint() -> str:
    """Fingerprint (40 hex digits) of the key that signs the lab's packages; zeros before it is made."""
    keys = sorted((paths.cache() / "apt").glob("*/gpgkey"), key=lambda path: path.stat().st_mtime)
    if not keys:
        return NO_KEY
    command = ["gpg", "--show-keys", "--with-colons", str(keys[-1])]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:"))
