"""What every box gets, unless its own group or host says otherwise. Data only: no logic, no secrets."""

from gb10.connection import prompt_transport

# -- the connection ---------------------------------------------------------------------------
# Sends small packets at once and keeps an idle connection alive: see gb10/connection.py.
ssh_paramiko_connect_kwargs = {"transport_factory": prompt_transport}
# A new box is learned at the first contact; a changed host key is refused.
ssh_strict_host_key_checking = "accept-new"

# Everything on the box is done as root: the login user needs sudo without a password.
_sudo = True

# -- where things live on the box ---------------------------------------------------------------
state_dir = "/var/lib/gb10"  # build contexts, retired units, the record of the last deploy
program_dir = "/usr/local/lib/gb10"  # the on-box programs

# -- old vLLM lanes: taken out, never revived -----------------------------------------------------
lanes_out = [
    {"unit": "vllm-lane-a.service", "container": "vllm-lane-a", "port": 10101},
    {"unit": "vllm-lane-b.service", "container": "vllm-lane-b", "port": 10102},
]

# -- NVIDIA container toolkit ---------------------------------------------------------------------
toolkit_version = "1.19.1-1"
toolkit_packages = [
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
]
toolkit_apt_url = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
toolkit_key_url = "https://nvidia.github.io/libnvidia-container/gpgkey"
toolkit_key_fingerprint = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
# Merged into /etc/docker/daemon.json; whatever else stands there is kept.
docker_daemon = {"features": {"cdi": True}}

# -- the image: llama.cpp built on the box ----------------------------------------------------------
image_name = "gb10/llama-server"
llama_repository = "https://github.com/ggml-org/llama.cpp.git"
llama_ref = "b11312"  # for people; the commit is what is fetched and checked
llama_commit = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
image_build_base = (
    "nvidia/cuda:13.0.1-devel-ubuntu24.04"
    "@sha256:7d2f6a8c2071d911524f95061a0db363e24d27aa51ec831fcccf9e76eb72bc92"
)
image_runtime_base = (
    "nvidia/cuda:13.0.1-runtime-ubuntu24.04"
    "@sha256:c3fde347d52d578c84fd644bc177bc7ec333feaf11550d990da4084d7612e4c7"
)
image_build_packages = ["build-essential", "ca-certificates", "ccache", "cmake", "git", "ninja-build"]
image_runtime_packages = ["ca-certificates", "libgomp1"]
image_cmake_targets = ["llama-server"]
image_cmake_flags = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "OFF",
    # The backend is built in: a loadable one that fails to load is silent.
    "GGML_BACKEND_DL": "OFF",
    # No NCCL: one GPU, and a small runtime image.
    "GGML_CUDA_NCCL": "OFF",
    # The web page wants npm or a download at build time.
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    # Nothing is downloaded by the server itself: model files come from the models stage.
    "LLAMA_OPENSSL": "OFF",
    # Set by the box's own group: GGML_CUDA and CMAKE_CUDA_ARCHITECTURES, see group_data/gb10.py.
}
image_accelerator_flags: dict[str, str] = {}
# Commands that the build stage runs before the configure step.
image_build_prepare: list[str] = []
# Commands that the runtime stage runs.
image_runtime_prepare: list[str] = []
image_build_jobs = 0  # 0: all cores
# What the build must prove of itself: a command of the build stage, and what its output must match (a regular
# expression of CMake). The outputs are kept in the image.
image_build_proofs: list[dict[str, str]] = []
image_driver_stubs = (
    ""  # folder of the build stage with a stand-in of the driver's library, to start without a GPU
)
# What llama.cpp's system info must say where the accelerator is there.
image_system_info: list[str] = []
image_keep = 3  # images kept on the box, the running and the previous one always among them
# A deploy whose lane does not answer after a change puts the last lane that did back in place.
rollback_on_failure = True

# -- the appliance: llama.cpp's converter in an image of its own, built by the first `gb10 convert` ------
appliance_name = "gb10/llm-appliance"
# The server image's base: it is on the box already, its digest is known, and its Python is the system's.
appliance_base = image_runtime_base
appliance_free_gib = 8  # for its build, on Docker's disk
appliance_packages = ["ca-certificates", "git", "libgomp1", "python3", "python3-venv"]
appliance_index = ""  # where pip looks; "" for its own default
# PyTorch without CUDA: conversion needs none, and the image stays small.
appliance_torch_index = "https://download.pytorch.org/whl/cpu"
appliance_torch = "torch==2.11.0"
# What llama.cpp asks for at this commit (requirements/requirements-convert_hf_to_gguf.txt), and all that this
# asks for in its turn. The gguf package is not here: it is that of llama.cpp's own tree.
appliance_requirements = [
    "transformers==4.57.6",
    "numpy==2.2.6",
    "sentencepiece==0.2.3",
    "protobuf==4.25.9",
    "safetensors==0.8.0",
    "tokenizers==0.22.2",
    "huggingface-hub==0.36.2",
    "hf-xet==1.8.0",
    "regex==2026.11.19",
    "tqdm==4.70.1",
    "pyyaml==6.0.4",
    "requests==2.34.2",
    "certifi==2026.10.19.post1",
    "charset-normalizer==3.5.3",
    "idna==3.20",
    "urllib3==2.8.0",
    "filelock==4.3.1",
    "fsspec==2026.9.0",
    "packaging==26.4",
    "sympy==1.14.0",
    "mpmath==1.3.0",
    "networkx==3.7",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "typing-extensions==4.16.0",
]

# -- models -----------------------------------------------------------------------------------------
catalogue = "models.yaml"
models_lock = "models.lock"
models_dir = "/srv/models"
models_hub = "https://huggingface.co"
models_token_file = ""  # a file on the box (0600) with a hub token, for gated models; "" for none
models_parallel = 2  # downloads at once
models_reserve_gib = 20  # disk that a download never takes
models_search = ["/root/.cache/huggingface/hub"]  # files found here are used in place
# Models that lie in these and are not in the catalogue are served too, with the catalogue's defaults, and
# counted in the memory plan. Read only. "" for none.
models_found_cache = "/root/.cache/huggingface/hub"  # a Hugging Face cache
models_found_folder = ""  # a flat folder: FILE.gguf, or NAME/ with the parts of one model

# -- the lane: one router, one container, one unit -----------------------------------------------------
lane_name = "llamacpp-playground"
lane_config_dir = "/etc/llamacpp-playground"  # preset file and API key
lane_address = "127.0.0.1"  # where the port is published; 0.0.0.0 opens it to the network
lane_port = 10103
lane_user_id = 10103  # user and group of the server in its container
lane_models_max: int | str = 4  # models resident at once; "auto": as many as surely fit
lane_pids_limit = 4096
lane_stop_seconds = 30  # how long a running request may take to finish when the unit stops
lane_environment: dict[str, str] = {}  # more environment of the container

# -- the accelerator: without it the lane does not start, and no model loads ------------------------------
accelerator_device = "CUDA0"  # llama.cpp's name
accelerator_cdi = "nvidia.com/gpu=all"  # Docker's name
# How a model's process shows that it holds the accelerator: an open or mapped file, or a TCP peer.
accelerator_signal = {"kind": "file", "path": "/dev/nvidia-uvm"}
accelerator_wait_seconds = 90  # after a boot the driver may come later than Docker

# -- drift: what is, against what should be (`gb10 drift`, and a look on the box each night) -----------------
open_ports = [22]  # TCP ports that may be open on all addresses, beside the lane's own
# Differences that do not count for a time: item as `gb10 drift` shows it, why, who answers for it, until
# when: {"item": "box: reboot", "reason": "after the fair", "owner": "me", "expires": "2027-01-31"}
drift_ignore: list[dict[str, str]] = []
drift_disk_percent = 90  # a disk that is fuller than this is drift
drift_calendar = "*-*-* 03:30"  # when the box looks at itself (systemd's OnCalendar)
# Run on the box when its nightly look finds something else than the night before, and when the watch sees a
# change: program and arguments; the message is JSON on its standard input. [] for none.
notify_command: list[str] = []

# -- the watch: sees a lost accelerator and a slow model, and acts once (docs/watch.md) ------------------
watch_interval_seconds = 5  # from look to look
# Shows that a new process in the container still gets the accelerator: a command, and what it then prints.
# One that fails without a word says nothing: that may be Docker.
# nvidia-smi does without the node that CUDA needs: that one is opened too.
watch_probe = ["sh", "-c", "exec 3<>/dev/nvidia-uvm && exec nvidia-smi -L"]
watch_probe_expect = "GPU 0: "
watch_probe_seconds = 10
# Lists who holds GPU memory, one "PID, NAME" a line; [] for no such look. Who may beside the lane: texts that
# are found in the name.
watch_processes = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
watch_processes_allowed: list[str] = []
watch_rivals = ["vllm", "VLLM"]  # programs that reserve GPU memory, by the start of their name
watch_kernel_log = "/dev/kmsg"
watch_memory_reserve_mib = 6144  # with less than this available the longest idle model is unloaded
watch_pressure_percent = 10  # of a minute in which all processes wait for memory
watch_slow_ratio = 0.5  # of the baseline
watch_canary_seconds = 1800  # a model without a figure for so long is asked for one; 0: never
watch_canary_tokens = 32  # how long its answer is, and what traffic must make for a figure
watch_baselines = "bench/baselines"  # folder with HOST.json; without one speed is shown and not judged
# restart-lost: the accelerator is gone. restart-hung: the router does not answer. unload: memory under the
# reserve. stop-crash-loop: the unit crashes again and again. What is not in the list is only reported.
watch_actions = ["restart-lost", "restart-hung", "unload", "stop-crash-loop"]
watch_restarts_an_hour = 3  # that do not help; then the lane is stopped rather than left on the CPU
watch_backoff_seconds = 30  # before the second restart, twice that before the third
watch_crash_restarts = 6  # of the unit in an hour; systemd itself stops it after five in ten minutes
watch_settle_seconds = 60  # after a start by somebody else nothing is done to the lane
watch_clear_seconds = 15  # how long a reason must be away to be forgotten
watch_webhook_file = ""  # a file on the box (0600, root) with a URL that gets the same; "" for none

# -- preflight: what a box must be ------------------------------------------------------------------------
minimum_python = "3.10"
minimum_free_gib = 60  # for the build and the image, on Docker's disk
