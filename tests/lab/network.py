"""The lab's wire: one bridge, fixed addresses, no way out.

Hosts sit on `BRIDGE` and have no default route and no resolver, so whatever the deploy needs must come from
`GATEWAY`, where the stand-in services listen, or the test fails. Nothing here turns on forwarding or NAT.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.lab.errors import LabError

BRIDGE = "gb10lab0"
NETWORK = IPv4Network("10.213.103.0/24")
GATEWAY = IPv4Address("10.213.103.1")
FIRST_HOST = 11
LAST_HOST = 250

HTTP_PORT = 8100
GIT_PORT = 9418
HTTP_URL = f"http://{GATEWAY}:{HTTP_PORT}"
HUB_URL = f"{HTTP_URL}/hub"
TOOLKIT_URL = f"{HTTP_URL}/libnvidia-container"
GIT_URL = f"git://{GATEWAY}/llama.cpp.git"

# docker0 has this address on every host, so one preset serves them all.
ACCELERATOR_ADDRESS = "172.17.0.1"
ACCELERATOR_PORT = 50052

_BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_ACCEPT = ["FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT"]


def host_address(index: int) -> IPv4Address:
    """Address of the host that holds `index` (11 to 250)."""
    return NETWORK.network_address + index


def bridge_is_up() -> bool:
    """True when the bridge exists on this machine."""
    return subprocess.run(["ip", "link", "show", BRIDGE], capture_output=True, check=False).returncode == 0


def bring_up() -> None:
    """Make the bridge with the gateway's address. Raises LabError when another interface has that network."""
    if bridge_is_up():
        return
    taken = _ip("-o", "-4", "addr", "show", "to", str(NETWORK))
    if taken:
        interface = taken.split()[1]
        raise LabError(
            f"{NETWORK} is in use on {interface}: free it, or change NETWORK in tests/lab/network.py"
        )
    _ip("link", "add", BRIDGE, "type", "bridge", "forward_delay", "0", "stp_state", "0")
    with contextlib.suppress(OSError):  # a kernel without IPv6 has nothing to switch off
        Path("/proc/sys/net/ipv6/conf", BRIDGE, "disable_ipv6").write_text("1")
    _ip("addr", "add", f"{GATEWAY}/{NETWORK.prefixlen}", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    _let_hosts_talk()


def tear_down() -> None:
    """Remove the bridge and the firewall rule that came with it, unless hosts of another cache are on it."""
    if bridge_is_up() and _ip("-o", "link", "show", "master", BRIDGE):
        return
    if shutil.which("iptables"):
        subprocess.run(["iptables", "-D", *_ACCEPT], capture_output=True, check=False)
    if bridge_is_up():
        _ip("link", "del", BRIDGE)


def _let_hosts_talk() -> None:
    """Where Docker runs on this machine, bridged frames pass its FORWARD chain, whose policy drops them."""
    if _BRIDGE_FILTER.exists() and _BRIDGE_FILTER.read_text().strip() == "1" and shutil.which("iptables"):
        subprocess.run(["iptables", "-I", *_ACCEPT], capture_output=True, check=False)


def _ip(*args: str) -> str:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"ip {' '.join(args)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
