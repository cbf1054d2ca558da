"""The CPU as a device: compiler, threads, kernels in pieces."""
