"""The hardware: a GB10 box (DGX Spark class)."""

expect_architecture = "aarch64"
expect_os = ["ubuntu 24.04"]
expect_compute_capability = "12.1"

# What the plan adds up against: `gb10 plan` shows it, and a deploy refuses what does not fit.
memory_total_mib = 122070  # 128 GB; CPU and GPU share it
memory_reserve_mib = 16384  # never planned: system, Docker, page cache
memory_overhead_mib = 700  # of each loaded model beyond its buffers (CUDA context)

image_accelerator_flags = {
    "GGML_CUDA": "ON",
    # llama.cpp turns 121 into 121a, which has the FP4 instructions.
    "CMAKE_CUDA_ARCHITECTURES": "121",
    # The driver's library is not there at build time: link against its stub.
    "CMAKE_EXE_LINKER_FLAGS": "-Wl,-rpath-link,/usr/local/cuda/targets/sbsa-linux/lib/stubs",
}
image_build_prepare = [
    "ln -sf libcuda.so /usr/local/cuda/targets/sbsa-linux/lib/stubs/libcuda.so.1",
]
image_build_proofs = [
    {
        "name": "CUDA code",
        "command": "cuobjdump --list-elf /out/llama-server | grep -o 'sm_[0-9a-z]*' | sort -u",
        "expect": "^sm_121a$",
    },
]
image_driver_stubs = "/usr/local/cuda/targets/sbsa-linux/lib/stubs"
image_system_info = ["BLACKWELL_NATIVE_FP4 = 1"]
image_runtime_prepare = [
    # The image's compat libraries would take the place of the driver's own, and CUDA would not start.
    "rm -rf /usr/local/cuda*/compat /etc/ld.so.conf.d/*compat* && ldconfig",
]
