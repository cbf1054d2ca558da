"""Kernels that users declare: a CUDA source, the space of its parameters, rules, geometry,
arguments and a reference in NumPy. They are tuned, verified, stored and launched as pymm's own are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from pymm.core.device import Device
from pymm.core.forking import cached_property
from pymm.core.problem import MAX_EXTENT
from pymm.kernels.kernel import MAX_GRID_YZ, MAX_PARAMETER, Config, Rule
from pymm.kernels.source import Source, code_digest, file_text

#: Most points of a space: each is looked at before a search.
MOST_POINTS = 1_000_000

#: Most threads of a block along z, and blocks of a grid along x (CUDA C++ Programming Guide,
#: "Technical Specifications per Compute Capability").
MOST_THREADS_Z, MOST_GRID_X = 64, 2**31 - 1

#: Longest spelling of the sizes of a problem, which are a key in a file and a part of its name.
MOST_SPELLED = 160

#: Arguments of a launch that are no arguments of a kernel.
RESERVED = ("stream", "device")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SIZE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_PARAMETER = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ENTRY = re.compile(r'extern\s+"C"')

#: The values of an array: from a random generator.
Values = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class Array:
    """An array argument of a kernel, C-contiguous on the device. `values` makes its elements before
    the launch; without it they are standard normal, which only types of real numbers can be.
    """

    shape: Any
    dtype: Any
    values: Values | None = None

    reads = True
    writes = False

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int | np.integer) else tuple(self.shape)
        object.__setattr__(self, "shape", tuple(map(int, shape)))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if not self.shape or min(self.shape) < 1:
            raise ValueError(f"an array of shape {self.shape} has no elements")
        if self.dtype.hasobject or self.dtype.fields:
            raise ValueError(f"elements of type {self.dtype} cannot be on a device")

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def make(self, name: str, generator: np.random.Generator) -> np.ndarray:
        """The elements before the launch. `ValueError` for values of another shape."""
        if self.values is not None:
            made = np.ascontiguousarray(self.values(generator), self.dtype)
            if made.shape != self.shape:
                raise ValueError(f"{name}: values of shape {made.shape} instead of {self.shape}")
            return made
        if self.dtype.kind not in "fV":  # V: bfloat16
            raise ValueError(f"{name} has elements of type {self.dtype}: say by values= which")
        return generator.standard_normal(self.shape, np.float32).astype(self.dtype)


class In(Array):
    """An array that the kernel reads and must leave as it is."""


class Out(Array):
    """An array that the kernel writes, every element of it, and does not read."""

    reads = False
    writes = True


class InOut(Array):
    """An array that the kernel reads and writes. It is restored before each launch."""

    writes = True


@dataclass(frozen=True)
class Geometry:
    """Blocks along x, y and z, threads of a block, and bytes of its dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


@dataclass(frozen=True)
class CustomConfig(Config):
    """A configuration of a user's kernel for one problem, with its geometry there."""

    geometry: Geometry = field(default=Geometry((1, 1, 1), (1, 1, 1)), compare=False)

    def __reduce__(self):
        given = (self.kernel_name, self.parameters, self.backend, self.forced, self.geometry)
        return CustomConfig, given


@dataclass(frozen=True)
class CustomProblem:
    """The sizes that a user's kernel is tuned and launched for, with what the measuring process
    must know of the kernel: `folder` has the arrays that it reads (`x.npy`) and those that it must
    have written (`y.expected.npy`). Problems are equal if kernel and sizes are.
    """

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    source: str = field(default="", compare=False, repr=False)
    entry: str = field(default="", compare=False, repr=False)
    arguments: tuple[tuple[str, Any], ...] = field(default=(), compare=False, repr=False)
    rtol: float = field(default=0.0, compare=False, repr=False)
    atol: float = field(default=0.0, compare=False, repr=False)
    flops: int = field(default=0, compare=False, repr=False)
    folder: str = field(default="", compare=False, repr=False)

    fill = "all"  # of a product: nothing is computed by halves
    dtype = ""  # of a product: no peak is known for what others compute
    bytes_read = 0  # unknown: a kernel need not read all of its arrays

    @property
    def place(self) -> str:
        """The sizes in one word: `rows4096-columns1000`."""
        return "-".join(f"{name}{value}" for name, value in self.sizes)

    @property
    def slug(self) -> str:
        """The one spelling in file names and tables: `softmax-rows4096-columns1000`."""
        return f"{self.kernel}-{self.place}"

    @property
    def of(self) -> SimpleNamespace:
        """The sizes as attributes, as the functions of a declaration get them."""
        return SimpleNamespace(**dict(self.sizes))

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(one.nbytes for _, one in self.arguments if isinstance(one, Array))

    @property
    def digest(self) -> str:
        """Short digest of the kernel's code."""
        return code_digest(self.source)


@dataclass(frozen=True, eq=False)
class CustomKernel:
    """A user's kernel: `CustomKernel("softmax", Path("softmax.cu"), space=..., ...)`.

    `source` is a `Path`, whose `#include "..."` are inserted, or the text itself. Its function
    `entry` (default: the name) is `extern "C" __global__`. `space` has the values of each
    parameter, which are macros of the source: names in capitals, integers from 1 to 65536.
    `default`, or `default(p)`, is the configuration that every other one is compared with.

    `p` has the sizes of a problem as attributes, `c` the parameters of a configuration, `d` the
    device (`pymm.core.device.Device`): `default(p)`, `arguments(p)`, `operations(p)`, `grid(c, p)`,
    `block(c, p)`, `shared(c, p)`, `Rule(text, lambda c, p, d: bool)`, and `reference(**arrays and
    numbers)`. `grid` and `block` give blocks and threads, one number or up to
    three, `shared` the bytes of dynamic shared memory. `arguments(p)` has an `In`, `Out` or `InOut`
    for each pointer, and a NumPy scalar (`numpy.int32(p.rows)`) for each number, in the order of
    the function's parameters. `reference` gets the arrays that the kernel reads and the numbers, by
    name, and returns the array that it writes, or of several a dictionary. An element is right if
    |got - expected| <= atol + rtol |expected|; without `rtol` and `atol` it must be equal.
    `operations(p)` counts floating-point operations, for the rates that are shown.

    Raises `ValueError` for a declaration that cannot be right, `OSError` for a file that cannot be
    read.
    """

    name: str
    source: str | Path
    space: Mapping[str, Sequence[int]]
    default: Mapping[str, int] | Callable[[Any], Mapping[str, int]]
    grid: Callable[[Any, Any], Any]
    block: Callable[[Any, Any], Any]
    arguments: Callable[[Any], Mapping[str, Any]]
    reference: Callable[..., Any]
    rules: Sequence[Rule] = ()
    shared: Callable[[Any, Any], int] = lambda c, p: 0
    rtol: float = 0.0
    atol: float = 0.0
    entry: str = ""
    operations: Callable[[Any], int] = lambda p: 0

    backend = "cuda"
    added = MappingProxyType({})

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"kernel {self.name!r}: a name is made of a-z, 0-9 and _")
        object.__setattr__(self, "entry", self.entry or self.name)
        if not _IDENTIFIER.fullmatch(self.entry):
            raise ValueError(f"{self.name}: entry {self.entry!r} is no name of a function")
        for name, given in (("rtol", self.rtol), ("atol", self.atol)):
            if not 0 <= given < math.inf:
                raise ValueError(f"{self.name}: {name}={given!r} is not finite and at least 0")
        self._check_space()
        if not callable(self.default):
            self.config(self.default)
        text = self.text
        if not _ENTRY.search(text) or not re.search(rf"\b{self.entry}\s*\(", text):
            raise ValueError(
                f'{self.name}: the source has no function extern "C" __global__ void '
                f"{self.entry}(...); name another one by entry="
            )

    def _check_space(self) -> None:
        if not self.space:
            raise ValueError(f"{self.name}: a space has a parameter at least")
        space = {name: tuple(values) for name, values in self.space.items()}
        object.__setattr__(self, "space", space)
        for name, values in space.items():
            if not _PARAMETER.fullmatch(name):
                raise ValueError(f"{self.name}: parameter {name!r} is not made of A-Z, 0-9 and _")
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{self.name}: {name} has no value, or one twice")
            for value in values:
                if type(value) is not int or not 1 <= value <= MAX_PARAMETER:
                    raise ValueError(
                        f"{self.name}: {name}={value!r} is no integer from 1 to {MAX_PARAMETER}"
                    )
        if (points := math.prod(map(len, space.values()))) > MOST_POINTS:
            raise ValueError(f"{self.name}: {points} points in the space; at most {MOST_POINTS}")

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return self.name

    @cached_property
    def text(self) -> str:
        """The source, with included files inserted."""
        if isinstance(self.source, Path):
            return file_text(self.source)
        if "\n" not in self.source and "(" not in self.source:
            raise ValueError(
                f"{self.name}: {self.source!r} is no source; name a file by pathlib.Path"
            )
        if re.search(r'^[ \t]*#[ \t]*include[ \t]*"', self.source, re.MULTILINE):
            raise ValueError(
                f'{self.name}: a source as text cannot have #include "..."; give a file by '
                "pathlib.Path, whose headers are inserted"
            )
        return self.source if self.source.endswith("\n") else self.source + "\n"

    # Problems

    def problem(self, sizes: Mapping[str, int]) -> CustomProblem:
        """The problem of these sizes. `ValueError` for sizes or arguments that are not possible."""
        if not sizes:
            raise ValueError(f"{self.name}: a problem has a size at least")
        for name, value in sizes.items():
            if not isinstance(name, str) or not _SIZE.fullmatch(name):
                raise ValueError(f"{self.name}: size {name!r} is not made of a-z, 0-9 and _")
            if type(value) is not int or not 1 <= value <= MAX_EXTENT:
                raise ValueError(
                    f"{self.name}: {name}={value!r} is no integer from 1 to {MAX_EXTENT}"
                )
        if len(", ".join(f"{name}={value}" for name, value in sizes.items())) > MOST_SPELLED:
            raise ValueError(f"{self.name}: sizes of more than {MOST_SPELLED} characters in all")
        p = SimpleNamespace(**sizes)
        declared = self.arguments(p)
        for name, given in declared.items():
            self._check_argument(name, given)
        # The measuring process gets the arrays in files, and needs no code of the user's.
        arguments = tuple(
            (name, replace(given, values=None) if isinstance(given, Array) else given)
            for name, given in declared.items()
        )
        if not any(isinstance(given, Array) and given.writes for _, given in arguments):
            raise ValueError(f"{self.name}: no argument is an Out or InOut")
        given = tuple(sorted(sizes.items()))
        bounds = {"rtol": float(self.rtol), "atol": float(self.atol)}
        flops = int(self.operations(p))
        return CustomProblem(
            self.name, given, self.text, self.entry, arguments, **bounds, flops=flops
        )

    def _check_argument(self, name: str, given: Any) -> None:
        if not _IDENTIFIER.fullmatch(str(name)) or name in RESERVED:
            raise ValueError(f"{self.name}: {name!r} cannot be the name of an argument")
        if isinstance(given, np.generic) and given.dtype.kind in "biufc":
            return
        if not isinstance(given, Array) or type(given) is Array:
            raise ValueError(
                f"{self.name}: argument {name} is a {type(given).__name__}; write In, Out or InOut "
                "for an array, and a NumPy scalar such as numpy.int32(5) for a number"
            )

    def values(
        self, problem: CustomProblem, seed: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The arrays that the kernel reads, and those that it must have written then, by name.
        `ValueError` for a reference that does not fit the arguments.
        """
        generator = np.random.default_rng(seed)
        arguments = self.arguments(problem.of)
        arrays = {n: a for n, a in arguments.items() if isinstance(a, Array)}
        numbers = {n: a for n, a in arguments.items() if n not in arrays}
        before = {n: a.make(n, generator) for n, a in arrays.items() if a.reads}
        returned = self.reference(**{n: a.copy() for n, a in before.items()}, **numbers)
        written = [name for name, array in arrays.items() if array.writes]
        if not isinstance(returned, Mapping):
            returned = {written[0]: returned}
        if set(returned) != set(written):
            raise ValueError(
                f"{self.name}: the reference returns {', '.join(map(str, returned))}; the kernel "
                f"writes {', '.join(written)}"
            )
        after = {name: np.asarray(returned[name]) for name in written}
        for name, array in after.items():
            if array.shape != arrays[name].shape:
                raise ValueError(
                    f"{self.name}: the reference's {name} has shape {array.shape}, the argument "
                    f"{arrays[name].shape}"
                )
        return before, after

    # Configurations

    def config(self, parameters: Mapping[str, int]) -> Config:
        """A configuration of the space, without geometry. `ValueError` for any other."""
        if set(parameters) != set(self.space):
            got = ", ".join(map(str, parameters)) or "none"
            raise ValueError(f"{self.name} takes {', '.join(self.space)}; got {got}")
        for name, value in parameters.items():
            if type(value) is not int or value not in self.space[name]:
                raise ValueError(f"{self.name}: {name}={value!r} is not in the space")
        return Config(self.name, tuple((name, parameters[name]) for name in self.space))

    def placed(self, config: Config, problem: CustomProblem) -> CustomConfig:
        """The configuration with its geometry for a problem. `ValueError` for a geometry that no
        launch has.
        """
        p = problem.of
        grid = self._extents("grid", self.grid(config, p))
        block = self._extents("block", self.block(config, p))
        shared = self.shared(config, p)
        if not isinstance(shared, int | np.integer) or shared < 0:
            raise ValueError(f"{self.name}: shared is {shared!r}, no number of bytes")
        geometry = Geometry(grid, block, int(shared))
        placed = CustomConfig(config.kernel_name, config.parameters, geometry=geometry)
        placed.__dict__["kernel"] = self
        return placed

    def _extents(self, what: str, given: Any) -> tuple[int, int, int]:
        extents = tuple(given) if isinstance(given, tuple | list) else (given,)
        whole = all(isinstance(extent, int | np.integer) for extent in extents)
        if not whole or not 1 <= len(extents) <= 3 or min(extents) < 1:
            raise ValueError(f"{self.name}: {what} is {given!r}, not one to three integers above 0")
        x, y, z = (*map(int, extents), 1, 1)[:3]
        return x, y, z

    def violations(self, config: Config, problem: CustomProblem, device: Device) -> list[str]:
        """The reasons of the rules that a configuration breaks; empty if it may run."""
        broken = [rule.reason for rule in self.rules if not rule.holds(config, problem.of, device)]
        if broken:  # the geometry may make no sense then
            return broken
        geometry = self.placed(config, problem).geometry
        return [rule.reason for rule in FITS if not rule.holds(geometry, problem, device)]

    def configs(
        self, problem: CustomProblem, device: Device
    ) -> tuple[list[CustomConfig], Counter[str]]:
        """All configurations that may run, and how many each rule rejected."""
        valid, rejected = [], Counter()
        for config in self._points():
            broken = self.violations(config, problem, device)
            if broken:
                rejected[broken[0]] += 1
            else:
                valid.append(self.placed(config, problem))
        return valid, rejected

    def _points(self) -> Iterator[Config]:
        for values in itertools.product(*self.space.values()):
            yield Config(self.name, tuple(zip(self.space, values, strict=True)))

    def default_for(self, problem: CustomProblem, device: Device) -> CustomConfig:
        """The default for a problem. `ValueError` if it breaks a rule there."""
        given = self.default(problem.of) if callable(self.default) else self.default
        config = self.config(given)
        if broken := self.violations(config, problem, device):
            raise ValueError(
                f"the default {config.slug} cannot be launched for {problem.place}: "
                f"{'; '.join(broken)}. Give another one, or a function: default=lambda p: ..."
            )
        return self.placed(config, problem)


def render_custom(config: Config, problem: CustomProblem) -> Source:
    """The source of a configuration: its parameters as macros, then the user's text."""
    head = "".join(f"#define {name} {value}\n" for name, value in config.parameters)
    return Source(head + problem.source, problem.entry, config)


def packed_arguments(arguments: Sequence[np.generic]) -> bytes:
    """The arguments of a launch, each at a multiple of its alignment, nothing behind the last."""
    layout = np.dtype([(str(i), one.dtype) for i, one in enumerate(arguments)], align=True)
    packed = np.zeros((), layout)
    for i, one in enumerate(arguments):
        packed[str(i)] = one
    dtype, offset = layout.fields[str(len(arguments) - 1)][:2]
    return packed.tobytes()[: offset + dtype.itemsize]


#: Limits of a launch: (geometry, problem, device).
FITS = (
    Rule(
        "a block has at most the device's threads, 64 of them along z",
        lambda g, p, d: math.prod(g.block) <= d.max_threads and g.block[2] <= MOST_THREADS_Z,
    ),
    Rule(
        f"a grid has at most {MAX_GRID_YZ} blocks along y and z",
        lambda g, p, d: g.grid[0] <= MOST_GRID_X and max(g.grid[1:]) <= MAX_GRID_YZ,
    ),
    Rule(
        "dynamic shared memory fits in a block",
        lambda g, p, d: g.shared <= d.shared_per_block,
    ),
)
