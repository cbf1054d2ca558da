"""Results of tuning: one `Record` per problem, kernel and environment, and whether it is still
current.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from datetime import date
from typing import Any

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import MAX_PARAMETER, Config, find_kernel, known_kernel
from pymm.kernels.source import kernel_digest

#: Longest text in a file, since texts end up in messages and tables.
MAX_TEXT = 200

#: Fields of a record and their types, in the three groups that a file has them in: those of the
#: problem come from the keys that the record stands under.
PROBLEM_FIELDS = {"m": int, "n": int, "k": int, "type": str, "layout": str}
CONFIG_FIELDS = {"kernel": str, "config": dict}
MEASURED_FIELDS = {"us": float, "spread": str, "date": str, "env": str, "source": str}
#: Of what was measured, energy in millijoules where that was.
RARELY_MEASURED_FIELDS = {"mj": float}
RARE_FIELDS = {"batch": int, "op": str}

#: All that every line of a file of schema 1 has: one line for each record.
FIELDS = PROBLEM_FIELDS | CONFIG_FIELDS | MEASURED_FIELDS

#: The extents of a problem as a key of a file: `syrk-1024x1024x64`, `64x64x64-b500`.
_EXTENTS = re.compile(
    r"(?:([a-z_]{1,20})-)?([0-9]{1,10})x([0-9]{1,10})x([0-9]{1,10})(?:-b([0-9]{1,10}))?"
)

_TRANSPOSED = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}


@dataclass(frozen=True)
class Environment:
    """What a record was measured with besides the device: versions of driver, compiler, CUDA and
    pymm, each "" where there is none.
    """

    driver: str
    compiler: str
    pymm: str = ""
    cuda: str = ""

    @classmethod
    def of(cls, device: Device, toolchain: str) -> Environment:
        """The environment of this process, for an open backend's `device` and `toolchain`."""
        version = getattr(sys.modules["pymm"], "__version__", "")
        driver, cuda = (device.versions.get(name, "") for name in ("driver", "cuda"))
        return cls(_line(driver), _line(toolchain), _line(version), _line(cuda))

    @property
    def tools(self) -> tuple[str, str]:
        """Driver and compiler: a record made with others is outdated."""
        return (self.driver, self.compiler)

    @property
    def name(self) -> str:
        """Its short name, the same in every file, so that lines can be merged as they are."""
        text = "\n".join(astuple(self))
        return "e" + hashlib.sha256(text.encode()).hexdigest()[:6]


@dataclass(frozen=True)
class Record:
    """The best configuration of one kernel for one problem. `seconds` is the median time of the
    kernel, `spread` their interquartile range divided by it (0.006 is 0.6 %), `date` the day as
    YYYY-MM-DD, `digest` that of the kernel's source, `joules` the energy of one product (NaN: not
    measured). `device` and `file` say where the record was
    read from.
    """

    problem: Problem
    config: Config
    seconds: float
    spread: float
    date: str
    environment: Environment
    digest: str
    joules: float = field(default=math.nan, compare=False)
    device: str = field(default="", compare=False)
    file: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"a time of {self.seconds!r} s is not positive and finite")
        if not 0 <= self.spread < float("inf"):
            raise ValueError(f"a spread of {self.spread!r} is not a finite fraction")
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", self.date):
            raise ValueError(f"date {self.date!r} is not of the form 2026-11-21")
        date.fromisoformat(self.date)
        if not re.fullmatch(r"[0-9a-f]{4,64}", self.digest):
            raise ValueError(f"source digest {self.digest!r} is not hexadecimal")

    @property
    def key(self) -> tuple:
        """Of two records with equal keys the newer replaces the older."""
        return (self.problem, self.config.kernel_name, self.environment.tools)

    @property
    def order(self) -> tuple:
        """Sorts records by type, layout, operation, extents, kernel and age: their order in a
        file.
        """
        p = self.problem
        kind = (p.dtype, p.layout, p.op != "gemm", p.op)
        extents = (p.m, p.n, p.k, p.batch)
        return (*kind, *extents, self.config.kernel_name, self.date, self.environment.tools)

    @property
    def place(self) -> tuple[str, str, str]:
        """The keys that it stands under in a file: type, layout, operation and extents."""
        p = self.problem
        op = "" if p.op == "gemm" else f"{p.op}-"
        batch = "" if p.batch == 1 else f"-b{p.batch}"
        return p.dtype, p.layout, f"{op}{p.m}x{p.n}x{p.k}{batch}"

    def entry(self) -> dict[str, Any]:
        """What a file has there, times rounded to six digits."""
        energy = {"mj": float(f"{self.joules * 1e3:.6g}")} if self.joules > 0 else {}
        return {
            "kernel": self.config.kernel_name,
            "config": self.config.as_dict(),
            "measured": {
                "us": float(f"{self.seconds * 1e6:.6g}"),
                **energy,
                "spread": f"{self.spread * 100:.2g}%",
                "date": date.fromisoformat(self.date),
                "env": self.environment.name,
                "source": self.digest,
            },
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], backend: str, env: Environment) -> Record:
        """The record of all its `FIELDS`, perhaps some of `RARE_FIELDS`, each of the type there.
        `ValueError` or `NotImplementedError` for values that are not possible.

        A record of a kernel that this pymm does not have is read as well, so that writing the file
        with an older pymm loses nothing. `unusable_because` keeps it from being used.
        """
        if fields["layout"] not in _TRANSPOSED:
            raise ValueError(f"layout {fields['layout']!r} is none of {', '.join(_TRANSPOSED)}")
        extents = {axis: fields[axis] for axis in "mnk"}
        rare = {name: fields[name] for name in RARE_FIELDS if name in fields}
        problem = Problem(**extents, dtype=fields["type"], **_trans(fields["layout"]), **rare)
        config = parse_config(fields["kernel"], fields["config"], backend)
        seconds, spread = fields["us"] / 1e6, parse_fraction(fields["spread"])
        joules = fields["mj"] / 1e3 if "mj" in fields else math.nan
        return cls(problem, config, seconds, spread, fields["date"], env, fields["source"], joules)


def fields_of_place(dtype: str, layout: str, extents: str) -> dict[str, Any]:
    """The fields of a problem from the keys of a file; the inverse of `Record.place`. `ValueError`
    for extents that are written in another way.
    """
    found = _EXTENTS.fullmatch(extents)
    if found is None:
        raise ValueError(f"{extents!r} is no product such as 1024x1024x64 or syrk-64x64x64-b8")
    op, m, n, k, batch = found.groups()
    fields = {"m": int(m), "n": int(n), "k": int(k), "type": dtype, "layout": layout}
    fields |= {"op": op} if op else {}
    return fields | ({"batch": int(batch)} if batch else {})


def _line(text: str) -> str:
    """Text from a driver or a compiler as one short line."""
    return " ".join(str(text).split())[:MAX_TEXT]


def _trans(layout: str) -> dict[str, bool]:
    return dict(zip(("trans_a", "trans_b"), _TRANSPOSED[layout], strict=True))


def parse_fraction(percent: str) -> float:
    """The fraction that a percentage in a file spells. `ValueError` if it spells none."""
    if not re.fullmatch(r"[0-9.e+-]{1,20}%", percent):
        raise ValueError(f"spread {percent!r} is no percentage such as 0.6%")
    return float(percent[:-1]) / 100


def parse_config(name: str, parameters: Mapping[str, int], backend: str) -> Config:
    """A configuration in a file, of whatever kernel. `ValueError` for names and values that no
    kernel has.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise ValueError(f"{name!r} is no name of a kernel")
    for key, value in parameters.items():
        if not re.fullmatch(r"[A-Z][A-Z0-9_]{0,31}", key):
            raise ValueError(f"{key!r} is no name of a parameter")
        if not 1 <= value <= MAX_PARAMETER:
            raise ValueError(f"{key}={value} is not between 1 and {MAX_PARAMETER}")
    try:
        return known_kernel(name, backend).config(parameters)
    except ValueError:  # of another pymm
        return Config(name, tuple(parameters.items()), backend)


def device_facts(device: Device) -> dict[str, str | int]:
    """What identifies a device in the head of a file. Records are not used on a device that differs
    in any of it: with another number of multiprocessors, even under the same name, other tiles are
    best.
    """
    facts: dict[str, str | int] = {"name": _line(device.name), "kind": device.kind}
    if device.kernel_backend == "cpu":
        return facts | {"cores": device.sms, "vector_bytes": device.vector_bytes}
    major, minor = device.capability
    return facts | {"capability": f"{major}.{minor}", "sms": device.sms}


def device_words(facts: Mapping[str, str | int]) -> str:
    """One line of `device_facts` for messages and comparisons."""
    rest = sorted(facts.keys() - {"name", "kind"})
    return ", ".join([str(facts["name"]), *(f"{key} {facts[key]}" for key in rest)])


def foreign_because(record: Record) -> str:
    """Why a record's configuration does not exist in this pymm, but in an older or a newer one. ""
    if it does exist. Of any other record `config.kernel` must not be asked for.
    """
    name = record.config.kernel_name
    try:
        find_kernel(name, record.config.backend).config(record.config.as_dict())
    except ValueError as error:
        return f"kernel {name} of this pymm does not take it: {error}"
    return ""


def source_changed(record: Record) -> str:
    """How the kernel of a record has changed since, on any device. "" if it has not."""
    if foreign := foreign_because(record):
        return foreign
    name, kernel = record.config.kernel_name, record.config.kernel
    try:
        digest = kernel_digest(kernel.backend, kernel.file)
    except (ValueError, OSError, ImportError) as error:
        return f"kernel {name} of this pymm does not take it: {error}"
    if digest != record.digest:
        return f"source of kernel {name} changed ({record.digest}, now {digest})"
    return ""


def unusable_because(record: Record, device: Device) -> str:
    """Why a record must not be used at all: its kernel or its device has changed, or its kernel
    does not compute in its type any more. "" if it may be used.
    """
    if changed := source_changed(record):
        return changed
    kernel, dtype = record.config.kernel, record.problem.dtype
    if dtype not in kernel.dtypes:
        return f"{kernel.name} does not compute in {dtype} any more"
    words = device_words(device_facts(device))
    if record.device and record.device != words:
        return f"device changed ({record.device}; now {words})"
    return ""


def outdated_because(record: Record, environment: Environment) -> str:
    """How compiler and driver differ from those of the record. "" if they do not."""
    changes = []
    for tool in ("compiler", "driver"):
        then, now = getattr(record.environment, tool), getattr(environment, tool)
        if then != now:
            changes.append(f"tuned with {tool} {then or 'none'}, now {now or 'none'}")
    return "; ".join(changes)


def stale_because(record: Record, device: Device, environment: Environment) -> str:
    """Why a record is stale, in words; "" if it is current."""
    return unusable_because(record, device) or outdated_because(record, environment)
