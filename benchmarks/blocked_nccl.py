"""What `blocked.py` compares with: every GPU gathers A through NCCL and multiplies it with its own
columns of B by cuBLAS, one process for each GPU, by PyTorch. One line of JSON for each figure:
the product on one GPU alone, and on all. NVLink multicast stays off (NCCL_NVLS_ENABLE=0).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

KINDS = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}


def main(arguments: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="0,1")
    parser.add_argument("--sizes", default="16384,10001")
    parser.add_argument("--dtypes", default="f32,f64,bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=29577)
    given = parser.parse_args(arguments)
    import torch.multiprocessing as processes

    os.environ["NCCL_NVLS_ENABLE"] = "0"
    devices = [int(number) for number in given.devices.split(",")]
    processes.spawn(one, (devices, given), nprocs=len(devices))
    return 0


def one(rank: int, devices: list[int], given: Any) -> None:
    """The process of one GPU."""
    import torch
    import torch.distributed as group

    device = torch.device("cuda", devices[rank])
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    world = len(devices)
    address = f"tcp://127.0.0.1:{given.port}"
    group.init_process_group("nccl", init_method=address, rank=rank, world_size=world)
    try:
        for n in map(int, given.sizes.split(",")):
            for dtype in given.dtypes.split(","):
                measure(torch, group, (rank, world, device), n, dtype, given.rounds)
    finally:
        group.destroy_process_group()


def measure(torch: Any, group: Any, place: tuple, n: int, dtype: str, rounds: int) -> None:
    """One product: A in blocks of rows, B and C in blocks of columns."""
    rank, world, device = place
    rows = -(-n // world)
    kind = getattr(torch, KINDS[dtype])
    own = torch.randn(rows, n, device=device, dtype=kind)
    gathered = torch.empty(rows * world, n, device=device, dtype=kind)
    columns = torch.randn(n, rows, device=device, dtype=kind)
    result = torch.empty(rows * world, rows, device=device, dtype=kind)

    def together() -> None:
        group.all_gather_into_tensor(gathered, own)
        torch.matmul(gathered, columns, out=result)

    for name, count, call in alone(torch, n, kind, device, dtype) + [
        ("NCCL all-gather + cuBLAS", world, together)
    ]:
        if count == 1 and rank:
            group.barrier()
            continue
        seconds = timed(torch, group, call, rounds, count > 1)
        if count == 1:
            group.barrier()
        if rank == 0:
            row = {"name": name, "devices": count, "dtype": dtype, "n": n, "seconds": seconds}
            print(json.dumps(row), flush=True)


def alone(torch: Any, n: int, kind: Any, device: Any, dtype: str) -> list[tuple]:
    """cuBLAS on one GPU."""
    a, b = (torch.randn(n, n, device=device, dtype=kind) for _ in range(2))
    c = torch.empty(n, n, device=device, dtype=kind)
    return [("cuBLAS", 1, lambda: torch.matmul(a, b, out=c))]


def timed(torch: Any, group: Any, call: Any, rounds: int, together: bool) -> float:
    """Median of the seconds of a call, of several that are queued behind each other; of all
    processes together, of the slowest.
    """
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = torch.tensor([time.perf_counter() - start], device="cuda")
    if together:
        group.all_reduce(once, op=group.ReduceOp.MAX)
    count = max(1, min(100, round(0.25 / float(once))))
    samples = []
    for _ in range(rounds):
        if together:
            group.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        taken = torch.tensor([time.perf_counter() - start], device="cuda")
        if together:
            group.all_reduce(taken, op=group.ReduceOp.MAX)
        samples.append(float(taken) / count)
    return statistics.median(samples)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
