"""The data model of a kernel: `Rule`, `Kernel`, `Config`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.forking import cached_property
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels import enumeration, survey

#: No tile, depth or register tile of any kernel is larger; a number above it in a file or an
#: argument is a mistake.
MAX_PARAMETER = 65536

#: Blocks that a CUDA grid may have along y or z (CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability"; 2^31 - 1 along x).
MAX_GRID_YZ = 65535


class Guards(IntEnum):
    """Values of the macro `GUARDED`: whether a kernel checks its indices against the extents.
    `WRITE` checks those of C alone: wrong where a tile of A or B is partial along k.
    """

    OFF = 0
    ON = 1
    WRITE = 2


@dataclass(frozen=True)
class Rule:
    """A condition that a configuration must meet, and the sentence that states it."""

    reason: str
    holds: Callable[[Config, Problem, Device], bool]


@dataclass(frozen=True)
class Box:
    """What a tensor map loads or stores at a time: `rows` rows of `columns` elements, in shared
    memory swizzled in rows of `swizzle` bytes (0: not swizzled).
    """

    columns: int
    rows: int
    swizzle: int = 128


#: Classes of rows of an operand that is read in place: rows so many apart start at equal addresses
#: modulo 16 bytes.
CLASSES = 4


@dataclass(frozen=True)
class Tma:
    """How a kernel loads its operands by TMA (the tensor memory accelerator).

    The kernel gets tensor maps of A, B and C instead of pointers. The hardware reads zeros outside
    of a matrix, so that one source serves all sizes. `boxes` gives those of A, B and C, for the
    problem in the layout that the kernel loads; None: no map of C is made. `major` says which axis
    of A and B must be contiguous, for all problems or for each: "any" (as stored),
    "k" (K-major) or "mn" (MN-major). With two `terms` an element comes as high + low, both rounded
    to tf32, the matrix of the low terms behind that of the high ones. If `scaled` the terms are
    float16 with block scaling (common/block_scaling_repack.cuh).

    With `in_place` one operand of each problem, 0 for A and 1 for B, may have rows that start
    anywhere, and is never repacked. Row i is in class i mod `CLASSES`. The rows of a class start at
    equal addresses modulo 16 bytes, so one tensor map describes them: the operand has one for each
    class. The kernel gets these in the place of its map, and how many elements before a row the map
    begins (common/row_classes.cuh). Elements are of 4 bytes.
    """

    boxes: Callable[[Config, Problem], tuple[Box, Box, Box | None]]
    major: tuple[str, str] | Callable[[Problem], tuple[str, str]] = ("any", "any")
    terms: int = 1
    scaled: bool = False
    in_place: Callable[[Problem], int] | None = None

    def reads_in_place(self, problem: Problem, operand: int) -> bool:
        """Whether the operand has a map for each class of rows."""
        return self.in_place is not None and self.in_place(problem) == operand

    def as_loaded(self, problem: Problem) -> Problem:
        """The problem with A and B in the layout that the kernel loads."""
        major_a, major_b = self.major(problem) if callable(self.major) else self.major
        trans_a = {"any": problem.trans_a, "k": False, "mn": True}[major_a]
        trans_b = {"any": problem.trans_b, "k": True, "mn": False}[major_b]
        same = (trans_a, trans_b) == (problem.trans_a, problem.trans_b)
        return problem if same else replace(problem, trans_a=trans_a, trans_b=trans_b)


@dataclass(frozen=True)
class Persistent:
    """A kernel of as many blocks as the device holds at a time, `blocks_per_sm` on each
    multiprocessor, which take unit after unit of the whole batch.

    A unit is a tile, or with a parameter SPLIT one of that many parts of k of a tile, whose sums a
    second launch adds. With `splits_last_wave` only the tiles of the last wave are split.
    `partial_bytes` gives the bytes of the sums, if they are not stored as whole matrices.
    """

    blocks_per_sm: Callable[[Config], int] = lambda c: 1
    splits_last_wave: bool = False
    partial_bytes: Callable[[Config, Problem], int] | None = None


def columns_and_rows(config: Config, problem: Problem) -> tuple[int, int]:
    """Blocks along n and along m. Where the rows need more blocks than a grid has along y, each
    block of the kernel takes several tiles of rows.
    """
    rows = min(ceil_div(problem.m, config.MB), MAX_GRID_YZ)
    return ceil_div(problem.n, config.NB), rows


@dataclass(frozen=True)
class Kernel:
    """One kernel: its file, the values each parameter may take in a search, its default, its rules
    and its geometry.

    `shared_elements` are those of a block's shared memory, `padding` further ones, by the alignment
    of the rows in bytes. `tiles` gives the blocks along x and y, `step`
    the elements along k that a block multiplies at a time. With `dynamic_shared` the launch sets
    the block's shared memory, which may then exceed 48 KiB. An `aligned` kernel is compiled for the
    alignment of its operands: `ALIGN` bytes. A kernel with a `workspace` takes a pointer to that
    many bytes as its last argument. They are zero at first, and the kernel leaves its counters
    there zero. `added` are parameters that older records lack, each with the value that stands for
    what the kernel did then.

    Three independent properties say what a GPU must offer and how the kernel is launched:
    `min_capability` is the least compute capability, and the only major one if the kernel is
    `arch_specific` (made of instructions that later GPUs do not have, compiled for sm_90a alone;
    the simulator runs it in tests, but never selects it); `tma` says how operands are loaded
    through tensor maps (None: through pointers); `persistent` says how many blocks there are, each
    of which computes several tiles (None: each block computes one).

    A kernel that fills `both_halves` of a symmetric C stores each element of the computed half
    twice, so that no launch mirrors it. `heuristic` makes a default for each problem and device,
    where one for all is not good enough; `heuristic_for` says for which problems. `options` gives
    the configurations that one for a single product is chosen from, whether they may run or not,
    each with the microseconds that the kernel's model expects of it, all launches included: where
    the device was surveyed they are corrected, and decide (survey.py); without a `heuristic` the
    quickest of them is the default elsewhere; a search of the product begins with the quickest.
    `extra_points` are searched besides the space. For problems that it is not `preferred_for`, a
    kernel ranks below all others; where it cannot be near the fastest, by its declaration, it does
    not take part in the tuner's race between kernels (`competes`). `forceable` names the macros
    that an experiment may set instead of the problem, and their values: `GUARDED` (`Guards`), and
    `FILL`, whose 0 means all of a symmetric C.

    `expected` gives the microseconds that a configuration should take, where nothing was surveyed.
    The kernels that multiply tf32 declare it, and where it is known for all of them
    (`expected.is_modelled`), those preferred for a problem are ranked by that of their defaults.
    For other types expected times are compared in `preferred_for`, which holds exceptions that were
    measured as well.
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
    added: Mapping[str, int] = field(default_factory=dict)
    shared_elements: Callable[[Config, Problem], int] = lambda c, p: 0
    padding: Callable[[Config, Problem, int], int] | None = None
    step: Callable[[Config], int] = lambda c: getattr(c, "KB", 1)
    backend: str = "cuda"
    dtypes: tuple[str, ...] = ("f32", "f64")
    fallbacks: tuple[Mapping[str, int], ...] = ()
    tiles: Callable[[Config, Problem], tuple[int, int]] = columns_and_rows
    workspace: Callable[[Config, Problem], int] | None = None
    dynamic_shared: bool = False
    aligned: bool = False
    min_capability: tuple[int, int] = (0, 0)
    arch_specific: bool = False
    tma: Tma | None = None
    persistent: Persistent | None = None
    both_halves: bool = False
    extra_points: tuple[Mapping[str, int], ...] = ()
    heuristic: Callable[[Problem, Device], Mapping[str, int]] | None = None
    heuristic_for: Callable[[Problem, Device], bool] = lambda p, d: True
    options: Callable[[Problem, Device], Iterable[tuple[float, Config]]] | None = None
    preferred_for: Callable[[Problem, Device], bool] = lambda p, d: True
    competes: Callable[[Problem, Device], bool] = lambda p, d: True
    forceable: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    expected: Callable[[Config, Problem, Device], float] | None = None

    def __hash__(self) -> int:
        return hash((self.backend, self.name))

    @property
    def label(self) -> str:
        """Number and name, as the kernel's file is called: `07_wgmma`."""
        return f"{self.number:02d}_{self.name}"

    def adapts_to(self, problem: Problem, device: Device) -> bool:
        """Whether the default is made for the problem, by a survey of the device or `heuristic`."""
        if survey.quickest(self, problem, device) is not None:
            return True
        return self.heuristic is not None and self.heuristic_for(problem, device)

    @property
    def default_config(self) -> Config:
        """The default, if a kernel has only one."""
        return self.config(self.default)

    def default_for(self, problem: Problem, device: Device) -> Config:
        """The default for a problem on a device, with which every tuned configuration is compared:
        the quickest by the survey of the device, if it covers the problem, else that of
        `heuristic`, or without one the quickest of `options`, else the first of `default` and
        `fallbacks` that obeys all rules. Of `default` and `fallbacks` a persistent kernel takes the
        first whose tiles keep nine of ten multiprocessors busy, else the last.
        """
        surveyed = survey.quickest(self, problem, device)
        if surveyed is not None:
            return surveyed[1]
        if self.adapts_to(problem, device):
            config = self.config(self.heuristic(problem, device))
            if not self.violations(config, problem, device):
                return config
        elif self.heuristic is None and self.options is not None and self.runs_on(device):
            found = self.quickest(self.options(problem, device), problem, device)
            if found is not None:
                return found
        found = None
        for parameters in (self.default, *self.fallbacks):
            config = self.config(parameters)
            if not self.violations(config, problem, device):
                found = config
                if not self.persistent or 10 * self.units(config, problem) >= 9 * device.sms:
                    break
        return found or self.default_config

    def quickest(
        self,
        options: Iterable[tuple[float, Config]],
        problem: Problem,
        device: Device,
        within: float = 1.0,
    ) -> Config | None:
        """The first of the configurations, each with the time expected of it, that may run and take
        at most `within` times as long as the quickest of them; None if none may run.
        """
        options = list(options)
        limit = math.inf
        for time, config in sorted(options, key=lambda option: option[0]):
            if not self.violations(config, problem, device):
                limit = within * time
                break
        near = (config for time, config in options if time <= limit)
        return next((c for c in near if not self.violations(c, problem, device)), None)

    def config(self, parameters: Mapping[str, int]) -> Config:
        """A configuration of this kernel. `ValueError` unless it names exactly this kernel's
        parameters, perhaps without those `added`, as positive integers.

        Values outside `space` are allowed: `space` is what a search tries; whether a configuration
        may run is decided by the rules (`violations`).
        """
        given = {**self.added, **parameters} if self.added else parameters
        if given.keys() != self.space.keys():
            got = ", ".join(map(str, parameters)) or "none"
            raise ValueError(f"{self.name} takes {', '.join(self.space)}; got {got}")
        values = [given[name] for name in self.space]
        try:
            return _checked(self, *values)
        except TypeError:  # a value that is not hashable, hence no integer
            return _checked.__wrapped__(self, *values)

    def shared_bytes(self, config: Config, problem: Problem, alignment: int | None = None) -> int:
        """Bytes of shared memory that one block takes, for rows that start at multiples of
        `alignment` bytes (None: as in dense matrices).
        """
        elements = self.shared_elements(config, problem)
        if self.padding:
            aligned = problem.alignment if alignment is None else alignment
            elements += self.padding(config, problem, aligned)
        return elements * problem.numpy_dtype.itemsize

    def runs_on(self, device: Device) -> bool:
        """Whether the device has the instructions that the kernel uses."""
        if self.backend != device.kernel_backend:
            return False
        if self.backend == "cpu":
            return True
        if self.arch_specific:
            return device.is_gpu and device.capability[0] == self.min_capability[0]
        return device.capability >= self.min_capability

    def grid(
        self, config: Config, problem: Problem, sms: int | None = None
    ) -> tuple[int, int, int]:
        """Blocks along x and y, and matrices of the batch; the launch divides a batch of more than
        `MAX_GRID_YZ`. A persistent kernel has `blocks_per_sm` blocks for each of `sms`
        multiprocessors, if it has work for so many.
        """
        if self.persistent and sms is not None:
            cluster = cluster_blocks(config)
            most = sms * self.persistent.blocks_per_sm(config)
            blocks = min(self.units(config, problem), max(most - most % cluster, cluster))
            return blocks, 1, 1
        return (*self.tiles(config, problem), problem.batch)

    def units(self, config: Config, problem: Problem) -> int:
        """Units of work of a persistent kernel: tiles, times parts of k, times matrices."""
        return self.tiles(config, problem)[0] * parts_of(config) * problem.batch

    def guarded(self, config: Config, problem: Problem) -> bool:
        """True if some tile is partial, so that the kernel must check every index that it reads
        or writes. What a configuration forces is not asked for.
        """
        extents = {"MB": problem.m, "NB": problem.n, "KB": problem.k}
        return any(extents[name] % value for name, value in config.parameters if name in extents)

    def violations(self, config: Config, problem: Problem, device: Device) -> list[str]:
        """The reasons of the rules that `config` breaks; empty if it may run."""
        return [rule.reason for rule in self.rules if not rule.holds(config, problem, device)]

    def configs(self, problem: Problem, device: Device) -> tuple[list[Config], Counter[str]]:
        """All configurations of the space that may run, and how many each rule rejected."""
        return enumeration.configs(self, problem, device)

    def point(self, values: Iterable[int]) -> Config:
        """The configuration with these values, in the order of the space, whatever rules say."""
        config = Config(self.name, tuple(zip(self.space, values, strict=True)), self.backend)
        config.__dict__["kernel"] = self
        return config


@lru_cache(maxsize=2**14, typed=True)
def _checked(kernel: Kernel, *values: int) -> Config:
    """The kernel's configuration with these values: one object for all that ask for it, for each
    choice asks for hundreds. `ValueError` if one is not an integer in bounds.
    """
    for name, value in zip(kernel.space, values, strict=True):
        if type(value) is not int or not 1 <= value <= MAX_PARAMETER:
            raise ValueError(f"{name}={value!r} is not an integer from 1 to {MAX_PARAMETER}")
    return kernel.point(values)


@dataclass(frozen=True)
class Config:
    """A kernel's name and its integer parameters, which read as attributes: `config.MB`.

    `forced` are macros that an experiment sets instead of the problem (`forcing`); matmul never
    takes such a configuration.
    """

    kernel_name: str
    parameters: tuple[tuple[str, int], ...]
    backend: str = "cuda"
    forced: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        self.__dict__.update(self.parameters)  # rules read them some 10^6 times in a search

    def __reduce__(self):
        return Config, (self.kernel_name, self.parameters, self.backend, self.forced)

    @cached_property
    def kernel(self) -> Kernel:
        """The declaration that this configuration belongs to."""
        from pymm.kernels import known_kernel

        return known_kernel(self.kernel_name, self.backend)

    @cached_property
    def slug(self) -> str:
        """The configuration in one word: `register_tile-MB64-NB64-KB16-TA4-TB4`. Parameters that
        were `added` are not in it where they have that value: it is spelled as before.
        """
        try:
            silent = self.kernel.added.items()
        except ValueError:  # of another pymm
            silent = ()
        named = (*(pair for pair in self.parameters if pair not in silent), *self.forced)
        return "-".join([self.kernel_name, *(f"{name}{value}" for name, value in named)])

    def as_dict(self) -> dict[str, int]:
        """The parameters by name."""
        return dict(self.parameters)

    def forcing(self, **macros: int) -> Config:
        """This configuration with macros that its kernel lets an experiment set. `ValueError` for
        others.
        """
        for name, value in macros.items():
            if value not in self.kernel.forceable.get(name, ()):
                known = [f"{n}={v}" for n, values in self.kernel.forceable.items() for v in values]
                raise ValueError(
                    f"{self.kernel.label}: {name}={value} cannot be forced; "
                    f"{', '.join(known) or 'nothing'} can"
                )
        return replace(self, forced=tuple(sorted({**dict(self.forced), **macros}.items())))


def cluster_blocks(config: Config) -> int:
    """Blocks of a cluster."""
    return getattr(config, "CLUSTER", 1) * getattr(config, "CLUSTER_N", 1)


# Split-k of persistent kernels: the sums of each part are stored, and common/combine.cuh adds them


def parts_of(config: Config) -> int:
    """The number of parts of k."""
    return getattr(config, "SPLIT", 1)


def parts_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all parts: m rows each, of n sums rounded up to a multiple of four, unless the
    kernel stores them otherwise.
    """
    if parts_of(config) == 1:
        return 0
    persistent = config.kernel.persistent
    if persistent and persistent.partial_bytes:
        return persistent.partial_bytes(config, problem)
    pitch = round_up(problem.n, 4)
    matrices = parts_of(config) * problem.batch
    return matrices * problem.m * pitch * problem.scalar_dtype.itemsize
