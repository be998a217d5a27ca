"""The bare root: Debian with everything that a host has before the deploy, images in its Docker too."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab import disk, nspawn, paths, recipe, roots
from tests.lab.errors import LabError
from tests.lab.progress import run_logged, say

# Units that wait for what a lab host has not, or that would write to this machine's kernel: /sys and
# /proc/sys are writable inside.
MASKED = (
    "systemd-networkd.service", "systemd-networkd.socket", "systemd-networkd-wait-online.service",
    "systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service", "systemd-sysctl.service", "systemd-modules-load.service",
    "systemd-binfmt.service", "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
    "console-getty.service", "container-getty@.service", "getty.target", "apt-daily.timer",
    "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer",
    "e2scrub_reap.service",
)  # fmt: skip
ENABLED = (
    "ssh.service", "docker.service", "lab-network.service", "standin-accelerator.service",
    "vllm-lane-a.service", "vllm-lane-b.service",
)  # fmt: skip
_DONE = "opt/lab-prepare/done"


def ensure() -> Path:
    """The bare root of today's recipe, made when absent (minutes from nothing, seconds for changed files)."""
    final = roots.root(recipe.bare_root())
    if final.exists():
        return final
    if disk.short_of_space():
        prune()
    roots.ensure_debian()
    part = final.with_name(final.name + ".part")
    disk.delete(part)
    disk.snapshot(roots.root(recipe.host_root()), part)
    _furnish(part)
    _prepare(part)
    disk.seal(part, final)
    return final


def prune() -> list[str]:
    """Delete what today's recipe does not use; its names. Hosts keep the blocks they share with it."""
    gone = [path for path in (paths.disk() / "roots").iterdir() if path.name not in recipe.current_roots()]
    for path in gone:
        disk.delete(path)
    built = paths.cache() / "built"
    old = [path for path in built.iterdir() if path.name != recipe.rpc_server()] if built.exists() else []
    for path in old:
        path.unlink()
    for path in (*gone, *old):
        say(f"deleted {path.name}")
    return [path.name for path in (*gone, *old)]


def _furnish(root: Path) -> None:
    """Put files, account and units into the root."""
    for source in sorted(paths.ROOTFS.rglob("*")):
        target = root / source.relative_to(paths.ROOTFS)
        if source.is_dir():
            target.mkdir(exist_ok=True)
            continue
        shutil.copyfile(source, target)
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
    (root / "etc/sudoers.d/lab").chmod(0o440)
    _program(paths.STANDINS / "nvidia-smi-standin", root / "usr/bin/nvidia-smi")
    _program(roots.accelerator(), root / "usr/local/lib/standin-accelerator/ggml-rpc-server")
    (root / "opt/lab-prepare/key").write_text(f"KEY={recipe.bare_root()}\n")
    for unit in MASKED:
        mask = root / "etc/systemd/system" / unit
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")
    script = f"""
        useradd --create-home --shell /bin/bash --groups sudo {paths.USER}
        install -d -m 0700 -o {paths.USER} -g {paths.USER} /home/{paths.USER}/.ssh
        rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
        systemctl enable {" ".join(ENABLED)}
        systemctl set-default multi-user.target
    """
    run_logged("account and units of the bare root", nspawn.run(root, script), _log(), limit=60)


def _program(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _prepare(root: Path) -> None:
    """Boot the root once, without a network, to import the images into its Docker."""
    lanes = [root / "etc/systemd/system/multi-user.target.wants" / unit for unit in ENABLED if "vllm" in unit]
    wants = lanes[0].with_name("lab-prepare.service")
    held = {lane: lane.readlink() for lane in lanes}
    for lane in lanes:
        lane.unlink()
    wants.symlink_to("/etc/systemd/system/lab-prepare.service")
    write_identity(root, "lab-prepare")
    binds = [
        f"--bind-ro={roots.root(recipe.devel_root())}:/opt/lab-prepare/images/devel",
        f"--bind-ro={roots.root(recipe.runtime_root())}:/opt/lab-prepare/images/runtime",
    ]
    command = [*nspawn.boot(root, "lab-prepare", network=False), *binds]
    run_logged(
        "import the base images into the bare host's Docker (about 40 s)",
        command, _log(), limit=400, env=nspawn.environment(),
    )  # fmt: skip
    if not (root / _DONE).exists():
        raise LabError(f"the base images were not imported (log: {_log()})")
    for lane, unit in held.items():
        lane.symlink_to(unit)
    wants.unlink()
    (root / "etc/systemd/system/lab-prepare.service").unlink()
    shutil.rmtree(root / "opt/lab-prepare")


def write_identity(root: Path, name: str) -> None:
    """Give the root its host name (in /etc/hosts too: sudo waits for DNS without it) and a machine id."""
    (root / "etc/hostname").write_text(f"{name}\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n")
    (root / "etc/machine-id").write_text(recipe.content_key(name, "machine").ljust(32, "0") + "\n")


def _log() -> Path:
    return paths.logs() / f"{recipe.bare_root()}.log"
