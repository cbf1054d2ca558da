"""The nouns of a kernel: `Rule`, `Kernel`, `Config`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pymm.core.device import Device
from pymm.core.forking import cached_property
from pymm.core.problem import Problem
from pymm.kernels import enumeration

#: No tile, depth or register tile of any kernel is larger; a number above it in a file or an
#: argument is a mistake.
MAX_PARAMETER = 65536

#: Blocks that a CUDA grid may have along y or z (CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability"; 2^31 - 1 along x).
MAX_GRID_YZ = 65535


@dataclass(frozen=True)
class Rule:
    """A condition that a configuration must meet, and the sentence about one that does not."""

    reason: str
    holds: Callable[[Config, Problem, Device], bool]


@dataclass(frozen=True)
class Box:
    """What a tensor map fetches or stores at a time: `columns` elements of `rows` rows, in shared
    memory swizzled in rows of 128 bytes, or with `swizzle` 0 as they come.
    """

    columns: int
    rows: int
    swizzle: int = 128


@dataclass(frozen=True)
class Feed:
    """How a kernel gets its matrices by TMA.

    `boxes` of A, B and C, for the problem as the kernel gets it; none for a C that it never stores
    by TMA. `along` says how A and B must lie, for all problems or for each: "any" as they are
    stored, "k" with rows along k, "mn" across k. With two `terms` a number comes as high + low,
    rounded to tf32, the low ones' matrix behind the high ones'; of a `scaled` feed as float16, with
    powers (common/scaled.cuh). `resident` blocks stay on a multiprocessor. With `last_round` SPLIT
    is of that round's tiles alone. `parts` gives the bytes of their sums, if not of whole matrices.
    """

    boxes: Callable[[Config, Problem], tuple[Box, Box, Box | None]]
    along: tuple[str, str] | Callable[[Problem], tuple[str, str]] = ("any", "any")
    terms: int = 1
    scaled: bool = False
    resident: Callable[[Config], int] = lambda c: 1
    last_round: bool = False
    parts: Callable[[Config, Problem], int] | None = None

    def received(self, problem: Problem) -> Problem:
        """The problem with A and B as they lie when the kernel gets them."""
        along_a, along_b = self.along(problem) if callable(self.along) else self.along
        trans_a = {"any": problem.trans_a, "k": False, "mn": True}[along_a]
        trans_b = {"any": problem.trans_b, "k": True, "mn": False}[along_b]
        same = (trans_a, trans_b) == (problem.trans_a, problem.trans_b)
        return problem if same else replace(problem, trans_a=trans_a, trans_b=trans_b)


def columns_and_rows(config: Config, problem: Problem) -> tuple[int, int]:
    """Blocks along n and along m. Where the rows need more blocks than a grid has along y, each
    block of the kernel takes several tiles of rows.
    """
    rows = min(-(-problem.m // config.MB), MAX_GRID_YZ)
    return -(-problem.n // config.NB), rows


@dataclass(frozen=True)
class Kernel:
    """One rung: its file, the values each parameter may take in a search, its default, its rules
    and its geometry.

    `tiles` gives the blocks along x and y. With `dynamic_shared` the launch hands the block its
    shared memory, which may then pass 48 KiB. An `aligned` kernel is compiled for the alignment of
    its operands: `ALIGN` bytes. One with a `workspace` takes a pointer to so many bytes as its last
    argument: zeros at first, and left with zeros where it counts. `capability` is the least that a
    GPU must have.

    A `hopper` kernel is made of instructions that only compute capability 9.0 has: no other GPU and
    no simulator runs it, it compiles for sm_90a alone. It gets its matrices as tensor maps, which
    put zeros around them, so that one text serves all sizes; and it is persistent: its blocks, as
    many as the device holds at a time, walk through the tiles of the whole stack. Where it has a
    parameter SPLIT, so many parts of k are units of work of their own, added up by a second launch.
    One that fills `both_halves` of a symmetric C stores the lower one twice: no launch mirrors it.
    `heuristic` gives a default for a problem and device, where one for all is not enough; the
    `extra_points` are tried besides the space. For problems
    that it is not `preferred_for` a kernel comes last.
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
    shared_elements: Callable[[Config, Problem], int] = lambda c, p: 0
    backend: str = "cuda"
    dtypes: tuple[str, ...] = ("f32", "f64")
    fallbacks: tuple[Mapping[str, int], ...] = ()
    tiles: Callable[[Config, Problem], tuple[int, int]] = columns_and_rows
    workspace: Callable[[Config, Problem], int] | None = None
    dynamic_shared: bool = False
    aligned: bool = False
    capability: tuple[int, int] = (0, 0)
    hopper: Feed | None = None
    both_halves: bool = False
    extra_points: tuple[Mapping[str, int], ...] = ()
    heuristic: Callable[[Problem, Device], Mapping[str, int]] | None = None
    preferred_for: Callable[[Problem, Device], bool] = lambda p, d: True

    def __hash__(self) -> int:
        return hash((self.backend, self.name))

    @property
    def default_config(self) -> Config:
        """The first choice without tuning."""
        return self.config(self.default)

    def default_for(self, problem: Problem, device: Device) -> Config:
        """The configuration that every tuned one is compared with: what is `heuristic`, else the
        default, or where a rule forbids it the first of `fallbacks` that obeys them all. A
        persistent kernel takes the first whose tiles keep nine multiprocessors of ten busy, else
        the last.
        """
        if self.heuristic:
            config = self.config(self.heuristic(problem, device))
            if not self.violations(config, problem, device):
                return config
        found = None
        for parameters in (self.default, *self.fallbacks):
            config = self.config(parameters)
            if not self.violations(config, problem, device):
                found = config
                if not self.hopper or 10 * self.units(config, problem) >= 9 * device.sms:
                    break
        return found or self.default_config

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
                raise ValueError(f"{name}={value!r} is not an integer from 1 to {MAX_PARAMETER}")
        values = tuple((name, parameters[name]) for name in self.space)
        return Config(self.name, values, self.backend)

    def shared_bytes(self, config: Config, problem: Problem) -> int:
        """Bytes of shared memory that one block takes."""
        return self.shared_elements(config, problem) * problem.numpy_dtype.itemsize

    def runs_on(self, device: Device) -> bool:
        """Whether a device of this kind has the instructions that the kernel is made of."""
        if self.backend != device.kernel_backend:
            return False
        if self.backend == "cpu":
            return True
        if self.hopper:
            return device.is_gpu and device.capability[0] == 9
        return device.capability >= self.capability

    def grid(
        self, config: Config, problem: Problem, sms: int | None = None
    ) -> tuple[int, int, int]:
        """Blocks along x and y, and matrices of the stack. A stack of more than `MAX_GRID_YZ`
        matrices is the launch's business. A persistent kernel has one block for each of `sms`
        multiprocessors, or as many as stay there, if it has work for so many.
        """
        if self.hopper and sms is not None:
            cluster = getattr(config, "CLUSTER", 1)
            most = sms * self.hopper.resident(config)
            blocks = min(self.units(config, problem), max(most - most % cluster, cluster))
            return blocks, 1, 1
        return (*self.tiles(config, problem), problem.batch)

    def units(self, config: Config, problem: Problem) -> int:
        """What the blocks of a persistent kernel walk through: tiles, parts of k, matrices."""
        return self.tiles(config, problem)[0] * parts_of(config) * problem.batch

    def guarded(self, config: Config, problem: Problem) -> bool:
        """True if some tile is partial, so that the kernel must check every index that it reads
        or writes.
        """
        extents = {"MB": problem.m, "NB": problem.n, "KB": problem.k}
        return any(extents[name] % value for name, value in config.parameters if name in extents)

    def violations(self, config: Config, problem: Problem, device: Device) -> list[str]:
        """The reasons of the rules that `config` breaks; empty if it may run."""
        return [rule.reason for rule in self.rules if not rule.holds(config, problem, device)]

    def configs(self, problem: Problem, device: Device) -> tuple[list[Config], Counter[str]]:
        """All configurations of the space that may run, and how many each rule turned down."""
        return enumeration.configs(self, problem, device)

    def points(self) -> Iterator[Config]:
        """Every combination of the space's values, and the extra points, whatever the rules say."""
        for values in enumeration.points(self):
            config = Config(self.name, tuple(zip(self.space, values, strict=True)), self.backend)
            config.__dict__["kernel"] = self
            yield config


@dataclass(frozen=True)
class Config:
    """A kernel's name and its integer parameters, which read as attributes: `config.MB`."""

    kernel_name: str
    parameters: tuple[tuple[str, int], ...]
    backend: str = "cuda"

    def __post_init__(self) -> None:
        self.__dict__.update(self.parameters)  # rules read them some 10^6 times in a search

    def __reduce__(self):
        return Config, (self.kernel_name, self.parameters, self.backend)

    @cached_property
    def kernel(self) -> Kernel:
        """The declaration that this configuration belongs to."""
        from pymm.kernels import known_kernel

        return known_kernel(self.kernel_name, self.backend)

    @cached_property
    def slug(self) -> str:
        """The one spelling of a configuration: `register_tile-MB64-NB64-KB16-TA4-TB4`."""
        return "-".join([self.kernel_name, *(f"{name}{value}" for name, value in self.parameters)])

    def as_dict(self) -> dict[str, int]:
        """The parameters by name."""
        return dict(self.parameters)


# Split k of kernels fed by TMA: the sums of each part in memory, added up by common/combine.cuh

#: Bytes that the parts of a split product may take.
MOST_PARTS = 256 * 2**20


def parts_of(config: Config) -> int:
    """Parts that k is split into."""
    return getattr(config, "SPLIT", 1)


def parts_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all parts: m rows each, of n numbers and up to three more, unless the kernel has
    them otherwise.
    """
    if parts_of(config) == 1:
        return 0
    if config.kernel.hopper.parts:
        return config.kernel.hopper.parts(config, problem)
    pitch = -(-problem.n // 4) * 4
    matrices = parts_of(config) * problem.batch
    return matrices * problem.m * pitch * problem.scalar_dtype.itemsize


# Rules that several families share

PARTS_FIT = Rule(
    "the parts of a split product take at most 256 MiB",
    lambda c, p, d: parts_bytes(c, p) <= MOST_PARTS,
)

PARTS_HAVE_STEPS = Rule(
    "k is split only into parts of a step or more",
    lambda c, p, d: c.SPLIT == 1 or c.SPLIT * c.KB <= p.k,
)

TILES_ALIKE = Rule(
    "a symmetric C that is computed whole has all tiles alike: SPLIT is 1",
    lambda c, p, d: c.SPLIT == 1 or not p.whole,
)

THREADS_FIT = Rule(
    "a block has at most the device's threads",
    lambda c, p, d: c.kernel.threads(c) <= d.max_threads,
)

STAGES_FIT = Rule(
    "the stages fit in shared memory",
    lambda c, p, d: c.kernel.shared_bytes(c, p) <= d.shared_per_block,
)
