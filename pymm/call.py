"""The arguments of one call, checked: everything that can be wrong with them is said here, before
anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any

import ml_dtypes
import numpy as np

from pymm.arrays import Operand, adopt
from pymm.problem import DTYPES, MAX_EXTENT, PRECISIONS, dtype_name
from pymm.product import result_shape

_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@dataclass(frozen=True)
class Call:
    """One checked product: operands, the type it is computed in, the shape of its result."""

    a: Operand
    b: Operand
    c: Operand | None
    out: Operand | None
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    dtype: np.dtype
    precision: str
    shape: tuple[int, ...]

    @property
    def on_host(self) -> bool:
        """True if the operands are NumPy arrays."""
        return self.a.on_host

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those that take part: c only if it is read."""
        given = (self.a, self.b, self.c if self.reads_c else None, self.out)
        return tuple(operand for operand in given if operand is not None)

    @property
    def reads_c(self) -> bool:
        """False for beta = 0, whatever c holds."""
        return self.beta != 0

    @property
    def c_in_place(self) -> bool:
        """True if the result stands where c stood, so that nothing is to be copied."""
        return self.reads_c and self.out is not None and self.out.is_at(self.c)

    @cached_property
    def copies(self) -> dict[str, str]:
        """Which operands cannot be used as they lie, by name, and why."""
        reasons = self.misfits
        if self.out is not None and "out" not in reasons and (why := self._shared(reasons)):
            reasons = reasons | {"out": why}
        if self.reads_c and not (self.c_in_place and "out" not in reasons):
            reasons = reasons | {"c": "the result is computed where c was read"}
        return reasons

    @cached_property
    def misfits(self) -> dict[str, str]:
        """Which of a, b and out no kernel can work on as they lie, and why."""
        used = [x for x in (self.a, self.b, self.out) if x is not None]
        return {x.name: why for x in used if (why := self._misfit(x))}

    def _misfit(self, operand: Operand) -> str:
        form = operand.form
        if form.dtype != self.dtype:
            return f"{form.dtype} converted to {self.dtype}"
        if not operand.aligned:
            return f"elements do not stand at multiples of {form.dtype.itemsize} bytes"
        flat = form.with_axis(-2) if len(form.shape) == 1 else form
        if len(form.shape) and flat.stored() is None:
            return "neither of its last two axes has unit stride and increasing lines"
        return ""

    def _shared(self, copied: dict[str, str]) -> str:
        if not self.out.form.distinct():
            return "elements of out share memory"
        read = [x for x in (self.a, self.b) if x.name not in copied]
        read += [self.c] if self.reads_c and not self.c_in_place else []
        for operand in read:
            if self.out.overlaps(operand):
                return f"out overlaps {operand.name}"
        return ""


def check(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    alpha: Any = 1,
    beta: Any = None,
    trans_a: Any = False,
    trans_b: Any = False,
    dtype: Any = None,
    casting: str = "same_kind",
    precision: str = "ieee",
    adopt: Callable[[Any, str], Operand] = adopt,
) -> Call:
    """The call that the arguments of `pymm.matmul` ask for. Raises what `matmul` documents.

    `adopt` makes operands of arrays.
    """
    if casting not in _CASTINGS:
        raise ValueError(f"casting={casting!r} is none of {', '.join(_CASTINGS)}")
    if precision not in PRECISIONS:
        raise NotImplementedError(f"precision={precision!r}: pymm has {', '.join(PRECISIONS)}")
    trans_a, trans_b = transposes(trans_a, "trans_a"), transposes(trans_b, "trans_b")
    a, b = adopt(a, "a"), adopt(b, "b")
    c = None if c is None else adopt(c, "c")
    out = None if out is None else _target(out)
    _one_place([x for x in (a, b, c, out) if x is not None])
    shape = result_shape(a.form.shape, b.form.shape, trans_a, trans_b)
    for operand in (c, out):
        if operand is not None and operand.form.shape != shape:
            raise ValueError(
                f"{operand.name} has shape {operand.form.shape}, but the product of shapes "
                f"{a.form.shape} and {b.form.shape} has {shape}"
            )
    named = tuple((x.name, x.form.dtype) for x in (a, b, c) if x is not None)
    common = common_dtype(named, dtype, casting)
    if out is not None and not np.can_cast(common, out.form.dtype, casting):
        raise TypeError(f"cannot cast the product from {common} to {out.form.dtype}, the dtype of "
                        f"out, with casting={casting!r}")  # fmt: skip
    alpha, beta = _scalar(alpha, "alpha", common), _beta(beta, c, common)
    return Call(a, b, c, out, alpha, beta, trans_a, trans_b, common, precision, shape)


def _target(out: Any) -> Operand:
    operand = adopt(out, "out")
    if operand.owner is not out:
        raise TypeError(f"out is a {type(out).__name__}, not an array that can be written")
    if operand.readonly:
        raise ValueError("out is read-only")
    return operand


def _one_place(operands: list[Operand]) -> None:
    """All on the host or all on the device."""
    first = operands[0]
    for other in operands:
        if other.on_host != first.on_host:
            host, device = (other, first) if other.on_host else (first, other)
            raise TypeError(
                f"{host.name} is a NumPy array on the host and {device.name} a "
                f"{type(device.owner).__name__} on a device: copy one of them to the other's side "
                f"(pycuda.gpuarray.to_gpu, torch.as_tensor(..., device='cuda'), cupy.asarray; or "
                f".get(), .cpu().numpy())"
            )
        if max(other.form.shape, default=0) > MAX_EXTENT:
            raise ValueError(f"{other.name} has shape {other.form.shape}; pymm's extents end at "
                             f"{MAX_EXTENT}")  # fmt: skip


def _scalar(value: Any, name: str, dtype: np.dtype) -> float:
    number = real(value, name)
    if math.isfinite(number) and abs(number) > float(ml_dtypes.finfo(_scalar_dtype(dtype)).max):
        raise ValueError(f"{name}={value!r} is beyond the range of {_scalar_dtype(dtype)}")
    return number


def _scalar_dtype(dtype: np.dtype) -> np.dtype:
    return DTYPES["f32"] if dtype.itemsize < 4 else dtype


def _beta(beta: Any, c: Operand | None, dtype: np.dtype) -> float:
    if c is not None and beta is None:
        raise ValueError("c needs beta: beta=1 adds c to the product, beta=0 does not read it")
    value = _scalar(0.0 if beta is None else beta, "beta", dtype)
    if c is None and value != 0:
        raise ValueError(f"beta={beta!r} needs c, the array that it scales (c may be out itself)")
    return value


# What the types and the numbers of a call may be


@lru_cache(maxsize=1024)
def common_dtype(named: tuple[tuple[str, np.dtype], ...], dtype: Any, casting: str) -> np.dtype:
    """The type that a product is computed in: `dtype`, else NumPy's `result_type`.

    `TypeError` if an operand is no array of numbers or may not be cast to it under `casting`;
    `NotImplementedError` if pymm has no such type.
    """
    for name, given in named:
        if given.kind not in "biufc" and given.name != "bfloat16":
            raise TypeError(f"{name} has dtype {given}, which is no type of numbers")
    if dtype is not None:
        wanted = DTYPES[dtype_name(dtype)] if dtype in DTYPES else np.dtype(dtype)
    else:
        wanted = np.result_type(*(given for _, given in named))
    wanted = wanted.newbyteorder("=")
    if wanted not in DTYPES.values():
        known = ", ".join(known.name for known in DTYPES.values())
        raise NotImplementedError(
            f"a product in {wanted}: pymm computes in {known}; dtype= converts the operands"
        )
    for name, given in named:
        if not np.can_cast(given, wanted, casting):
            raise TypeError(f"cannot cast {name} from {given} to {wanted} with casting={casting!r}")
    return wanted


_TRANSPOSES = {False: False, True: True, "N": False, "T": True, "C": True}


def transposes(flag: Any, name: str) -> bool:
    """What a flag says: bool, or BLAS's letters "N", "T", "C" ("C" is "T" for real matrices)."""
    try:
        return _TRANSPOSES[flag.upper() if isinstance(flag, str) else flag]
    except (KeyError, TypeError):
        given = repr(flag) if isinstance(flag, str | int) else f"a {type(flag).__name__}"
        raise ValueError(f"{name} is {given}, not a bool and not one of 'N', 'T', 'C'") from None


def real(value: Any, name: str) -> float:
    """A scalar as a float. `TypeError` unless it is a real number."""
    if type(value) is float:
        return value
    if not isinstance(value, Real | np.bool_):
        raise TypeError(f"{name} is a {type(value).__name__}, not a real number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond the range of float64") from None
