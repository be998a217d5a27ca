"""Debian roots from nothing (the host's, the two base images') and the accelerator, built in one of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.lab import disk, llama, nspawn, paths, recipe
from tests.lab.errors import LabError
from tests.lab.progress import run_logged


def root(name: str) -> Path:
    """Where the root of that name lies, made or not."""
    return paths.disk() / "roots" / name


def accelerator() -> Path:
    """Where the built ggml-rpc-server lies, made or not."""
    return paths.cache() / "built" / recipe.rpc_server()


def ensure_debian() -> None:
    """Make what is missing of the three Debian roots and the accelerator, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(_debian, recipe.host_root(), recipe.HOST_PACKAGES, 80)
        rest = pool.submit(_images)
        host.result()
        rest.result()


def ensure_torch(furnish: Callable[[Path], None]) -> Path:
    """The root behind the appliance's base, made when absent; `furnish` puts into it what is not Debian's."""
    _debian(recipe.torch_root(), recipe.TORCH_PACKAGES, 60, furnish)
    return root(recipe.torch_root())


def _images() -> None:
    _debian(recipe.devel_root(), recipe.DEVEL_PACKAGES, 60)
    _build_accelerator()
    _debian(recipe.runtime_root(), recipe.RUNTIME_PACKAGES, 30)


def _debian(
    name: str, packages: tuple[str, ...], about: int, furnish: Callable[[Path], None] | None = None
) -> None:
    final = root(name)
    if final.exists():
        return
    part = final.with_name(final.name + ".part")
    disk.delete(part)
    disk.create(part)
    # Without a mirror argument mmdebstrap takes its built-in default and this machine's proxy settings.
    include = f"--include={','.join(packages)}"
    command = ["mmdebstrap", *recipe.MMDEBSTRAP, include, recipe.SUITE, str(part)]
    run_logged(f"Debian root {name} (about {about} s)", command, paths.logs() / f"{name}.log", limit=900)
    # The lab has no Debian mirror: what is installed is all there is, and apt-get update reads no source.
    for listed in (part / "etc/apt").glob("sources.list*"):
        shutil.rmtree(listed) if listed.is_dir() else listed.unlink()
    (part / "etc/apt/sources.list.d").mkdir()
    (part / "etc/resolv.conf").unlink(missing_ok=True)
    (part / "etc/resolv.conf").write_text("")
    if furnish:
        furnish(part)
    disk.seal(part, final)


def _build_accelerator() -> None:
    final = accelerator()
    if final.exists():
        return
    source, build = paths.cache() / "rpc.src", paths.cache() / "rpc.build"
    for folder in (source, build):
        shutil.rmtree(folder, ignore_errors=True)
    llama.unpack_tree(source)
    _let_several_clients_in(source / "ggml/src/ggml-rpc/ggml-rpc.cpp")
    build.mkdir()
    work = root("rpc.work")
    disk.delete(work)
    disk.snapshot(root(recipe.devel_root()), work)
    flags = " ".join(f"'{flag}'" for flag in recipe.RPC_FLAGS)
    script = (
        f"cmake -G Ninja -S /src -B /build {flags} && "
        "ninja -C /build -j2 ggml-rpc-server && strip /build/bin/ggml-rpc-server"
    )
    command = nspawn.run(work, script, binds=(f"{source}:/src", f"{build}:/build"))
    try:
        run_logged("build ggml-rpc-server", command, paths.logs() / f"{final.name}.log", limit=900)
        built = build / "bin/ggml-rpc-server"
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built, final.with_suffix(".part"))
        final.with_suffix(".part").replace(final)
    finally:
        disk.delete(work)
    shutil.rmtree(source)
    shutil.rmtree(build)


def _let_several_clients_in(file: Path) -> None:
    text = file.read_text()
    before, after = recipe.RPC_PATCH
    if text.count(before) != 1:
        raise LabError("ggml-rpc.cpp has changed: RPC_PATCH in tests/lab/recipe.py does not apply")
    file.write_text(recipe.RPC_INCLUDES + text.replace(before, after))
