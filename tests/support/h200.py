"""An NVIDIA H200 that is not here, for what its kernels and records say of it."""

from pymm.core.device import Device, cuda_peaks

#: What decides which kernels run on it, and what type a product is computed in.
LIMITS = {
    "capability": (9, 0),
    "sms": 132,
    "peak_flops": cuda_peaks((9, 0), 132, 1.98e9),
    "shared_per_block": 232448,
    "shared_per_sm": 233472,
}

H200 = Device(
    "Test H200",
    "cuda",
    **LIMITS,
    clock_hz=1.98e9,
    bandwidth=4.8e12,
    l2_bytes=60 * 2**20,
    memory_bytes=2**37,
    versions={"driver": "580.10"},
)
