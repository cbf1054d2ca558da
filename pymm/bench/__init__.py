"""pymm's kernels compared with other libraries."""
