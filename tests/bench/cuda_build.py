"""The image's build stage as a shell script, for a machine with nvcc and no Docker.

    python -m tests.bench.cuda_build ARCHITECTURE REPOSITORY > build.sh

The script holds the commands of the box's own Dockerfile, to the letter, but for what only Ubuntu's image
has: package installs are left out, and ccache may be missing. It writes /out/llama-server and
/proof/build.json, or ends where a proof does not hold. ARCHITECTURE is what CMAKE_CUDA_ARCHITECTURES gets
(121 for the box), REPOSITORY where git fetches llama.cpp from.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gb10.cmake_options import built_architectures
from gb10.inventory import desired, load_inventory
from gb10.rendering import TOP

STUBS = "/usr/local/cuda/lib64/stubs"  # the same on every architecture
NO_CCACHE = """\
set -e
command -v ccache > /dev/null || {
  printf '#!/bin/sh\\ncase "$1" in\\n--zero-stats) ;;\\n--print-stats) printf "%%s\\\\t0\\\\n" \\
direct_cache_hit preprocessed_cache_hit cache_miss ;;\\n*) exec "$@" ;;\\nesac\\n' > /usr/local/bin/ccache
  chmod +x /usr/local/bin/ccache
}
"""


def dockerfile(architecture: str, repository: str) -> str:
    """The default inventory's Dockerfile, for another GPU and another place of the source."""
    (host, *_) = load_inventory(TOP / "inventory.py")
    data = host.data.dict()  # type: ignore[no-untyped-call]
    flags = data["image_accelerator_flags"] | {
        "CMAKE_CUDA_ARCHITECTURES": architecture,
        "CMAKE_EXE_LINKER_FLAGS": f"-Wl,-rpath-link,{STUBS}",
    }
    code = built_architectures(architecture).removesuffix("-real")
    proofs = [{**proof, "expect": f"^sm_{code}$"} for proof in data["image_build_proofs"]]
    host.inventory.override_data |= {
        "image_accelerator_flags": flags,
        "image_build_prepare": [f"ln -sf libcuda.so {STUBS}/libcuda.so.1"],
        "image_build_proofs": proofs,
        "image_driver_stubs": STUBS,
        "llama_repository": repository,
    }
    return desired(host).dockerfile


def script(text: str) -> str:
    """The first stage of a Dockerfile as a shell script."""
    stage = text.partition("\n\n\nFROM ")[0]
    lines = [NO_CCACHE]
    for instruction in re.split(r"\n(?=RUN |COPY |FROM )", stage):
        word, _, rest = instruction.partition(" ")
        rest = re.sub(r"^(--mount=\S+\s+)*(\\\n)?", "", rest)
        rest = "\n".join(line for line in rest.splitlines() if not line.startswith("# "))
        if word == "RUN" and "apt-get" not in rest:
            lines.append(rest)
        elif word == "COPY":
            lines.append(_heredoc(rest))
    return "\n".join(lines) + "\n"


def _heredoc(rest: str) -> str:
    head, _, body = rest.partition("\n")
    mark, path = head.split()
    return f"mkdir -p {Path(path).parent}\ncat > {path} {mark}\n{body}"


if __name__ == "__main__":
    sys.stdout.write(script(dockerfile(*sys.argv[1:])))
