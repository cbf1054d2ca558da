"""Matrix multiplication for Python on NVIDIA GPUs, autotuned."""

__version__ = "0.1.0"
