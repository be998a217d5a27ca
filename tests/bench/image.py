"""Seconds of the builds of an image on a lab host: from nothing, again, and with one flag changed.

python -m tests.bench.image      (root; the host `bench-image` is made anew and ended)
"""

from __future__ import annotations

import json
import time

from rich.console import Console
from rich.table import Table

from tests.lab import deploying
from tests.lab.host import LabHost

FLAGS = {"GGML_RPC": "ON", "CMAKE_C_FLAGS_RELEASE": "-O1", "CMAKE_CXX_FLAGS_RELEASE": "-O1"}


def main() -> None:
    """Three deploys of a bare host, and what the image says of its compile."""
    host = LabHost("bench-image").reset()
    table = Table("what", "deploy, s", "compile, s", "files from ccache")
    try:
        for what, data in (
            ("from nothing", {}),
            ("again", {}),
            ("one flag changed", {"image_accelerator_flags": FLAGS | {"GGML_LLAMAFILE": "OFF"}}),
        ):
            began = time.monotonic()
            done = deploying.deploy(host, data=data)
            seconds = time.monotonic() - began
            assert done.returncode == 0, done.stdout
            images = json.loads(deploying.gb10(host, "image", "--json").stdout)["images"]
            compiled = images[0]["proof"]["build"]["compile"]
            files = compiled["ccache_hits"] + compiled["ccache_misses"]
            built = what != "again"
            table.add_row(
                what,
                f"{seconds:.0f}",
                str(compiled["seconds"]) if built else "-",
                f"{compiled['ccache_hits']} of {files}" if built else "-",
            )
    finally:
        host.down()
    Console().print(table)


if __name__ == "__main__":
    main()
