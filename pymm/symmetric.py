"""Products of a matrix and its transpose: `syrk`, after BLAS's name for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pymm import replay
from pymm.api import RUNNING, Plan, run_and_keep
from pymm.arrays import Operand, adopt
from pymm.call import Call, check, transposes
from pymm.explanation import Explanation, explain_call, imagined
from pymm.prepare import find_backend, prepare

#: What of the result is written, and the operation that writes it.
_OPERATIONS = {"full": "syrk", "lower": "syrk_lower", "upper": "syrk_upper"}

_CHECKED = ("trans", "alpha", "beta", "fill", "dtype", "casting", "precision", "out_dtype")


def syrk(
    a: Any,
    /,
    out: Any = None,
    *,
    trans: bool | str = False,
    c: Any = None,
    alpha: float = 1,
    beta: float | None = None,
    fill: str = "full",
    dtype: Any = None,
    casting: str = "same_kind",
    precision: str = "ieee",
    out_dtype: Any = None,
    stream: Any = None,
    kernel: str | int | None = None,
    config: Any = None,
    device: Any = None,
    transfer: str | None = None,
) -> Any:
    """`alpha a a^T + beta c`, or with `trans` `alpha a^T a + beta c`: half the work of `matmul`,
    for only one half of the symmetric result is computed (where it is small on a GPU, all of it).

    `a` is (..., n, k), with `trans` (..., k, n), the result (..., n, n); stacks are multiplied
    matrix by matrix. k = 0 gives beta c.

    fill: "full" writes all of the result, symmetric to the bit. "lower" and "upper" update that
        half of `out` in place, diagonal included, and leave the other one as it is, to the bit:
        like BLAS's `?syrk`. They need `out`, of the product's own type.
    out: array of the result's shape to write to, which is returned. It may overlap a and c.
    c, beta: array of the result's shape, and its factor; one needs the other. c is symmetric: what
        is in the half of it that `fill` does not name, or for "full" in one of both, does not
        matter. c may be `out` itself; where only a half is written it must be.

    The other arguments, arrays, types and errors are those of `pymm.matmul`.
    """
    options = (
        alpha, beta, trans, fill, dtype, casting, precision, out_dtype,
        stream, kernel, config, device, transfer, "syrk",
    )  # fmt: skip
    key, out, launch = replay.recall(a, a, out, c, options)
    if launch is not None:
        launch()
        return out
    call = check_syrk(a, out, c=c, trans=trans, alpha=alpha, beta=beta, fill=fill, dtype=dtype,
                      casting=casting, precision=precision, out_dtype=out_dtype)  # fmt: skip
    backend = find_backend(call, device)
    ready = prepare(backend, call, stream, kernel, config, transfer)
    run_and_keep(ready, call, key, (a, a, out, c, options), backend)
    return ready.result


def plan_syrk(a: Any, /, out: Any = None, *, c: Any = None, **options: Any) -> Plan:
    """`syrk` made ready, as `pymm.plan` does it for `matmul`: each `plan()` only launches, and
    `plan(a)` takes another matrix of the same form. Takes the arguments of `syrk`.
    """
    checking, running = _split(options)
    return Plan(check_syrk(a, out, c=c, **checking), checking, running, _check_again)


def _check_again(a: Any, out: Any, *, c: Any = None, **options: Any) -> Call:
    """The call of a plan with other arrays. One that writes a half has c where its `out` is."""
    if options.get("fill", "full") != "full":
        c = out if options.get("beta") else None
    return check_syrk(a, out, c=c, **options)


def explain_syrk(a: Any, /, out: Any = None, *, c: Any = None, **options: Any) -> Explanation:
    """What `pymm.syrk` would do with these arguments, as `pymm.explain` tells it of `matmul`. A
    tuple of integers in the place of an array is the shape of one of `dtype`:
    `explain_syrk((64, 4096), trans=True, dtype="f32")`.
    """
    checking, running = _split(options)
    given = partial(imagined, dtype=checking.get("dtype"))
    return explain_call(check_syrk(a, out, c=c, adopt=given, **checking), **running)


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments that say what is computed, and those that say how. `TypeError` for any that
    `syrk` does not have.
    """
    checking = {name: options[name] for name in _CHECKED if name in options}
    running = {name: options.get(name) for name in RUNNING}
    unknown = ", ".join(name for name in options if name not in (*_CHECKED, *RUNNING))
    if unknown:
        raise TypeError(f"unknown argument {unknown}; there are {', '.join(_CHECKED + RUNNING)}")
    return checking, running


def check_syrk(
    a: Any,
    out: Any = None,
    *,
    c: Any = None,
    trans: bool | str = False,
    fill: str = "full",
    adopt: Callable[[Any, str], Operand] = adopt,
    **options: Any,
) -> Call:
    """The call that the arguments of `syrk` ask for. Raises what that documents."""
    if not isinstance(fill, str) or fill not in _OPERATIONS:
        raise ValueError(f"fill={fill!r} is none of {', '.join(_OPERATIONS)}")
    trans = transposes(trans, "trans")
    first = adopt(a, "a")
    if len(first.form.shape) < 2:
        raise ValueError(f"a has shape {first.form.shape}; syrk takes a matrix, or a stack of them")

    def known(array: Any, name: str) -> Operand:
        return adopt(array, name) if name == "c" else first

    call = check(a, a, out, c=c, trans_a=trans, trans_b=not trans, adopt=known, **options)
    call = replace(call, b=call.a, op=_OPERATIONS[fill])
    return call if fill == "full" else _in_place(call, fill)


def _in_place(call: Call, fill: str) -> Call:
    """A call that writes one half of `out`: c is `out`, whose other half stays as it is."""
    if call.out is None:
        raise ValueError(f"fill={fill!r} writes one half of out: give it out=")
    if call.out.form.dtype != call.out_dtype:
        raise TypeError(
            f"fill={fill!r} leaves half of out as it is, so out must be of the product's own type "
            f"{call.out_dtype}; it is {call.out.form.dtype}"
        )
    if call.beta != 0 and not call.out.is_at(call.c):
        raise ValueError(f"fill={fill!r} updates out in place: c must be out itself")
    return replace(call, c=replace(call.out, name="c"))
