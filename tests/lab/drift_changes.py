"""What a careless administrator does to a settled box, and what `gb10 drift` must say of it.

Changes that do not get in each other's way stand in one batch: a look, a deploy, a look.
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT = "/etc/systemd/system/llamacpp-playground.service"
WATCH = "/etc/systemd/system/gb10-watch.service"
PRESETS = "/etc/llamacpp-playground/models.ini"
KEY = "/etc/llamacpp-playground/api-key"
LANE = "llamacpp-playground"
PROGRAMS = "/usr/local/lib/gb10"
DAEMON = "/etc/docker/daemon.json"
TINY_B = "/srv/models/standin/tiny-b-GGUF/tiny-b-F16.gguf"
SMALL_C = "/srv/models/standin/small-c-GGUF/small-c-Q8_0.gguf"
PIN = "/etc/apt/preferences.d/gb10-nvidia-container-toolkit"
RELOAD = (
    f'curl -sf -H "Authorization: Bearer $(cat {KEY})" "http://127.0.0.1:10103/models?reload=1" > /dev/null'
)
RESTART = f"systemctl daemon-reload && systemctl reset-failed {LANE}; systemctl restart {LANE}"


@dataclass(frozen=True)
class Change:
    """``do`` is run as root; ``item`` is what drift must name, of class ``made``. ``also`` are items that
    the same change brings with it. ``undo`` is what a person does: a deploy stops no stranger's work."""

    what: str
    do: str
    item: str
    made: str = "by-hand"
    also: tuple[str, ...] = ()
    undo: str = ""


SETTLED = "router: runs what is described"
ALTERED = "router: nothing was altered"
VERIFY = "verify: the lane answers from its accelerator"
APT_MOVES = tuple(
    f"toolkit: apt would move {package}"
    for package in (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    )
)


def by_hand_container(*options: str, command: str = "") -> str:
    """``docker run`` by hand, instead of the unit, with other flags than the unit's."""
    line = f"systemctl stop {LANE}; IMAGE=$(docker image ls --format '{{{{.Repository}}}}:{{{{.Tag}}}}' "
    line += f"| grep ^gb10/ | head -n 1); docker run --detach --rm --init --name {LANE} "
    return line + " ".join(options) + f' "$IMAGE" {command}'


BATCHES: dict[str, list[Change]] = {
    "files": [
        Change(
            "the unit edited, systemd not told",
            f"echo '# by hand' >> {UNIT}",
            f"router: {LANE}.service",
            also=("router: unit needs_reload", SETTLED),
        ),
        Change("the key readable for all", f"chmod 644 {KEY}", "router: API key"),
        Change("a program removed", f"rm {PROGRAMS}/gb10_gate.py", "image: gb10_gate.py"),
        Change("a program edited", f"echo '# mine' >> {PROGRAMS}/gb10_router.py", "router: gb10_router.py"),
        Change(
            "the version pin removed",
            "rm /etc/apt/preferences.d/gb10-nvidia-container-toolkit",
            "toolkit: version pin",
            also=APT_MOVES,
        ),
        Change(
            "the apt source edited",
            "echo '# by hand' >> /etc/apt/sources.list.d/gb10-nvidia-container-toolkit.sources",
            "toolkit: apt source",
        ),
        Change(
            "the keyring removed",
            "rm /usr/share/keyrings/gb10-nvidia-container-toolkit.gpg",
            "toolkit: keyring",
        ),
        Change(
            "another mode for the lane's description",
            "chmod 600 /etc/llamacpp-playground/lane.json",
            "router: lane description",
        ),
        Change("the list of files edited", "echo ' ' >> /var/lib/gb10/models.json", "models: list of files"),
        Change(
            "another owner for the configuration",
            "chown lab /etc/llamacpp-playground",
            "router: /etc/llamacpp-playground",
        ),
        Change(
            "the Dockerfile edited",
            "for file in /var/lib/gb10/image/*/context/Dockerfile; do echo '# faster' >> $file; done",
            "image: Dockerfile",
        ),
        Change("the downloader emptied", f": > {PROGRAMS}/gb10_fetch.py", "models: downloader"),
        Change("the nightly look edited", f"echo '#' >> {PROGRAMS}/gb10_drift.py", "record: gb10_drift.py"),
    ],
    "running": [
        Change(
            "a drop-in",
            f"mkdir -p {UNIT}.d && printf '[Service]\\nNice=5\\n' > {UNIT}.d/10-nice.conf && "
            "systemctl daemon-reload",
            f"router: drop-in {UNIT}.d/10-nice.conf",
            also=("router: no drop-ins",),
        ),
        Change("the service disabled", f"systemctl disable {LANE}", SETTLED, also=("router: unit enabled",)),
        Change(
            "the presets edited and reloaded",
            f"sed -i 's/top-k = 40/top-k = 4/' {PRESETS} && {RELOAD}",
            "router: presets",
            also=("router: model small-c", ALTERED),
        ),
        Change(
            "a model file truncated",
            f"truncate -s 1000 {TINY_B}",
            f"models: {TINY_B}",
        ),
        Change(
            "the CDI spec removed",
            "rm /var/run/cdi/nvidia.yaml",
            "toolkit: CDI device nvidia.com/gpu=all",
            also=("toolkit: CDI specs",),
        ),
        Change(
            "the firewall opened further",
            "iptables -A INPUT -p tcp --dport 9 -j ACCEPT",
            "box: firewall",
        ),
        Change(
            "a second source of the toolkit's repository",
            "echo 'deb [trusted=yes] http://10.213.103.1:8100/libnvidia-container/stable/deb/amd64 /' "
            "> /etc/apt/sources.list.d/copied.list",
            "toolkit: no second source of the same repository",
            # apt reads no list at all then.
            also=("toolkit: apt source /etc/apt/sources.list.d/copied.list", "toolkit: apt"),
        ),
        Change(
            "a program that listens for all",
            "systemd-run --unit=left-open python3 -m http.server 8000",
            "box: open port 8000",
            undo="systemctl stop left-open",
        ),
        Change(
            "another vLLM unit",
            "printf '[Service]\\nExecStart=/bin/sleep 1d\\n' > /etc/systemd/system/my-vllm.service && "
            "systemctl daemon-reload && systemctl start my-vllm",
            "lanes: vLLM unit my-vllm.service",
            undo="systemctl stop my-vllm; rm /etc/systemd/system/my-vllm.service; systemctl daemon-reload",
        ),
        Change(
            "another vLLM container",
            "docker run --detach --name try-vllm --entrypoint sleep standin/cuda-runtime:trixie 1d",
            "lanes: vLLM container try-vllm (standin/cuda-runtime:trixie)",
            undo="docker rm --force try-vllm",
        ),
        Change(
            "a vLLM process",
            "systemd-run --unit=by-hand bash -c 'exec -a vllm sleep 1d'",
            "lanes: vLLM process vllm 1d",
            undo="systemctl stop by-hand",
        ),
    ],
    "container": [
        Change(
            "docker run by hand with other flags",
            by_hand_container(
                "--publish 0.0.0.0:10103:10103 --user 0:0 --privileged --env LLAMA_ARG_DEVICE=none",
                "--env DEBUG=1 --volume /srv:/srv --device nvidia.com/gpu=all",
                f"--volume /etc/{LANE}:/etc/{LANE}:ro",
                command=f"--host 0.0.0.0 --port 10103 --models-preset {PRESETS} --models-max 9",
            ),
            "router: container command",
            also=(
                SETTLED,
                ALTERED,
                VERIFY,
                "router: unit active",
                "router: container published",
                "router: container user",
                "router: container privileged",
                "router: container read_only",
                "router: container mounts",
                "router: container tmpfs",
                "router: container capabilities",
                "router: container security",
                "router: container log",
                "router: container label",
                "router: container environment LLAMA_ARG_DEVICE",
                "router: container environment LLAMA_ARG_RPC",
                "router: container environment LLAMA_CACHE",
                "router: container environment DEBUG",
                "router: open port 10103",
            ),
        ),
    ],
    "published": [
        Change(
            "the port published to all, in the unit",
            f"sed -i 's/127.0.0.1:10103:10103/0.0.0.0:10103:10103/' {UNIT} && {RESTART}",
            f"router: {LANE}.service",
            also=("router: container published", ALTERED, "router: open port 10103"),
        ),
    ],
    "replaced": [
        Change(
            "another image under the same tag",
            "docker tag standin/cuda-runtime:trixie "
            f"$(docker inspect --format '{{{{.Config.Image}}}}' {LANE})",
            "image: the tag is the deploy's",
            also=("router: container image", ALTERED, "image: gb10/*"),
        ),
        Change(
            "a model file replaced with one of the same size",
            f"printf x | dd of={TINY_B} bs=1 seek=900 conv=notrunc status=none",
            f"models: {TINY_B}",
        ),
        Change(
            "a package upgraded",
            "rm -f /etc/apt/preferences.d/gb10-nvidia-container-toolkit; "
            "apt-get -q -y install nvidia-container-toolkit=1.20.0-1 nvidia-container-toolkit-base=1.20.0-1 "
            "libnvidia-container-tools=1.20.0-1 libnvidia-container1=1.20.0-1",
            "toolkit: packages 1.19.1-1",
            also=("toolkit: version pin",),
        ),
        Change(
            "an old lane revived",
            "cp /var/lib/gb10/retired/etc/systemd/system/vllm-lane-b.service /etc/systemd/system/ && "
            "systemctl daemon-reload && systemctl start vllm-lane-b",
            "lanes: old lane out: vllm-lane-b.service",
            also=("box: open port 10102",),
        ),
        Change(
            "the key emptied",
            f": > {KEY}",
            "router: API key",
            also=(SETTLED, VERIFY, "router: models"),
        ),
    ],
    "daemon": [
        Change(
            "daemon.json edited, Docker restarted",
            f"python3 -c 'import json; p=\"{DAEMON}\"; d=json.load(open(p)); d[\"debug\"]=True; "
            "json.dump(d, open(p, \"w\"))' && systemctl restart docker",
            "toolkit: daemon.json",
            also=(SETTLED, VERIFY, "router: unit active", "router: container"),
        ),
    ],
    "stale": [
        Change(
            "daemon.json edited, Docker not restarted",
            f"python3 -c 'import json; p=\"{DAEMON}\"; d=json.load(open(p)); d[\"features\"][\"cdi\"]=False; "
            "json.dump(d, open(p, \"w\"))'",
            "toolkit: daemon.json",
            also=("toolkit: Docker has read daemon.json",),
        ),
    ],
    "quiet": [
        Change(
            "a drop-in, systemd not told",
            f"mkdir -p {UNIT}.d && printf '[Service]\\nNice=5\\n' > {UNIT}.d/10-nice.conf",
            f"router: drop-in {UNIT}.d/10-nice.conf",
            also=("router: no drop-ins", "router: unit needs_reload", SETTLED),
        ),
        Change(
            "a drop-in for the watch",
            f"mkdir -p {WATCH}.d && printf '[Service]\\nNice=5\\n' > {WATCH}.d/override.conf",
            f"watch: drop-in {WATCH}.d/override.conf",
            also=("watch: no drop-ins", "watch: runs what is described"),
        ),
        Change("root's programs for all to write", f"chmod 777 {PROGRAMS}", f"router: {PROGRAMS}"),
        Change("a model that only root may read", f"chmod 600 {SMALL_C}", f"models: {SMALL_C}"),
        Change(
            "the key behind a link",
            f"mv {KEY} /root/lane-key && ln -s /root/lane-key {KEY}",
            "router: API key",
            also=(SETTLED,),
        ),
        Change(
            "the presets behind a link",
            f"mv {PRESETS} /root/models.ini && ln -s /root/models.ini {PRESETS}",
            "router: presets",
        ),
        Change(
            "another network for the container",
            f"docker network create --driver bridge own && docker network connect own {LANE}",
            "router: container networks",
            also=(ALTERED,),
        ),
        Change(
            "what a vLLM server leaves behind",
            "systemd-run --unit=orphan bash -c 'exec -a VLLM::EngineCore sleep 1d'",
            "lanes: vLLM process VLLM::EngineCore 1d",
            undo="systemctl stop orphan",
        ),
        Change(
            "a list that apt cannot read",
            "echo deb nonsense > /etc/apt/sources.list.d/broken.list",
            "toolkit: apt source /etc/apt/sources.list.d/broken.list",
            also=("toolkit: apt",),
            undo="rm /etc/apt/sources.list.d/broken.list",
        ),
        Change("a rule for IPv6", "ip6tables -A INPUT -p tcp --dport 9 -j ACCEPT", "box: firewall"),
    ],
    "no key": [
        Change(
            "the key commented out",
            # The gate keeps it down.
            f"sed -i 's/^/#/' {KEY}; {RESTART} || true",
            "router: API key",
            also=(SETTLED, VERIFY, "router: models", "router: unit active", "router: container"),
        ),
    ],
    "unrecorded": [
        Change("the record removed", "rm /var/lib/gb10/deployed.json", "record: this deploy", made="new"),
        Change(
            "with it, a file that nobody can class then",
            f"chmod 600 {PRESETS}",
            "router: presets",
            made="new",
        ),
    ],
    "killed": [
        Change(
            "the container killed",
            f"docker kill {LANE} && sleep 12",
            "router: restarts",
            made="new",
        ),
        Change("a model file removed", f"rm {SMALL_C}", f"models: {SMALL_C}"),
        Change(
            "the presets edited",
            f"sed -i 's/ctx-size = 8192/ctx-size = 512/' {PRESETS}",
            "router: presets",
        ),
        Change(
            "the apt preferences widened",
            f"sed -i 's/^Pin-Priority:.*/Pin-Priority: 1/' {PIN}",
            "toolkit: version pin",
            also=APT_MOVES,
        ),
        Change(
            "a unit of the nightly look edited",
            "echo '#' >> /etc/systemd/system/gb10-drift.timer",
            "record: gb10-drift.timer",
            also=("record: a look each night",),
        ),
    ],
    "crashed": [
        Change(
            "the accelerator gone, and the lane with it",
            f"systemctl stop standin-accelerator && docker kill {LANE}; "
            f"for i in $(seq 60); do systemctl is-active --quiet {LANE} || break; sleep 1; done; sleep 5",
            "router: unit active",
            made="new",
            also=("router: restarts", VERIFY),
            undo="systemctl start standin-accelerator",
        ),
        Change("with it, its container", "true", "router: container", made="new"),
        Change("and what a deploy would do", "true", SETTLED, made="new"),
    ],
    "stopped": [
        Change(
            "the nightly look switched off",
            "systemctl disable --now gb10-drift.timer",
            "record: a look each night",
        ),
        Change(
            "the service stopped",
            f"systemctl stop {LANE}",
            SETTLED,
            also=("router: unit active", "router: container", VERIFY),
        ),
        Change(
            "a link in place of the unit (masked)",
            f"rm {UNIT} && systemctl mask {LANE}",
            f"router: {LANE}.service",
            also=("router: unit enabled", "router: unit loaded", "router: unit file"),
        ),
        Change("the key removed", f"rm {KEY}", "router: API key"),
    ],
}  # fmt: skip
