"""The arguments of one call, checked: everything that can be wrong with them is said here, before
anything is written.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from numbers import Real
from typing import Any, Self

import ml_dtypes
import numpy as np

from pymm.core.dtypes import DTYPES, ELEMENTS, FLOAT32, product_type
from pymm.core.epilogue import ACTIVATIONS, Epilogue
from pymm.core.forking import cached_property
from pymm.core.problem import MAX_EXTENT
from pymm.runtime.arrays import Operand, adopt
from pymm.runtime.layout import result_shape

#: What makes an operand of an array and the name of its argument.
Adopt = Callable[[Any, str], Operand]

#: What a configuration may be chosen for.
PREFERENCES = ("time", "energy")

_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@dataclass(frozen=True)
class Call:
    """One checked product: operands, their type and the result's, the type of the product by its
    short name ("tf32"), the shape of its result, the operation (`pymm.core.problem.FILLS`). If that
    writes one half of C, then `c` is `out`, whose other half stays. `alpha` and `beta` hold the
    signs of operands that are the negatives of what their memory holds. `bias` and `activation` are
    those of its epilogue.
    """

    a: Operand
    b: Operand
    c: Operand | None
    out: Operand | None
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    dtype: np.dtype
    out_dtype: np.dtype
    kind: str
    shape: tuple[int, ...]
    op: str = "gemm"
    bias: Operand | None = None
    activation: str = ""

    @property
    def on_host(self) -> bool:
        """True if the operands are NumPy arrays."""
        return self.a.on_host

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those that take part: c only if it is read."""
        given = (self.a, self.b, self.c if self.reads_c else None, self.bias, self.out)
        return tuple(operand for operand in given if operand is not None)

    @property
    def epilogue(self) -> Epilogue:
        """What is done to the elements of the result."""
        bias = None if self.bias is None else self.dtype_of(self.bias)
        return Epilogue(self.activation, bias)

    @property
    def reads_c(self) -> bool:
        """False for beta = 0, whatever c holds, unless some of it stays."""
        return self.beta != 0 or self.op in ("syrk_lower", "syrk_upper")

    @property
    def c_in_place(self) -> bool:
        """True if the result has c's address, shape, strides and dtype: nothing is to be copied."""
        return self.reads_c and self.out is not None and self.out.is_at(self.c)

    @cached_property
    def copies(self) -> dict[str, str]:
        """Which operands must be copied, by name, and why."""
        reasons = self.needs_copy
        if self.out is not None and "out" not in reasons and (why := self._shared(reasons)):
            reasons = reasons | {"out": why}
        if self.reads_c and not (self.c_in_place and "out" not in reasons):
            reasons = reasons | {"c": "the result is computed where c was read"}
        if self.bias is not None and (why := self._why_bias_copied()):
            reasons = reasons | {"bias": why}
        return reasons

    @cached_property
    def needs_copy(self) -> dict[str, str]:
        """Which of a, b and out have a dtype, alignment or strides that no kernel accepts."""
        used = [x for x in (self.a, self.b, self.out) if x is not None]
        return {x.name: why for x in used if (why := self._why_copied(x))}

    def dtype_of(self, operand: Operand) -> np.dtype:
        """The dtype that the kernel takes an operand in."""
        if operand.name == "bias":
            return bias_dtype(operand, self.out_dtype)
        return self.out_dtype if operand.name in ("out", "c") else self.dtype

    def _why_bias_copied(self) -> str:
        spec = self.bias.spec
        if spec.dtype != self.dtype_of(self.bias):
            return f"{spec.dtype} converted to {self.dtype_of(self.bias)}"
        if not self.bias.aligned:
            return f"elements do not stand at multiples of {spec.dtype.itemsize} bytes"
        if spec.size > 1 and spec.strides[0] != spec.dtype.itemsize:
            return "its elements are not contiguous"
        shared = self.out is not None and self.out.overlaps(self.bias)
        return "out overlaps it" if shared else ""

    def _why_copied(self, operand: Operand) -> str:
        spec, wanted = operand.spec, self.dtype_of(operand)
        if spec.dtype != wanted:
            return f"{spec.dtype} converted to {wanted}"
        if not operand.aligned:
            return f"elements do not stand at multiples of {spec.dtype.itemsize} bytes"
        flat = spec.with_axis(-2) if len(spec.shape) == 1 else spec
        if len(spec.shape) and flat.stored() is None:
            return "neither of its last two axes has unit stride and increasing lines"
        return ""

    def _shared(self, copied: dict[str, str]) -> str:
        if not self.out.spec.distinct():
            return "elements of out share memory"
        read = [x for x in (self.a, self.b) if x.name not in copied]
        read += [self.c] if self.reads_c and not self.c_in_place else []
        for operand in read:
            if self.out.overlaps(operand):
                return f"out overlaps {operand.name}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Options(ABC):
    """The keyword arguments that `pymm.matmul` and `pymm.syrk` share, checked as far as they can be
    without the operands: what is computed, then how and where.
    """

    alpha: Any = 1
    beta: Any = None
    dtype: Any = None
    casting: str = "same_kind"
    precision: str = "ieee"
    out_dtype: Any = None
    stream: Any = None
    kernel: str | int | None = None
    config: Any = None
    device: Any = None
    transfer: str | None = None
    prefer: str = "time"

    @classmethod
    def parse(cls, given: dict[str, Any]) -> Self:
        """Of keyword arguments. `TypeError` for one that there is not."""
        known = [field.name for field in fields(cls)]
        unknown = ", ".join(name for name in given if name not in known)
        if unknown:
            raise TypeError(f"unknown argument {unknown}; there are {', '.join(known)}")
        return cls(**given)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Of all arguments of a public function by name, arrays among them."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    def __post_init__(self) -> None:
        if self.casting not in _CASTINGS:
            raise ValueError(f"casting={self.casting!r} is none of {', '.join(_CASTINGS)}")
        if self.prefer not in PREFERENCES:
            known = ", ".join(map(repr, PREFERENCES))
            raise ValueError(f"prefer={self.prefer!r} is none of {known}")
        if self.dtype is not None:
            self._normalize(dtype=element_type(self.dtype, "dtype"))

    def _normalize(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def check(self, *operands: Any, out: Any = None, c: Any = None, adopt: Adopt = adopt) -> Call:
        """The call with these arrays. Raises what the public functions document. `adopt` makes
        operands of arrays.
        """

    def check_again(self, *operands: Any, out: Any, c: Any) -> Call:
        """The call with other arrays of the same shapes, strides and dtypes."""
        return self.check(*operands, out=out, c=c)

    def _check(
        self,
        a: Operand,
        b: Operand,
        c: Operand | None,
        out: Any,
        transposed: tuple[bool, bool],
        op: str = "gemm",
    ) -> Call:
        """The call whose factors and `c` are operands already."""
        out = None if out is None else _target(out)
        _check_side([x for x in (a, b, c, out) if x is not None])
        shape = result_shape(a.spec.shape, b.spec.shape, *transposed)
        for operand in (c, out):
            if operand is not None and operand.spec.shape != shape:
                raise ValueError(
                    f"{operand.name} has shape {operand.spec.shape}, but the product of shapes "
                    f"{a.spec.shape} and {b.spec.shape} has {shape}"
                )
        common, made = self._types(a, b, c, out)
        kind = product_type(common, self.precision, made)
        if out is not None and not np.can_cast(made, out.spec.dtype, self.casting):
            raise TypeError(
                f"cannot cast the product from {made} to {out.spec.dtype}, the dtype of "
                f"out, with casting={self.casting!r}"
            )
        alpha, beta = _scalar(self.alpha, "alpha", common), _beta(self.beta, c, common)
        alpha = -alpha if a.negative != b.negative else alpha
        beta = -beta if beta and c.negative else beta
        return Call(a, b, c, out, alpha, beta, *transposed, common, made, kind, shape, op)

    def _types(
        self, a: Operand, b: Operand, c: Operand | None, out: Operand | None
    ) -> tuple[np.dtype, np.dtype]:
        """The dtype of the factors and that of the result. Where the factors have 16 bits, a result
        in float32 is requested by `out_dtype` or by an `out` of that dtype; c then belongs to the
        result and does not affect the dtype of the factors.
        """
        factors, single = ((a.name, a.spec.dtype), (b.name, b.spec.dtype)), FLOAT32
        dtype, casting = self.dtype, self.casting
        wanted = None if self.out_dtype is None else element_type(self.out_dtype, "out_dtype")
        if wanted is None and out is not None and out.spec.dtype == single:
            if dtype is not None or c is None or c.spec.dtype == single:
                wanted = single
        if wanted == single and (common := common_dtype(factors, dtype, casting)).itemsize == 2:
            if c is not None and not np.can_cast(c.spec.dtype, single, casting):
                raise TypeError(
                    f"cannot cast c from {c.spec.dtype} to {single} with casting={casting!r}"
                )
            return common, single
        named = factors if c is None else (*factors, (c.name, c.spec.dtype))
        common = common_dtype(named, dtype, casting)
        return common, common if self.out_dtype is None else wanted


@dataclass(frozen=True, kw_only=True)
class MatmulOptions(Options):
    """The keyword arguments of `pymm.matmul`."""

    trans_a: bool | str = False
    trans_b: bool | str = False
    activation: str | None = None
    device_memory: int | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._normalize(
            trans_a=transposes(self.trans_a, "trans_a"), trans_b=transposes(self.trans_b, "trans_b")
        )
        if self.activation is not None and self.activation not in tuple(ACTIVATIONS):
            known = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"activation={self.activation!r} is none of {known}; None is none")

    def check(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        adopt: Adopt = adopt,
        bias: Any = None,
    ) -> Call:
        a, b = adopt(a, "a"), adopt(b, "b")
        if b.prepared is not None and b.prepared.trans != self.trans_b:
            raise ValueError(
                f"b was prepared with trans_b={b.prepared.trans}, and is multiplied with "
                f"trans_b={self.trans_b}"
            )
        c = None if c is None else adopt(c, "c")
        call = self._check(a, b, c, out, (self.trans_a, self.trans_b))
        if self.activation:
            call = replace(call, activation=self.activation)
        return call if bias is None else self._biased(call, adopt(bias, "bias"))

    def check_again(self, *operands: Any, out: Any, c: Any, bias: Any = None) -> Call:
        return self.check(*operands, out=out, c=c, bias=bias)

    def _biased(self, call: Call, bias: Operand) -> Call:
        """The call with a bias."""
        _check_side([call.a, bias])
        columns = 1 if len(call.b.spec.shape) == 1 else call.shape[-1]
        check_bias(bias, columns, call.out_dtype, self.casting)
        return replace(call, bias=bias)


def check_bias(bias: Operand, columns: int, result: np.dtype, casting: str) -> None:
    """`ValueError` or `TypeError` unless `bias` can be added to rows of a result of so many columns
    and this dtype.
    """
    if bias.spec.shape != (columns,):
        raise ValueError(
            f"bias has shape {bias.spec.shape}, and the result {columns} columns: a bias is one "
            f"row, which is added to every row of the result, of shape ({columns},)"
        )
    if bias.negative:
        raise ValueError(
            "bias has PyTorch's negative bit, as x.conj().imag has it, and pymm adds no negated "
            "bias: give it bias.resolve_neg()"
        )
    wanted = bias_dtype(bias, result)
    if not np.can_cast(bias.spec.dtype, wanted, casting):
        raise TypeError(
            f"cannot cast bias from {bias.spec.dtype} to {wanted}, the dtype of the result, with "
            f"casting={casting!r}"
        )


def bias_dtype(bias: Operand, result: np.dtype) -> np.dtype:
    """The dtype that a kernel takes a bias in: that of the result's sums, if it has that already,
    else the result's.
    """
    return bias.spec.dtype if bias.spec.dtype == _scalar_dtype(result) else result


#: What of the result `syrk` writes, and the operation that writes it.
_OPERATIONS = {"full": "syrk", "lower": "syrk_lower", "upper": "syrk_upper"}


@dataclass(frozen=True, kw_only=True)
class SyrkOptions(Options):
    """The keyword arguments of `pymm.syrk`."""

    trans: bool | str = False
    fill: str = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.fill, str) or self.fill not in _OPERATIONS:
            raise ValueError(f"fill={self.fill!r} is none of {', '.join(_OPERATIONS)}")
        self._normalize(trans=transposes(self.trans, "trans"))

    def check(self, a: Any, out: Any = None, c: Any = None, adopt: Adopt = adopt) -> Call:
        a = adopt(a, "a")
        if len(a.spec.shape) < 2:
            raise ValueError(f"a has shape {a.spec.shape}; syrk takes a matrix, or a stack of them")
        c = None if c is None else adopt(c, "c")
        call = self._check(a, a, c, out, (self.trans, not self.trans), _OPERATIONS[self.fill])
        return call if self.fill == "full" else self._in_place(call)

    def check_again(self, a: Any, out: Any, c: Any) -> Call:
        if self.fill != "full":
            c = out if self.beta else None
        return self.check(a, out=out, c=c)

    def _in_place(self, call: Call) -> Call:
        """A call that writes one half of `out`: c is `out`, whose other half is not changed."""
        fill = self.fill
        if call.out is None:
            raise ValueError(f"fill={fill!r} writes one half of out: give it out=")
        if call.out.spec.dtype != call.out_dtype:
            raise TypeError(
                f"fill={fill!r} leaves half of out as it is, so out must be of the product's own "
                f"type {call.out_dtype}; it is {call.out.spec.dtype}"
            )
        if call.beta != 0 and not call.out.is_at(call.c):
            raise ValueError(f"fill={fill!r} updates out in place: c must be out itself")
        return replace(call, c=replace(call.out, name="c"))


def _target(out: Any) -> Operand:
    operand = adopt(out, "out")
    if operand.owner is not out:
        raise TypeError(f"out is a {type(out).__name__}, not an array that can be written")
    if operand.readonly:
        raise ValueError("out is read-only")
    if operand.negative:
        raise ValueError(
            "out has PyTorch's negative bit, as x.conj().imag has it, and pymm writes "
            "no negated elements: give it out.resolve_neg()"
        )
    return operand


def _check_side(operands: list[Operand]) -> None:
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
        if max(other.spec.shape, default=0) > MAX_EXTENT:
            raise ValueError(
                f"{other.name} has shape {other.spec.shape}; pymm's extents end at {MAX_EXTENT}"
            )


def _scalar(value: Any, name: str, dtype: np.dtype) -> float:
    number = real(value, name)
    if math.isfinite(number) and abs(number) > float(ml_dtypes.finfo(_scalar_dtype(dtype)).max):
        raise ValueError(f"{name}={value!r} is beyond the range of {_scalar_dtype(dtype)}")
    return number


def _scalar_dtype(dtype: np.dtype) -> np.dtype:
    return FLOAT32 if dtype.itemsize < 4 else dtype


def _beta(beta: Any, c: Operand | None, dtype: np.dtype) -> float:
    if c is not None and beta is None:
        raise ValueError("c needs beta: beta=1 adds c to the product, beta=0 does not read it")
    value = _scalar(0.0 if beta is None else beta, "beta", dtype)
    if c is None and value != 0:
        raise ValueError(f"beta={beta!r} needs c, the array that it scales (c may be out itself)")
    return value


# What the types and the numbers of a call may be


def element_type(dtype: Any, name: str) -> np.dtype:
    """A type of numbers by its short name, or whatever NumPy takes for one. `TypeError` for what is
    neither; `name` is the argument that it came in.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        if dtype not in ELEMENTS:
            raise TypeError(
                f"{name}={dtype!r} is a type of products, not of numbers: say it with "
                f"dtype=, precision= and out_dtype="
            )
        return ELEMENTS[dtype]
    return np.dtype(dtype)


@lru_cache(maxsize=1024)
def common_dtype(named: tuple[tuple[str, np.dtype], ...], dtype: Any, casting: str) -> np.dtype:
    """The type that a product is computed in: `dtype`, else NumPy's `result_type`.

    `TypeError` if an operand is no array of numbers or may not be cast to it under `casting`;
    `NotImplementedError` if pymm has no such type.
    """
    for name, given in named:
        if given.kind not in "biufc" and given.name != "bfloat16":
            raise TypeError(f"{name} has dtype {given}, which is no type of numbers")
    wanted = dtype
    if wanted is None:
        try:
            wanted = np.result_type(*(given for _, given in named))
        except TypeError:
            kinds = ", ".join(f"{name} is {given}" for name, given in named)
            said = f"{kinds}: NumPy has no common type for them; dtype= names one"
            raise TypeError(said) from None
    wanted = wanted.newbyteorder("=")
    if wanted not in ELEMENTS.values():
        known = ", ".join(known.name for known in ELEMENTS.values())
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
