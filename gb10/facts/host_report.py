"""What any user can see of a host, by nothing but a POSIX shell: the first question of all."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

_SCRIPT = """
echo "architecture=$(uname -m)"
( . /etc/os-release 2>/dev/null; echo "os=$ID $VERSION_ID" )
echo "python=$(python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
# A driver that has lost its GPU may never answer.
echo "capability=$({ timeout 30 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 \
  || { [ $? = 124 ] && echo 'nothing in 30 s'; }; } | head -n 1)"
if sudo -n true 2>/dev/null; then echo sudo=yes; else echo sudo=no; fi
echo "user=$(id -un)"
echo "systemd=$([ -d /run/systemd/system ] && echo yes || echo no)"
"""


@dataclass(frozen=True)
class Host:
    """``os`` is ``ID VERSION_ID`` of os-release; ``python`` is empty without python3; ``capability`` is the
    first line of nvidia-smi, whatever it says; ``sudo`` is True when it is there and needs no password;
    ``noise`` is the first line that the login shell printed by itself."""

    architecture: str
    os: str
    python: str
    capability: str
    sudo: bool
    user: str
    systemd: bool
    noise: str = ""


class HostReport(FactBase[Host]):
    """Architecture, system, python3, GPU and sudo of a host. To be asked without sudo."""

    def command(self) -> StringCommand:
        return StringCommand("sh", "-c", QuoteString(_SCRIPT))

    def process(self, output: list[str]) -> Host:
        begin = next(number for number, line in enumerate(output) if line.startswith("architecture="))
        values = dict(line.split("=", 1) for line in output[begin:] if "=" in line)
        return Host(
            architecture=values["architecture"],
            os=values["os"].strip(),
            python=values["python"],
            capability=values["capability"].strip(),
            sudo=values["sudo"] == "yes",
            user=values["user"],
            systemd=values["systemd"] == "yes",
            noise=next((line for line in output[:begin] if line.strip()), ""),
        )
