"""How it is computed: the one declaration of every kernel. Space, default, rules, geometry,
shared memory.

A limit on a configuration is a named `Rule` here and nowhere else; the `static_assert`s of the
kernel files mirror the rules that do not depend on the device.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pymm.device import Device
from pymm.problem import Problem

#: No tile, depth or register tile of any kernel is larger; a number above it in a file or an
#: argument is a mistake.
MAX_PARAMETER = 65536

#: Blocks that a CUDA grid may have along y or z (CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability"; 2^31 - 1 along x).
MAX_GRID_YZ = 65535


@dataclass(frozen=True)
class Rule:
    """A condition that a configuration must meet, with the sentence that a person reads when it
    does not.
    """

    reason: str
    holds: Callable[[Config, Problem, Device], bool]


@dataclass(frozen=True)
class Kernel:
    """One rung: its file, the values each parameter may take in a search, its default, its rules
    and its geometry.
    """

    number: int
    name: str
    file: str
    title: str
    space: Mapping[str, tuple[int, ...]]
    default: Mapping[str, int]
    rules: tuple[Rule, ...]
    threads: Callable[[Config], int]
    block: Callable[[Config], tuple[int, int, int]] = lambda c: (1, 1, 1)
    shared_elements: Callable[[Config], int] = lambda c: 0
    backend: str = "cuda"
    dtypes: tuple[str, ...] = ("f32", "f64")

    def __hash__(self) -> int:
        return hash((self.backend, self.name))

    @property
    def default_config(self) -> Config:
        """The configuration that always fits, and that every tuned one is compared with."""
        return self.config(self.default)

    def config(self, parameters: Mapping[str, int]) -> Config:
        """A configuration of this kernel. `ValueError` unless it names exactly this kernel's
        parameters, as positive integers.

        Values outside `space` are allowed: `space` is what a search walks through, `violations`
        is what decides.
        """
        if set(parameters) != set(self.space):
            got = ", ".join(map(str, parameters)) or "none"
            raise ValueError(f"{self.name} takes {', '.join(self.space)}; got {got}")
        for name, value in parameters.items():
            if type(value) is not int or not 1 <= value <= MAX_PARAMETER:
                limit = f"an integer between 1 and {MAX_PARAMETER}"
                raise ValueError(f"{name}={value!r} is not {limit}")
        values = tuple((name, parameters[name]) for name in self.space)
        return Config(self.name, values, self.backend)

    def shared_bytes(self, config: Config, problem: Problem) -> int:
        """Bytes of shared memory that one block takes."""
        return self.shared_elements(config) * problem.numpy_dtype.itemsize

    def grid(self, config: Config, problem: Problem) -> tuple[int, int, int]:
        """Blocks along n, along m, and matrices of the stack.

        Where the rows need more blocks than a grid has along y, each block of the kernel takes
        several tiles of rows. A stack of more than `MAX_GRID_YZ` matrices is the launch's business.
        """
        rows = min(-(-problem.m // config.MB), MAX_GRID_YZ)
        return (-(-problem.n // config.NB), rows, problem.batch)

    def guarded(self, config: Config, problem: Problem) -> bool:
        """True if some tile is partial, so that the kernel must check every index that it reads
        or writes.
        """
        extents = {"MB": problem.m, "NB": problem.n, "KB": problem.k}
        return any(extents[name] % value for name, value in config.parameters if name in extents)

    def violations(self, config: Config, problem: Problem, device: Device) -> list[str]:
        """The reasons of the rules that `config` breaks; empty if it may run."""
        rules = COMMON_RULES[self.backend] + self.rules
        return [rule.reason for rule in rules if not rule.holds(config, problem, device)]

    def configs(self, problem: Problem, device: Device) -> tuple[list[Config], Counter[str]]:
        """All configurations of the space that may run, and how many each rule turned down (first
        broken rule counts).
        """
        valid, rejected = [], Counter()
        for config in self._all():
            broken = self.violations(config, problem, device)
            if broken:
                rejected[broken[0]] += 1
            else:
                valid.append(config)
        return valid, rejected

    def _all(self) -> Iterator[Config]:
        for values in itertools.product(*self.space.values()):
            yield Config(self.name, tuple(zip(self.space, values, strict=True)), self.backend)


@dataclass(frozen=True)
class Config:
    """A kernel's name and its integer parameters, which read as attributes: `config.MB`."""

    kernel_name: str
    parameters: tuple[tuple[str, int], ...]
    backend: str = "cuda"

    def __getattr__(self, name: str) -> int:
        if name.isupper():
            for known, value in self.parameters:
                if known == name:
                    return value
        raise AttributeError(name)

    @property
    def kernel(self) -> Kernel:
        """The declaration that this configuration belongs to."""
        return find_kernel(self.kernel_name, self.backend)

    @cached_property
    def slug(self) -> str:
        """The one spelling of a configuration: `register_tile-MB64-NB64-KB16-TA4-TB4`."""
        return "-".join([self.kernel_name, *(f"{name}{value}" for name, value in self.parameters)])

    def as_dict(self) -> dict[str, int]:
        """The parameters by name."""
        return dict(self.parameters)


def find_kernel(name: str | int, backend: str = "cuda") -> Kernel:
    """A kernel by name, by number (4) or by both ("04_transposed_a"). `ValueError` that lists
    what exists.
    """
    for kernel in KERNELS:
        if kernel.backend == backend and name in (
            kernel.name,
            kernel.number,
            str(kernel.number),
            f"{kernel.number:02d}",
            f"{kernel.number:02d}_{kernel.name}",
        ):
            return kernel
    known = ", ".join(f"{k.number:02d}_{k.name}" for k in KERNELS if k.backend == backend)
    raise ValueError(f"no kernel {name!r} for {backend}; there are {known}")


def kernels_for(problem: Problem, device: Device) -> list[Kernel]:
    """The kernels that can compute `problem` on a device of this kind, lowest rung first."""
    backend = "cpu" if device.kind == "cpu" else "cuda"
    return [k for k in KERNELS if k.backend == backend and problem.dtype in k.dtypes]


def parse_slug(slug: str, backend: str = "cuda") -> Config:
    """The configuration that a slug spells. `ValueError` if it spells none."""
    name, *fields = slug.split("-")
    kernel = find_kernel(name, backend)
    parameters = {field.rstrip("0123456789"): field for field in fields}
    try:
        return kernel.config({key: int(field[len(key) :]) for key, field in parameters.items()})
    except ValueError as error:
        raise ValueError(f"{slug!r} is no configuration of {kernel.name}: {error}") from None


def _words(problem: Problem) -> int:
    """32-bit registers that one element takes."""
    return problem.numpy_dtype.itemsize // 4


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread with a TA x TB tile: accumulators, one row of B, one column of A, and
    48 for addresses, counters and numbers on their way to shared memory.

    In rung 3 a column of A lies across the rows of the tile, and the compiler reads up to 32 bytes
    of each row ahead: the columns of several steps along k. In steps of eight, as registers are
    handed out. Checked with nvcc 13.0 for sm_75 to sm_90a: what these rules let through does not
    spill.
    """
    column = 8 * c.TA if c.kernel_name == "register_tile" else c.TA * _words(p)
    return -(-((c.TA * c.TB + c.TB) * _words(p) + column + 48) // 8) * 8


# What holds for every kernel of a backend

COMMON_RULES: dict[str, tuple[Rule, ...]] = {
    "cuda": (
        Rule(
            "a block has at most the device's threads",
            lambda c, p, d: c.kernel.threads(c) <= d.max_threads,
        ),
        Rule(
            "a block is made of whole warps",
            lambda c, p, d: c.kernel.threads(c) % 32 == 0,
        ),
        Rule(
            "both tiles fit in static shared memory",
            lambda c, p, d: c.kernel.shared_bytes(c, p) <= min(d.shared_static, d.shared_per_block),
        ),
    ),
    "cpu": (),
}

# Kernels 0 to 4: the ladder that the project started from

_ONE_ELEMENT = dict(threads=lambda c: c.MB * c.NB)

NAIVE = Kernel(
    number=0,
    name="naive",
    file="00_naive.cu",
    title="one thread, one element; neighbouring threads a row apart",
    space=dict(MB=(1, 2, 4, 8, 16, 32, 64, 128, 256), NB=(1, 2, 4, 8, 16, 32, 64, 128, 256)),
    default=dict(MB=32, NB=32),
    block=lambda c: (c.MB, c.NB, 1),
    rules=(),
    **_ONE_ELEMENT,
)

COALESCED = Kernel(
    number=1,
    name="coalesced",
    file="01_coalesced.cu",
    title="one thread, one element; neighbouring threads read neighbouring addresses",
    space=dict(MB=(1, 2, 4, 8, 16, 32), NB=(8, 16, 32, 64, 128, 256)),
    default=dict(MB=32, NB=32),
    block=lambda c: (c.NB, c.MB, 1),
    rules=(),
    **_ONE_ELEMENT,
)

SHARED_TILE = Kernel(
    number=2,
    name="shared_tile",
    file="02_shared_tile.cu",
    title="square tiles in shared memory, one element per thread",
    space=dict(MB=(8, 16, 32), NB=(8, 16, 32), KB=(8, 16, 32)),
    default=dict(MB=32, NB=32, KB=32),
    block=lambda c: (c.NB, c.MB, 1),
    shared_elements=lambda c: c.MB * c.KB + c.KB * c.NB,
    rules=(Rule("the tiles are square: MB = NB = KB", lambda c, p, d: c.MB == c.NB == c.KB),),
    **_ONE_ELEMENT,
)

_REGISTER_TILE_SPACE = dict(
    MB=(16, 32, 64, 128, 256),
    NB=(16, 32, 64, 128, 256),
    KB=(4, 8, 16, 32),
    TA=(1, 2, 4, 8, 16),
    TB=(1, 2, 4, 8, 16),
)

_REGISTER_TILE_RULES = (
    Rule(
        "threads tile the block evenly: TA divides MB and TB divides NB",
        lambda c, p, d: c.MB % c.TA == 0 and c.NB % c.TB == 0,
    ),
    Rule(
        "a thread's tile fits in its registers without spilling",
        lambda c, p, d: _registers(c, p) <= d.max_registers_per_thread,
    ),
    Rule(
        "a block's threads fit in the register file",
        # and do not fill it: at the very limit ptxas spills for sm_75 and sm_80
        lambda c, p, d: _registers(c, p) * c.kernel.threads(c) < d.registers_per_block,
    ),
)

_REGISTER_TILE = dict(
    space=_REGISTER_TILE_SPACE,
    default=dict(MB=64, NB=64, KB=16, TA=4, TB=4),
    threads=lambda c: (c.MB // c.TA) * (c.NB // c.TB),
    block=lambda c: (c.NB // c.TB, c.MB // c.TA, 1),
    shared_elements=lambda c: c.KB * (c.MB + c.NB),
    rules=_REGISTER_TILE_RULES,
)

REGISTER_TILE = Kernel(
    number=3,
    name="register_tile",
    file="03_register_tile.cu",
    title="MB x NB x KB block tile in shared memory, TA x TB elements of C in a thread's registers",
    **_REGISTER_TILE,
)

TRANSPOSED_A = Kernel(
    number=4,
    name="transposed_a",
    file="04_transposed_a.cu",
    title="the register tile with A transposed in shared memory, so that fragments load as vectors",
    **_REGISTER_TILE,
)

# The CPU: cache blocks and a register tile, the same five parameters

REORDERED = Kernel(
    number=0,
    name="reordered",
    file="reordered.cpp",
    title="sequential tiled product with reordered loops",
    space=dict(MB=(16, 32, 64, 128, 256), NB=(64, 128, 256, 512), KB=(16, 32, 64, 128, 256)),
    default=dict(MB=64, NB=256, KB=64),
    threads=lambda c: 1,
    rules=(),
    backend="cpu",
)

BLOCKED = Kernel(
    number=1,
    name="blocked",
    file="blocked.cpp",
    title="packed cache blocks MB x NB x KB, a register tile of TA rows and TB columns of vectors",
    space=dict(
        MB=(48, 96, 192, 384),
        NB=(256, 512, 1024, 2048),
        KB=(128, 256, 384, 512),
        TA=(4, 6, 8, 12),
        TB=(8, 16, 32, 48),
    ),
    default=dict(MB=96, NB=1024, KB=256, TA=6, TB=16),
    threads=lambda c: 1,
    rules=(),
    backend="cpu",
)

KERNELS: tuple[Kernel, ...] = (
    NAIVE,
    COALESCED,
    SHARED_TILE,
    REGISTER_TILE,
    TRANSPOSED_A,
    REORDERED,
    BLOCKED,
)
