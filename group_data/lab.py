"""The lab: what differs on a host of tests/lab, and nothing else. The same operations run there.

What has no match here is made, not faked in code: an accelerator that llama.cpp reaches over RPC stands in
for the GPU, small images stand in for CUDA's, signed stand-in packages for NVIDIA's. See tests/lab/README.md.
"""

from tests.lab import network, paths, record

ssh_user = paths.USER
ssh_key = str(paths.ssh_key())
ssh_known_hosts_file = str(paths.known_hosts())
ssh_strict_host_key_checking = "yes"

expect_architecture = "x86_64"
expect_os = ["debian 13"]
expect_compute_capability = "12.1"
minimum_free_gib = 3

memory_total_mib = 6144
memory_reserve_mib = 1024
memory_overhead_mib = 64

toolkit_apt_url = f"{network.TOOLKIT_URL}/stable/deb/$(ARCH)"
toolkit_key_url = f"{network.TOOLKIT_URL}/gpgkey"
toolkit_key_fingerprint = record.toolkit_key_fingerprint()

llama_repository = network.GIT_URL
image_build_base = "standin/cuda-devel:trixie"
image_runtime_base = "standin/cuda-runtime:trixie"
image_accelerator_flags = {
    "GGML_RPC": "ON",
    # A quick compile instead of a quick server.
    "CMAKE_C_FLAGS_RELEASE": "-O1",
    "CMAKE_CXX_FLAGS_RELEASE": "-O1",
}
image_build_proofs = [
    {
        "name": "RPC code",
        "command": "nm -C /build/bin/llama-server | grep -o 'ggml_backend_rpc_[a-z]*init' | sort -u",
        "expect": "ggml_backend_rpc_init",
    },
]
image_system_info = ["REPACK = 1"]

# Debian's PyTorch and the other packages lie in the stand-in: no package index is needed (appliance.py).
appliance_base = "standin/python-torch:trixie"
appliance_index = "file:///opt/index/simple"
appliance_torch_index = ""
appliance_torch = "torch==2.6.0"
appliance_free_gib = 2

catalogue = "tests/lab/models.yaml"
models_lock = "tests/lab/models.lock"
models_hub = network.HUB_URL
models_reserve_gib = 1
lane_models_max = 2

accelerator_device = "RPC0"
accelerator_signal = {"kind": "peer", "port": network.ACCELERATOR_PORT}
accelerator_wait_seconds = 5
lane_environment = {"LLAMA_ARG_RPC": f"{network.ACCELERATOR_ADDRESS}:{network.ACCELERATOR_PORT}"}

# A new process reaches both stand-ins: the driver's tool and the accelerator itself.
watch_probe = ["sh", "-c", "nvidia-smi -L && exec llama-server --list-devices"]
watch_probe_expect = "RPC0: "
watch_kernel_log = "/run/standin-kernel.log"  # the host has no kernel of its own: tests write its lines
watch_memory_reserve_mib = 256
