"""Part of the drift probe: what runs, listens or filters on the box and is not ours."""

from __future__ import annotations

import glob
import re

from gb10.facts.probes._marks import content, digest

# Tables that iptables and Docker keep for themselves: a container's start changes them.
NOT_NATIVE = re.compile(r"(ip|ip6) (filter|nat|mangle|raw|security)$|\S+ docker")


def is_vllm(words: list[str]) -> bool:
    """True for the command line of a vLLM server. Whole words only: this program's own source says it too."""
    return any(
        # VLLM::EngineCore: what a server that died leaves behind, with its memory of the GPU.
        len(word) < 200 and re.fullmatch(r"(.*/)?vllm(\.[a-z_.]+)?|vllm/[\w./:-]+|VLLM::.*", word) is not None
        for word in words[:8]
    )


def vllm_processes(proc: str = "/proc") -> list[str]:
    """The first words of their command lines: further on there may be a key."""
    found = []
    for path in glob.glob(f"{proc}/[0-9]*/cmdline"):
        words = (content(path) or b"").decode(errors="replace").split("\0")
        if is_vllm(words):
            found.append(" ".join(words[:3])[:120].strip())
    return sorted(set(found))


def open_ports(sockets: str) -> list[str]:
    """``PORT PROCESS`` of every TCP port that is open on all addresses, from ``ss -Hltnp``."""
    found = set()
    for line in sockets.splitlines():
        fields = line.split()
        address, _, port = fields[3].rpartition(":") if len(fields) > 3 else ("", "", "")
        if address in ("0.0.0.0", "*", "[::]"):  # noqa: S104 (looked for, not bound)
            process = re.search(r'\(\("([^"]+)"', line)
            found.add(f"{port} {process[1] if process else 'unknown'}")
    return sorted(found)


def native_tables(ruleset: str) -> list[str]:
    """``nft FAMILY NAME DIGEST`` of every table that is somebody's own, from ``nft list ruleset``."""
    found = []
    for name, text in re.findall(r"^table (\S+ \S+) \{\n(.*?)^\}", ruleset, re.MULTILINE | re.DOTALL):
        # What a set holds comes and goes by itself: fail2ban's, say.
        rules = re.sub(r"elements = \{.*?\}", "", text, flags=re.DOTALL)
        if not NOT_NATIVE.match(name):
            found.append(f"nft {name} {digest(rules)[:12]}")
    return sorted(found)
