"""From a checked call to a product in blocks: which devices, how much of their memory, and what
`pymm.explain` says of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymm.backends.base import Matrix
from pymm.blocked.devices import names_several, open_devices
from pymm.blocked.host import HostProduct, Share
from pymm.blocked.sizes import bytes_of, shown
from pymm.core.epilogue import Epilogue
from pymm.core.rows import InRows
from pymm.runtime.arguments import Call, MatmulOptions
from pymm.runtime.bind import find_backend, find_product, find_route
from pymm.runtime.transfer import footprint
from pymm.selection.choose import choose


def in_blocks(options: MatmulOptions) -> bool:
    """Whether a call asks for blocks by its arguments."""
    return names_several(options.device) or options.device_memory is not None


def fits_in_blocks(call: Call, options: MatmulOptions) -> bool:
    """Whether a call that found too little memory can be computed in blocks."""
    fixed = options.stream is not None or options.transfer is not None
    if not call.on_host or call.op != "gemm" or fixed:
        return False
    return find_backend(call, options.device).has_queues


def fits_whole(call: Call, options: MatmulOptions) -> bool:
    """Whether operands, result and the kernel's own copies have room on the device, as far as can
    be told without taking it.
    """
    if not fits_in_blocks(call, options):
        return True
    backend = find_backend(call, options.device)
    route = find_route(backend, call, options.transfer)
    product, _ = find_product(call, route, options)
    needed = sum(footprint(spec) for spec in route.specs)
    if product.steps:
        step = product.steps[0]
        asked = {"kernel": options.kernel, "config": options.config, "prefer": options.prefer}
        config = choose(backend, step.problem, **asked).config
        places = (Matrix(0, x.ld, x.batch_stride) for x in (step.left, step.right))
        needed += backend.scratch_bytes(config, step.problem, *places)
    return needed <= backend.free_bytes()


def multiply_in_blocks(call: Call, options: MatmulOptions) -> np.ndarray:
    """The product of NumPy arrays, or of arrays on the host as `options` say."""
    return planned(call, options).run()[0]


def explain_in_blocks(call: Call, options: MatmulOptions) -> BlockedExplanation:
    """What `multiply_in_blocks` would do. Allocates nothing."""
    return BlockedExplanation.of(planned(call, options))


def planned(call: Call, options: MatmulOptions) -> HostProduct:
    """The call in blocks, planned. Raises `TypeError` for arrays on a device, and what
    `HostProduct` does.
    """
    if not call.on_host:
        kind = type(call.a.owner).__name__
        raise TypeError(
            f"a is a {kind} on a device, and blocks stream from the host: multiply it where it is "
            "(leave device_memory= and several devices out), copy it to the host, or distribute "
            "a host array over the devices with pymm.scatter"
        )
    budget = None if options.device_memory is None else bytes_of(options.device_memory)
    return HostProduct(open_devices(options.device), call, options, budget)


@dataclass(frozen=True)
class BlockedExplanation(InRows):
    """What `pymm.matmul` would do in blocks. `str()` of it is for reading.

    `extents` are m, n and k of one product, `products` how many there are (a batch). `shares` say
    what each device does. Bytes are those of the whole call; `bound` is the least that must cross
    the links with this memory; `seconds` is the time expected, `limit` "kernel" or "link".
    """

    extents: tuple[int, int, int]
    products: int
    shares: tuple[Share, ...]
    bytes_in: int
    bytes_out: int
    bound: int
    seconds: float
    limit: str
    epilogue: Epilogue

    @classmethod
    def of(cls, product: HostProduct) -> BlockedExplanation:
        """Of a planned product."""
        shares, count = product.shares, product.products
        slowest = max(shares, key=lambda share: share.seconds, default=None)
        return cls(
            product.extents,
            count,
            shares,
            sum(share.tiling.bytes_in for share in shares) * count,
            sum(share.tiling.bytes_out for share in shares) * count,
            round(sum(share.bound for share in shares) * count),
            slowest.seconds * count if slowest else 0.0,
            _limit(slowest) if slowest else "kernel",
            product.epilogue,
        )

    def _rows(self) -> list[tuple[str, str]]:
        m, n, k = self.extents
        words = f"C is {m} x {n}, k = {k}, {2 * m * n * k * self.products:,} operations, in blocks"
        rows = [("problem", words + (f", {self.products} matrices" * (self.products > 1)))]
        if self.epilogue:
            words = f"{self.epilogue}, fused into the store of a tile after its last slice"
            rows.append(("epilogue", words))
        for share in self.shares:
            rows += _of_share(share)
        moved = self.bytes_in + self.bytes_out
        rows.append(("link", f"{shown(self.bytes_in)} in, {shown(self.bytes_out)} out"))
        if self.bound:
            least = f"at least {shown(self.bound)} must move with this memory: "
            rows.append(("", f"{least}{moved / self.bound:.2f} times that"))
        rows.append(("expected", f"{self.seconds:.3g} s, limited by the {self.limit}"))
        if self.limit == "link" and self.shares:
            rows.append(("", self._why_link()))
        return rows

    def _why_link(self) -> str:
        operations = 2 * self.extents[0] * self.extents[1] * self.extents[2] * self.products
        rates = self.shares[0].rates
        best = max(self.bound, 1) / (rates.up * len(self.shares))
        alone = operations / (rates.flops * len(self.shares))
        return (
            f"the least traffic alone takes {best:.3g} s, the kernel {alone:.3g} s: no blocks "
            f"reach more than {min(1.0, alone / best):.0%} of its rate"
        )


def _limit(share: Share) -> str:
    """What takes longer: copying or multiplying."""
    tiling, rates = share.tiling, share.rates
    work = tiling.work
    link = max(tiling.bytes_in / rates.up, tiling.bytes_out / rates.down)
    return "link" if link > 2 * work.m * work.n * work.k / rates.flops else "kernel"


def _of_share(share: Share) -> list[tuple[str, str]]:
    tiling, device = share.tiling, share.backend.device
    down, across, slices = tiling.counts
    rows, columns = share.rows, share.columns
    kept = "A's slices stay for a row of tiles" if tiling.keep else "slices of A and B stream"
    taken = f"{shown(share.device_bytes)} of {shown(share.budget)} that it may take"
    return [
        ("device", f"{device.name} (cuda:{device.index}), {taken}"),
        ("", f"rows {rows.start} to {rows.stop}, columns {columns.start} to {columns.stop} of C"),
        ("tiles", f"{down} x {across} of {tiling.rows} x {tiling.columns}; {kept}"),
        ("slices", f"{slices} of {tiling.depth} along k"),
        ("configuration", share.choice.config.slug),
        ("because", share.choice.reason),
    ]
