"""A product of matrices on several devices, bound to them: all launches and copies of all devices
as calls without arguments, made once and repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Buffer, Matrix, Queue, Vector
from pymm.backends.matrices import alignment
from pymm.blocked.sharded import PITCH, ShardedMatrix, Team, settle_before_end
from pymm.blocked.sizes import shown
from pymm.blocked.streaming import config_for
from pymm.core.dtypes import FLOAT32, product_type
from pymm.core.epilogue import Epilogue
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.core.rows import InRows
from pymm.kernels import Config
from pymm.runtime.arguments import MatmulOptions, bias_dtype, check_bias, common_dtype, real
from pymm.runtime.arrays import adopt
from pymm.runtime.bind import executable
from pymm.selection.choose import choose, generation
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.plain import computed_type
from pymm.selection.select import Choice

Call = Callable[[], None]

#: Rows or columns of the first strip: enough tiles for all multiprocessors. The others double what
#: is there, so that each is copied while at least as much as that is multiplied.
STRIP = 2048

#: Bytes a second from a neighbour where nobody has measured: NVLink 4 as seen on four H200.
PEER = 320e9

FETCH_A, FETCH_B, OWN, COMPUTE = range(4)


@dataclass(frozen=True)
class Region:
    """Part of one device's block of C that one launch computes: row and column from the block's
    corner on, and how many. It needs the strips of A and B that have arrived by `after`.
    """

    row: int
    column: int
    rows: int
    columns: int
    after: int


@dataclass(frozen=True)
class Strip:
    """Rows of A ("a") or columns of B ("b") that a device collects: from `start` to `stop`."""

    side: str
    start: int
    stop: int


def strips_of(extent: int) -> list[tuple[int, int]]:
    """An extent in strips: the first of `STRIP`, the next as large as all before them; what is left
    in the end belongs to the last one if it is less than `STRIP`.
    """
    ends, end = [0], STRIP
    while extent - end >= STRIP:
        ends.append(end)
        end *= 2
    return list(itertools.pairwise((*ends, extent))) if extent else []


def schedule(m: int, n: int, collect_a: bool, collect_b: bool) -> tuple[list[Strip], list[Region]]:
    """In which order a device collects strips, and what it computes after each. A side that is not
    collected is there from the start.
    """
    rows = strips_of(m) if collect_a else []
    columns = strips_of(n) if collect_b else []
    strips: list[Strip] = []
    for a, b in itertools.zip_longest(rows, columns):
        strips += [Strip(side, *s) for side, s in (("a", a), ("b", b)) if s is not None]
    regions: list[Region] = []
    have_m, have_n = (0 if collect_a else m), (0 if collect_b else n)
    for number, strip in enumerate(strips):
        size = strip.stop - strip.start
        if strip.side == "a":
            have_m = strip.stop
            region = Region(strip.start, 0, size, have_n, number)
        else:
            have_n = strip.stop
            region = Region(0, strip.start, have_m, size, number)
        if region.rows and region.columns:
            regions.append(region)
    if not strips and m and n:
        regions.append(Region(0, 0, m, n, -1))
    return strips, regions


@dataclass(frozen=True)
class Finish:
    """An epilogue, and its bias on the host."""

    epilogue: Epilogue
    bias: np.ndarray | None = None

    @property
    def key(self) -> tuple[Epilogue, bytes]:
        """What tells it from others."""
        return self.epilogue, b"" if self.bias is None else self.bias.tobytes()


class Program:
    """`C <- alpha A B + beta C` with an epilogue, ready to run any number of times. It owns the
    memory of A and B, and the devices' copies of what they collect and of the bias; C owns it.
    """

    def __init__(
        self,
        a: ShardedMatrix,
        b: ShardedMatrix,
        c: ShardedMatrix,
        kind: str,
        scalars: tuple[float, float],
        asked: tuple[Any, Any],
        finish: Finish,
    ) -> None:
        self.team: Team = c.team
        self._owns = a.blocks, b.blocks
        parts = [
            _Part(rank, (a, b, c), kind, scalars, asked, finish)
            for rank in range(len(c.team.backends))
        ]
        self.parts = [part for part in parts if part.regions]
        tails = [part.tail for part in parts]
        self._marking = [(part.compute, part.compute.marking(part.tail)) for part in parts]
        for part in parts:
            part.wait_for([tail for tail in tails if tail is not part.tail])
        self._first = parts
        settle_before_end(self, self.team)

    def __call__(self) -> None:
        """Queue all of it. Devices begin when what was queued before on all of them is done."""
        with self.team.lock:
            for queue, mark in self._marking:
                with queue.here():
                    mark()
            for part in self._first:
                _make(part.compute, part.begin)
            rounds = max((len(part.copies) for part in self.parts), default=0)
            for number in range(rounds + 1):
                for part in self.parts:
                    _make(part.compute, part.copies[number : number + 1])
                if number:
                    self._launch(number - 1)
            if not rounds:
                self._launch(-1)

    def _launch(self, arrived: int) -> None:
        for part in self.parts:
            _make(part.compute, part.launches.get(arrived, []))


def _make(queue: Queue, calls: list[Any]) -> None:
    if calls:
        with queue.here():
            for call in calls:
                call()


def _in_turn(calls: list[Call]) -> Call:
    def call() -> None:
        for one in calls:
            one()

    return call


class _Part:
    """What one device does in a program: `begin` first, then `copies[i]` for strip i and, when that
    is queued, `launches[i]`.
    """

    def __init__(
        self,
        rank: int,
        matrices: tuple[ShardedMatrix, ShardedMatrix, ShardedMatrix],
        kind: str,
        scalars: tuple[float, float],
        asked: tuple[Any, Any],
        finish: Finish,
    ) -> None:
        a, b, c = matrices
        team = c.team
        self.backend: Backend = team.backends[rank]
        self.queues = team.queues[rank]
        self.compute: Queue = self.queues[COMPUTE]
        self.tail, self._begun = self.backend.new_mark(), self.backend.new_mark()
        self._matrices, self._place, self._rank = matrices, team.place(rank), rank
        self.begin: list[Call] = []
        self.bytes_in = 0
        block, (down, across) = c.blocks[rank], team.grid
        (m, n), self._k = block.shape, a.shape[1]
        collect = across > 1 and self._k > 0, down > 1 and self._k > 0
        self.strips, self.regions = schedule(m, n, *collect) if m and n else ([], [])
        self._sides = self._room("a", m, collect[0]), self._room("b", n, collect[1])
        self.copies = [_in_turn(self._collect(strip)) for strip in self.strips]
        self.choice: Choice | None = None
        self.problem: Problem | None = None
        self._epilogue, self._bias = finish.epilogue, None
        if finish.bias is not None and n:
            self._bias = self._uploaded(finish.bias[block.columns])
        self.launches = self._launches(kind, scalars, asked)

    def wait_for(self, tails: list[Any]) -> None:
        """Begin after the marks of the other devices."""
        self.begin = [self.compute.waiting(tail) for tail in tails]
        self.begin.append(self.compute.marking(self._begun))
        self.begin += [queue.waiting(self._begun) for queue in self.queues[:COMPUTE]]

    def _uploaded(self, bias: np.ndarray) -> Buffer:
        """The bias of this device's columns in its memory, before what is queued from now on."""
        buffer = self.backend.allocate(bias.nbytes)
        with self.compute.here():
            self.compute.upload(bias[None, :], bias.dtype, buffer.address, bias.nbytes)
        return buffer

    def _room(self, side: str, extent: int, collect: bool) -> tuple[Buffer, int]:
        """Where all of A's rows or B's columns that this device needs lie: memory, and bytes from
        row to row. The device's own block where that is all.
        """
        matrix = self._matrices[0 if side == "a" else 1]
        if not collect or not self.strips:
            block = matrix.blocks[self._rank]
            return block.buffer, block.pitch
        rows, columns = (extent, self._k) if side == "a" else (self._k, extent)
        pitch = round_up(columns * matrix.dtype.itemsize, PITCH)
        return self.backend.allocate(rows * pitch), pitch

    def _collect(self, strip: Strip) -> list[Call]:
        """The copies of one strip, from this device and its neighbours, and what waits for them."""
        first, size = strip.side == "a", strip.stop - strip.start
        matrix = self._matrices[0 if first else 1]
        (buffer, pitch), item = self._sides[0 if first else 1], matrix.dtype.itemsize
        calls: list[Call] = []
        for other in range(matrix.team.grid[1 if first else 0]):
            p, q = self._place
            rank = matrix.team.rank(p, other) if first else matrix.team.rank(other, q)
            block = matrix.blocks[rank]
            if first:
                source = block.buffer.address + strip.start * block.pitch
                target = buffer.address + strip.start * pitch + block.columns.start * item
                shape = size, block.shape[1] * item
            else:
                source = block.buffer.address + strip.start * item
                target = buffer.address + block.rows.start * pitch + strip.start * item
                shape = block.shape[0], size * item
            if not shape[0] or not shape[1]:
                continue
            queue = self.queues[OWN if rank == self._rank else FETCH_A if first else FETCH_B]
            calls.append(queue.copying(source, block.pitch, target, pitch, shape))
            self.bytes_in += shape[0] * shape[1] * (rank != self._rank)
        for queue in (self.queues[OWN], self.queues[FETCH_A if first else FETCH_B]):
            mark = self.backend.new_mark()
            calls += [queue.marking(mark), self.compute.waiting(mark)]
        return calls

    def _launches(
        self, kind: str, scalars: tuple[float, float], asked: tuple[Any, Any]
    ) -> dict[int, list[Call]]:
        """Launches by the strip that they follow, the largest bound first: then all share its
        scratch memory.
        """
        ordered = sorted(self.regions, key=lambda one: -one.rows * one.columns)
        k = self._k if scalars[0] else 0
        bound: dict[int, list[Call]] = {}
        config: Config | None = None
        for region in ordered:
            problem = Problem(region.rows, region.columns, k, kind)
            if config is None:
                self.problem = problem
                self.choice = choose(self.backend, problem, *asked)
                config = self.choice.config
            bound.setdefault(region.after, []).append(self._bind(region, problem, config, scalars))
        return bound

    def _bind(
        self, region: Region, problem: Problem, config: Config, scalars: tuple[float, float]
    ) -> Call:
        a, b, c = self._matrices
        (rows, rows_pitch), (columns, columns_pitch) = self._sides
        size = a.dtype.itemsize
        left = Matrix(rows.address + region.row * rows_pitch, rows_pitch // size, 0, rows)
        start = columns.address + region.column * size
        right = Matrix(start, columns_pitch // size, 0, columns)
        out = c.blocks[self._rank].matrix(c.dtype.itemsize, region.row, region.column)
        matrices = left, right, out
        chosen = config_for(self.backend, problem, config)
        aligned, epilogue, bias = alignment(problem, matrices), self._epilogue, None
        if self._bias is not None:
            first = self._bias.address + region.column * epilogue.bias.itemsize
            bias = Vector(first, region.columns, self._bias)
        kernel = executable(self.backend, chosen, problem, aligned, epilogue)
        alpha, beta = scalars
        return kernel.bind(problem, alpha, left, right, beta, out, self.compute.stream, bias)


def multiply_sharded(
    a: Any, b: Any, out: Any, c: Any, options: MatmulOptions, bias: Any = None
) -> ShardedMatrix:
    """`activation(alpha a b + beta c + bias)` of matrices on several devices, queued and not waited
    for. The bias is on the host, and each device gets its part.

    Raises `TypeError` for operands of other kinds, `ValueError` for shapes that do not fit and
    matrices on other devices, `NotImplementedError` for transposes and streams, `MemoryError`.
    """
    a, b, out, kind, scalars = _checked(a, b, out, c, options)
    asked, finish = (options.kernel, options.config), _finish(out, options, bias)
    key = (a.blocks, b.blocks, kind, scalars, repr(asked), finish.key, generation())
    known = out.program
    if known is None or not _same(known[0], key):
        out.program = None  # its memory is needed for the next one
        program = out.team.apart(lambda: Program(a, b, out, kind, scalars, asked, finish))
        out.program = known = key, program
    known[1]()
    return out


def _finish(out: ShardedMatrix, options: MatmulOptions, bias: Any) -> Finish:
    """The epilogue of a call, checked."""
    activation = options.activation or ""
    if bias is None:
        return Finish(Epilogue(activation))
    given = adopt(bias, "bias")
    if not given.on_host:
        raise TypeError(
            f"bias is a {type(bias).__name__} on one device, and the product is on several: give "
            "it a NumPy array"
        )
    check_bias(given, out.shape[1], out.dtype, options.casting)
    dtype = bias_dtype(given, out.dtype)
    return Finish(Epilogue(activation, dtype), np.array(given.owner, dtype))


def _same(key: tuple, other: tuple) -> bool:
    blocks = key[0] is other[0] and key[1] is other[1]
    return blocks and key[2:] == other[2:]


def _checked(
    a: Any, b: Any, out: Any, c: Any, options: MatmulOptions
) -> tuple[ShardedMatrix, ShardedMatrix, ShardedMatrix, str, tuple[float, float]]:
    for name, given in (("a", a), ("b", b), ("out", out), ("c", c)):
        if given is not None and not isinstance(given, ShardedMatrix):
            raise TypeError(
                f"{name} is a {type(given).__name__} and another operand a ShardedMatrix: "
                "distribute it with pymm.scatter, over the same devices"
            )
        if given is not None and given.team is not a.team:
            raise ValueError(f"{name} lies on other devices than a: scatter both over the same")
    if options.trans_a or options.trans_b:
        raise NotImplementedError("matrices on several devices are not transposed: scatter a.T")
    for name in ("stream", "device", "transfer", "device_memory"):
        if getattr(options, name) is not None:
            raise NotImplementedError(f"{name}= is not for matrices that lie on several devices")
    k, depth = a.shape[1], b.shape[0]
    if k != depth:
        raise ValueError(
            f"shapes {a.shape} and {b.shape} do not fit: a has {k} columns, b {depth} rows"
        )
    common = common_dtype((("a", a.dtype), ("b", b.dtype)), options.dtype, options.casting)
    if common != a.dtype or common != b.dtype:
        raise NotImplementedError(
            f"a is {a.dtype}, b {b.dtype}, the product {common}: pymm does not convert arrays on "
            "devices; scatter them with dtype="
        )
    alpha, beta = real(options.alpha, "alpha"), real(options.beta or 0.0, "beta")
    out = _target(a, b, out, c, common, options)
    if beta and c is None:
        raise ValueError(f"beta={options.beta!r} needs c, the array that it scales")
    kind = product_type(common, options.precision, out.dtype)
    asked = options.kernel, options.config
    return a, b, out, computed_type(kind, a.team.backends[0].device, *asked), (alpha, beta)


def _target(
    a: ShardedMatrix,
    b: ShardedMatrix,
    out: ShardedMatrix | None,
    c: ShardedMatrix | None,
    common: np.dtype,
    options: MatmulOptions,
) -> ShardedMatrix:
    """`out`, or a new matrix."""
    shape = a.shape[0], b.shape[1]
    if c is not None and c is not out:
        raise NotImplementedError("c of a product on several devices is out itself: out=c, c=c")
    if c is not None and options.beta is None:
        raise ValueError("c needs beta: beta=1 adds c to the product, beta=0 does not read it")
    if out is None:
        wanted = common if options.out_dtype is None else np.dtype(options.out_dtype)
        return ShardedMatrix(a.team, shape, wanted)
    if out is a or out is b:
        raise ValueError("out is also an operand, which the other devices still read")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the product has {shape}")
    if out.dtype != common and (common.itemsize != 2 or out.dtype != FLOAT32):
        raise TypeError(f"cannot store a product in {common} in an out of {out.dtype}")
    return out


@dataclass(frozen=True)
class ShardedExplanation(InRows):
    """What `pymm.matmul` would do with matrices on several devices. `bytes_in` are what each device
    gets from the others; `seconds` the time expected, `limit` "kernel" or "link".
    """

    extents: tuple[int, int, int]
    grid: tuple[int, int]
    bytes_in: tuple[int, ...]
    choice: Choice | None
    seconds: float
    limit: str
    room: int
    epilogue: Epilogue

    def _rows(self) -> list[tuple[str, str]]:
        (m, n, k), (down, across) = self.extents, self.grid
        most = shown(max(self.bytes_in, default=0))
        rows = [
            ("problem", f"C is {m} x {n}, k = {k}, {2 * m * n * k:,} operations"),
            ("devices", f"{down} x {across}, each computes its own block of C"),
            ("links", f"at most {most} into one device, {shown(sum(self.bytes_in))} in all"),
            ("memory", f"{shown(self.room)} on each for what it collects"),
        ]
        if self.epilogue:
            rows.append(("epilogue", f"{self.epilogue}, fused into the store of C"))
        if self.choice is not None:
            rows += [("configuration", self.choice.config.slug), ("because", self.choice.reason)]
        rows.append(("expected", f"{self.seconds:.3g} s, limited by the {self.limit}"))
        return rows


def explain_sharded(
    a: Any, b: Any, out: Any, c: Any, options: MatmulOptions, bias: Any = None
) -> ShardedExplanation:
    """What `multiply_sharded` would do. Allocates a result where `out` is not given."""
    a, b, out, kind, _ = _checked(a, b, out, c, options)
    epilogue = _finish(out, options, bias).epilogue
    (down, across), k, size = out.grid, a.shape[1], a.dtype.itemsize
    received, room, first = [], 0, None
    for rank, block in enumerate(out.blocks):
        m, n = block.shape
        used = bool(m and n)
        own = a.blocks[rank].shape[1], b.blocks[rank].shape[0]
        rows, columns = (m * (across > 1), n * (down > 1)) if used else (0, 0)
        received.append((rows * (k - own[0]) + columns * (k - own[1])) * size)
        room = max(room, (rows + columns) * k * size)
        if first is None and used:
            first = Problem(m, n, k, kind)
    if first is None:
        nothing = tuple(received), None, 0, "kernel", 0, epilogue
        return ShardedExplanation((*out.shape, k), out.grid, *nothing)
    backend = out.team.backends[0]
    choice = choose(backend, first, options.kernel, options.config)
    compute = predicted_seconds(choice.config, first, backend.device)
    if choice.record is not None and choice.record.problem.flops:
        compute = first.flops * choice.record.seconds / choice.record.problem.flops
    link = max(received) / PEER
    limit = "link" if link > compute else "kernel"
    extents = (*out.shape, k)
    seconds = max(compute, link)
    found = tuple(received), choice, seconds, limit, room, epilogue
    return ShardedExplanation(extents, out.grid, *found)
