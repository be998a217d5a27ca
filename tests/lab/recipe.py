"""What the lab's roots are made of, as data, and the content keys that follow from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from group_data.all import appliance_requirements
from tests.lab import paths

SUITE = "trixie"

HOST_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "init", "kmod", "procps", "openssh-server", "sudo", "ca-certificates",
    "iproute2", "iptables", "curl", "gnupg", "python3", "docker.io", "docker-cli", "docker-buildx", "git",
    "busybox-static",
)  # fmt: skip
DEVEL_PACKAGES = ("build-essential", "cmake", "ninja-build", "git", "ccache", "ca-certificates")
RUNTIME_PACKAGES = ("libgomp1", "ca-certificates", "curl")
# Debian's PyTorch has no CUDA in it; wheels of it cannot be had without.
TORCH_PACKAGES = ("python3", "python3-venv", "python3-torch", "git", "ca-certificates", "libgomp1")

# Names the deploy's lab values use; what is inside is named by the label LABEL on the image.
DEVEL_IMAGE = "standin/cuda-devel:trixie"
RUNTIME_IMAGE = "standin/cuda-runtime:trixie"
TORCH_IMAGE = "standin/python-torch:trixie"
LANE_IMAGE = "standin/vllm:old"
LABEL = "gb10.lab.key"

MMDEBSTRAP = (
    "--variant=minbase", "--format=directory",
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=force-unsafe-io",
    *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "info", "locale", "lintian")),
)  # fmt: skip

# The pinned llama.cpp comes in this source package, git objects and all.
SDIST = "llama-cpp-python"
SDIST_VERSION = "0.3.36"
SDIST_FILE = "llama_cpp_python-0.3.36.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
LLAMA_COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
LLAMA_TAG = "b11312"

RPC_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DCMAKE_C_FLAGS_RELEASE=-O1",
    "-DCMAKE_EXE_LINKER_FLAGS=-static", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_RPC=ON", "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_OPENSSL=OFF",
)  # fmt: skip

# The server takes one client at a time, and a second one hangs; a GPU serves several processes. So each
# connection gets a process of its own: replaced once, in ggml/src/ggml-rpc/ggml-rpc.cpp, before the build.
RPC_PATCH = (
    "        rpc_serve_client(backends, cache_dir, client_socket);\n",
    "        signal(SIGCHLD, SIG_IGN);\n        if (fork() != 0) {\n            continue;\n        }\n"
    "        rpc_serve_client(backends, cache_dir, client_socket);\n        _exit(0);\n",
)
RPC_INCLUDES = "#include <csignal>\n#include <unistd.h>\n"


def content_key(*parts: object) -> str:
    """Twelve hex digits over data and, for each Path, the names, modes and bytes of the files under it."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]
            for file in files:
                digest.update(f"{file.relative_to(part.parent)} {file.stat().st_mode & 0o111:o}\0".encode())
                digest.update(file.read_bytes())
        else:
            digest.update(json.dumps(part).encode())
    return digest.hexdigest()[:12]


def host_root() -> str:
    """Name of the bare Debian root of a host."""
    return f"debian-{content_key(SUITE, MMDEBSTRAP, HOST_PACKAGES)}"


def devel_root() -> str:
    """Name of the root behind the stand-in CUDA build image."""
    return f"devel-{content_key(SUITE, MMDEBSTRAP, DEVEL_PACKAGES)}"


def runtime_root() -> str:
    """Name of the root behind the stand-in CUDA runtime image."""
    return f"runtime-{content_key(SUITE, MMDEBSTRAP, RUNTIME_PACKAGES)}"


def torch_root() -> str:
    """Name of the root behind the stand-in base of the appliance, which has the data's packages in it."""
    return f"python-torch-{content_key(SUITE, MMDEBSTRAP, TORCH_PACKAGES, appliance_requirements)}"


def rpc_server() -> str:
    """Name of the built accelerator stand-in."""
    return f"ggml-rpc-server-{content_key(devel_root(), SDIST_SHA256, RPC_FLAGS, RPC_PATCH)}"


def bare_root() -> str:
    """Name of the root that a fresh host is a snapshot of."""
    made_of = (host_root(), devel_root(), runtime_root(), rpc_server())
    files = (paths.ROOTFS, paths.STANDINS / "nvidia-smi-standin", paths.HERE / "bare.py")
    return f"bare-{content_key(made_of, *files)}"


def current_roots() -> frozenset[str]:
    """Names of all roots that today's recipe uses; any other is old."""
    return frozenset({host_root(), devel_root(), runtime_root(), torch_root(), bare_root()})
