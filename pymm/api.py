"""The public functions: `matmul`, `syrk` and `grouped` multiply, `plan` and `plan_syrk` prepare a
product that is computed many times, `configs` lists what is tuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymm.backends.base import RebindableLaunch, Resources
from pymm.blocked.call import (
    BlockedExplanation,
    explain_in_blocks,
    fits_in_blocks,
    fits_whole,
    in_blocks,
    multiply_in_blocks,
)
from pymm.blocked.program import ShardedExplanation, explain_sharded, multiply_sharded
from pymm.blocked.sharded import ShardedMatrix
from pymm.core.problem import Problem
from pymm.core.rows import InRows
from pymm.kernels import Config
from pymm.runtime.arguments import Call, MatmulOptions, Options, SyrkOptions
from pymm.runtime.arrays import adopt, result_maker
from pymm.runtime.bind import (
    Binding,
    epilogue_of,
    executable,
    find_backend,
    open_backend,
    prepare,
)
from pymm.runtime.explain import Explanation, explain_call, shape_adopter
from pymm.runtime.grouped import (
    GroupedPlan,
    checked_calls,
    grouped_options,
    prepare_grouped,
)
from pymm.runtime.launch_cache import Arguments, Key, cache
from pymm.selection.choose import reload, tuned_directory
from pymm.selection.records import Environment, Record
from pymm.selection.select import Choice
from pymm.selection.select import configs as records_of


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    c: Any = None,
    alpha: float = 1,
    beta: float | None = None,
    trans_a: bool | str = False,
    trans_b: bool | str = False,
    dtype: Any = None,
    casting: str = "same_kind",
    precision: str = "ieee",
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
    stream: Any = None,
    kernel: str | int | None = None,
    config: Any = None,
    device: Any = None,
    transfer: str | None = None,
    device_memory: int | str | None = None,
    prefer: str = "time",
) -> Any:
    """`activation(alpha op(a) op(b) + beta c + bias)`, by the kernel and configuration tuned for
    this product. Without an activation and a bias it is `alpha op(a) op(b) + beta c`.

    Shapes and types are those of `numpy.matmul`: `a` is (..., m, k), `b` (..., k, n), the result
    (..., m, n); batch axes broadcast; a vector is a row on the left, a column on the right, and
    the result has no axis for it; k = 0 gives zeros. float32 and float64; on GPUs since Ampere and
    on CPUs also float16 and bfloat16, accumulated in float32. Mixed dtypes promote.

    Operands are arrays of the host (NumPy's, CPU tensors; the result is NumPy's), or of a GPU:
    PyCUDA GPUArray, PyTorch, CuPy, anything with `__cuda_array_interface__` or DLPack. Those are
    used in place, without waiting for the device, and the result is of the first operand's type (a
    GPUArray for unknown types). No gradients are recorded: `pymm.torch.matmul` has them.

    out: array of the result's shape to write to, which is returned. It may overlap a, b and c.
    c, beta: array of the result's shape, and its factor; one needs the other. c may be `out`
        itself. beta = 0 does not read c; alpha = 0 reads neither a nor b.
    trans_a, trans_b: op is the transpose of the last two axes: True, "T" or "C". Vectors stay.
    dtype, casting: dtype to compute in, and which conversions are allowed, as for NumPy's ufuncs.
        Integers and complex numbers need `dtype=`; arrays of a GPU are not converted.
    precision: how float32 operands are multiplied, on GPUs that can; other dtypes have only "ieee".
        "ieee": plain multiply-add in the dtype of the product (16 bits: accumulated in float32).
        "tf32": operands rounded to 11 significant bits, a relative error of 2^-11 each (the very
        largest become infinite), accumulated in float32.
        "tf32x3": each operand as the sum of two such values, multiplied in three products: 22 bits,
        an error of 2^-20 of the sum of absolute values, and fewer bits below 2^-114.
        "f16x3", faster than that: block scaling, each operand as the sum of two float16 values with
        one power-of-two scale per 64 elements along k. As accurate as float32 where elements have
        one magnitude within 64 of k. An element 2^9 or more below the largest of its 64 may keep
        fewer bits: 2^-31 of the largest is lost (docs/explanation/numerics.md has an example).
        "emulated": like "f16x3" where the operands can be split as exactly as float32 products need
        it, else like "ieee". The device finds that out while it splits them, without the host, also
        in graphs; the host uses "ieee" at once where k is below 64, where that is faster, and on
        other devices than Hopper. The error is usually within 1.8 times that of float32's own
        products, 2.3 times in a case made to be bad (docs/explanation/numerics.md has the
        conditions and the bound). `pymm.prepare` splits a constant b once.
        "tf32x3" and "f16x3" are computed as "ieee" where that should be quicker, and always on
        other devices than Hopper; `pymm.explain` says which. The bound of the error is lower then;
        its root mean square was up to 3.1 times that of the split product (random data).
        `kernel="wgmma_tf32x3"` or `"wgmma_f16x3"` asks for the split product in any case. Products
        that are larger than the device's memory, or on several GPUs, are always split on Hopper.
        NaN and infinity come out as in float32, except that infinity times an element that rounds
        to zero is NaN ("tf32": below 2^-137, "f16x3": below 2^-31 of the largest of its 64). A
        reduced precision is never chosen unless asked for, and the arrays stay float32.
    out_dtype: float32 for float16 and bfloat16 operands: the sums are not rounded to 16 bits. An
        `out` of float32 asks for it as well, and c is float32 then.
    bias: row vector of shape (n,), added to every row of the result, of all matrices of a batch;
        (1,) where b is a vector. Of the result's dtype, or float32 where that has 16 bits; a NumPy
        array of another dtype is converted to the result's, as `casting` allows.
    activation: "relu": max(x, 0); "gelu": x Phi(x) = x / 2 (1 + erf(x / sqrt 2)); "gelu_tanh": its
        approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); "silu": x / (1 + exp(-x)).
        Applied last, so that a residual goes through it: beta=1 and c= add one before. Bias and
        activation are part of the kernel that stores the result (fused). A result of 16 bits is
        computed in float32 and rounded once. NaN and infinity give what these formulas give.
    stream: PyCUDA Stream, integer handle, or a PyTorch, CuPy or `__cuda_stream__` object. Left out,
        the work goes to the stream that the operands name, else to the default stream.
    kernel, config: a kernel by name or number, and its parameters: dict, slug or `Config`.
    device: "cpu", "cuda", "cuda:1", 1; left out, where the operands are, and for NumPy arrays a
        GPU if there is one, else the CPU. "cuda:all", or a list as ["cuda:0", "cuda:1"]: several
        GPUs, each of which computes a part of the result, from NumPy arrays.
    transfer: how NumPy arrays reach a GPU: "pageable", "pinned" or "registered" host memory, with
        "+pitched" into padded rows; left out, by size. Nothing is transferred on a CPU.
    device_memory: most bytes of each GPU's memory that the call may take, as 8000000000 or "8GB".
        NumPy arrays are then multiplied in blocks that stream through the device; so are, left
        out, those that do not fit the memory that is free. They may be memory-mapped.
    prefer: "time" (default): the fastest configuration. "energy": the one with the least measured
        energy; as "time" where this problem has no energy measurement (`python -m pymm.tune
        --objective energy`), and for products in blocks.

    Calls may be captured into CUDA graphs, also at their first use, and made from any thread. A
    long product on a CPU answers Ctrl-C between its pieces; what `out` holds then is unspecified.
    PyTorch's negative bit is honoured; `out` must not have it.

    Every matrix with unit stride along one of its last two axes is used without a copy, whatever
    the stride along the other one. `pymm.explain` tells what would be copied.

    Raises `ValueError` (shapes, scalars, flags, kernels and configurations), `TypeError` (objects,
    types, operands on host and device at once), `NotImplementedError` (combinations that pymm does
    not have), `NoDevice`, `MemoryError`, and `CompileFailed` or `LaunchFailed` from the device.
    """
    given = (alpha, beta, trans_a, trans_b, dtype, casting, precision, out_dtype, activation)
    given += stream, kernel, config, device, transfer, device_memory, prefer
    result = cache.repeat(a, b, out, c, bias, given)
    if type(result) is tuple:
        (out,) = result
    elif result is not None:
        return result
    given += type(alpha), type(beta), None if bias is None else cache.mark(bias)
    key, out, launch = cache.lookup(a, b, out, c, given)
    if launch is not None:
        launch()
        return out
    options = MatmulOptions.of(locals())
    if type(a) is ShardedMatrix or type(b) is ShardedMatrix:
        return multiply_sharded(a, b, out, c, options, bias)
    return _multiply(options, key, Arguments(a, b, out, c, given), bias)


def grouped(
    a: Sequence[Any],
    b: Sequence[Any],
    /,
    out: Sequence[Any] | None = None,
    **options: Any,
) -> list[Any]:
    """The products `alpha op(a[i]) op(b[i])` of two lists of matrices, which may all differ in
    size: a list of results, each as `pymm.matmul` returns it.

    float32 and float64 arrays of a GPU are multiplied in one launch for each 60 products of one
    type on one stream, whatever their layouts; a stack of s matrices counts as s products. Other
    types, arrays that must be copied, and NumPy arrays are multiplied one after the other. All
    products of a launch have the tile of one size, as in kernel 04, chosen for their sizes and not
    tuned; c, beta, bias and activation are not available. It is meant for many small products: one
    that fills the GPU by itself is faster with `pymm.matmul`. To check the arrays takes the host
    longer than to launch: `pymm.plan_grouped` does that once.

    out: list of arrays to write to. None of them may overlap an array of another product, for the
        products have no order.
    options: alpha, trans_a, trans_b, dtype, casting, precision, out_dtype, stream and device of
        `pymm.matmul`, for all products.

    Raises what `pymm.matmul` does, and the message names the product; `TypeError` for what is no
    list or tuple, and for products of NumPy arrays beside others of a GPU's; `ValueError` for lists
    of different lengths, arrays of different devices, and results that overlap. Nothing is written
    then.
    """
    common = grouped_options(options)
    calls, backend = checked_calls(common, (a, b, out))
    if calls and calls[0].on_host:
        given = zip(a, b, out or [None] * len(a), strict=True)
        return [_multiply(common, None, Arguments(x, y, z, None, ()), None) for x, y, z in given]
    results, steps = prepare_grouped(common, calls, backend)
    for step in steps:
        step()
    return results


def plan_grouped(
    a: Sequence[Any],
    b: Sequence[Any],
    /,
    out: Sequence[Any] | None = None,
    **options: Any,
) -> GroupedPlan:
    """`grouped`, prepared: a function without arguments that computes the products of these arrays
    again and returns the same list of results. Takes what `pymm.grouped` takes and raises what that
    raises.
    """
    return GroupedPlan(grouped_options(options), (a, b, out))


def _multiply(options: MatmulOptions, key: Key | None, arguments: Arguments, bias: Any) -> Any:
    """`matmul` of arrays: whole, or in blocks if that is asked for or if NumPy arrays do not fit
    the device.
    """
    a, b, out, c, _ = arguments
    call = options.check(a, b, out, c, bias=bias)
    result = None if in_blocks(options) else _run_if_it_fits(call, options, key, arguments)
    if result is None:
        result = multiply_in_blocks(call, options)
    return result[()] if out is None and call.on_host and not call.shape else result


def _run_if_it_fits(
    call: Call, options: MatmulOptions, key: Key | None, arguments: Arguments
) -> Any:
    """`_run`; None where there is too little memory, but enough for blocks. Nothing holds then what
    was allocated before.
    """
    try:
        return _run(call, options, key, arguments)
    except MemoryError:
        if not fits_in_blocks(call, options):
            raise
        return None


def _run(
    call: Call,
    options: Options,
    key: Key | None,
    arguments: Arguments,
) -> Any:
    """Run a call, insert its launch into the cache if that is all there is to do, and return the
    result. `key` is that of `arguments`, None if such calls are not cached.
    """
    backend = find_backend(call, options.device)
    prepared = prepare(backend, call, options)
    if not call.on_host:  # a graph replays the launches after this call has returned
        backend.own_captured(prepared.placed.stream, prepared)
    prepared.run()
    if key is not None and prepared.cacheable:
        if arguments.out is None:
            if call.on_host and not call.shape:
                return prepared.result  # `matmul` returns a scalar
            make = result_maker(call.a, call.shape, call.out_dtype, backend.empty)
            cache.insert_maker(key, make, prepared.chosen_in)
            key = cache.key_of(arguments._replace(out=prepared.result))
        if key is not None:
            cache.insert(key, prepared)
    return prepared.result


class Plan(InRows):
    """A product bound to its arrays: `plan()` computes it again from what they hold by then, and
    returns the result. Made by `pymm.plan`, and by `pymm.plan_syrk` for one operand. Not to be
    called from two threads at once.
    """

    def __init__(self, options: Options, *operands: Any, out: Any, c: Any, **more: Any) -> None:
        call = options.check(*operands, out=out, c=c, **more)
        self._options = options
        self.backend = find_backend(call, options.device)
        self._bind(call)

    def __call__(self, *operands: Any, out: Any = None, c: Any = None, bias: Any = None) -> Any:
        """Launch. With operands: first bind `a`, `b` (of `plan_syrk` `a`; and `out`, `c`, `bias`;
        those left out stay). `ValueError` for other shapes, strides or dtypes.

        An array whose memory was replaced since (`GPUArray.gpudata`, `Tensor.set_`) is bound anew,
        and `out` that became read-only is refused.
        """
        if operands or out is not None or c is not None or bias is not None:
            self._rebind(operands, out, c, bias)
        else:
            for unchanged in self._checks:
                if not unchanged():
                    self._rebind((), None, None, None)
                    break
        if self._owns:  # a graph replays the copies when the plan may be gone
            self.backend.own_captured(self._prepared.placed.stream, self._prepared)
        for step in self._steps:
            step()
        return self.out

    def _bind(self, call: Call) -> None:
        prepared = prepare(self.backend, call, self._options)
        self._prepared, self.out = prepared, prepared.result
        self._steps = tuple(
            step.direct() if isinstance(step, RebindableLaunch) else step for step in prepared.steps
        )
        self._call = call
        target = call.out or adopt(prepared.result, "out")
        factors = [x for x in call.operands if x is not call.out]
        bound = [Binding(x, False) for x in factors] + [Binding(target, True)]
        self._bindings, self._checks = bound, tuple(one.unchanged for one in bound)
        self._owns = len(prepared.steps) > 1 and not call.on_host

    def _rebind(self, operands: tuple[Any, ...], out: Any, c: Any, bias: Any) -> None:
        old = self._call
        given = (old.a.owner,) if old.b is old.a else (old.a.owner, old.b.prepared or old.b.owner)
        if len(operands) not in (0, len(given)):
            names = "a and b" if len(given) == 2 else "a"
            raise TypeError(f"this plan takes no operands or {names}; got {len(operands)}")
        out = self.out if out is None else out
        c = old.c.owner if c is None and old.c else c
        if bias is not None and old.bias is None:
            raise ValueError("the plan was made without a bias: make another plan")
        bias = old.bias.owner if bias is None and old.bias else bias
        more = {} if bias is None else {"bias": bias}
        call = self._options.check_again(*(operands or given), out=out, c=c, **more)
        for name, x, y in (
            ("a", call.a, old.a),
            ("b", call.b, old.b),
            ("c", call.c, old.c),
            ("out", call.out, old.out),
            ("bias", call.bias, old.bias),
        ):
            if y is not None and x.spec != y.spec:
                raise ValueError(
                    f"the plan was made for {name} of shape {y.spec.shape}, strides "
                    f"{y.spec.strides} and dtype {y.spec.dtype}; got {x.spec.shape}, "
                    f"{x.spec.strides}, {x.spec.dtype}: make another plan"
                )
        self._bind(call)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("plan of", self.problem.slug), ("device", self.backend.device.name)]
        if self.launches:
            rows += [("configuration", self.config.slug), ("because", self.choice.reason)]
        return [*rows, ("launches", str(self.launches))]

    @property
    def problem(self) -> Problem:
        """The problem of the first launch."""
        return self._prepared.product.problem

    @property
    def choice(self) -> Choice:
        """Configuration and the reason for it."""
        return self._prepared.choice

    @property
    def config(self) -> Config:
        """The configuration that runs."""
        return self.choice.config

    @property
    def launches(self) -> int:
        """Kernel launches of one call: more than one for some stacks, 0 for an empty product."""
        return len(self._prepared.product.steps)

    @property
    def resources(self) -> Resources:
        """What the compiled kernel takes of the device. Zeros for an empty product."""
        if not self.launches:
            return Resources()
        epilogue = epilogue_of(self._call, self._prepared.product)
        compiled = self._prepared.compiled_for or self.problem
        return executable(self.backend, self.config, compiled, epilogue=epilogue).resources


def plan(
    a: Any, b: Any, /, out: Any = None, *, c: Any = None, bias: Any = None, **options: Any
) -> Plan:
    """`matmul` prepared: shapes checked, configuration chosen, kernel compiled, arguments packed,
    so that each `plan()` only launches. Takes the arguments of `matmul` and raises what it raises,
    and `NotImplementedError` for several devices and for `device_memory`: a plan keeps its operands
    on one device.

    Without `out` the plan makes one result array and fills it at every call. For NumPy arrays on a
    GPU it keeps the device memory and copies each time. Plans of arrays on a GPU do not look at
    streams again: work goes to the stream that was current when the plan was made.
    """
    parsed = MatmulOptions.parse(options)
    if in_blocks(parsed):
        raise NotImplementedError(
            "a plan keeps its operands on one device: for several devices, or less memory, call "
            "pymm.matmul"
        )
    return Plan(parsed, a, b, out=out, c=c, bias=bias)


def explain(
    a: Any, b: Any, /, out: Any = None, *, c: Any = None, bias: Any = None, **options: Any
) -> Explanation | BlockedExplanation | ShardedExplanation:
    """What `pymm.matmul` would do with these arguments: kernel, configuration, the reason for it,
    geometry, resources, copies; for a product in blocks the blocks, the bytes that move, the time
    expected and what limits it. Compiles the kernel if it must; multiplies nothing.

    A tuple of integers in the place of an array is the shape of a C-ordered NumPy array of `dtype`
    (float64 if there is none): `explain((4096, 64), (64, 4096), dtype="f32")`. Raises what
    `matmul` raises.
    """
    parsed = MatmulOptions.parse(options)
    if isinstance(a, ShardedMatrix) or isinstance(b, ShardedMatrix):
        return explain_sharded(a, b, out, c, parsed, bias)
    call = parsed.check(a, b, out=out, c=c, adopt=shape_adopter(parsed), bias=bias)
    if in_blocks(parsed) or not fits_whole(call, parsed):
        return explain_in_blocks(call, parsed)
    return explain_call(parsed, a, b, out=out, c=c, bias=bias)


@dataclass(frozen=True)
class Tuned:
    """A record of the store, and why it is stale ("" if it is current)."""

    record: Record
    stale: str


def configs(device: Any = None) -> list[Tuned]:
    """What is tuned for a device (what `matmul` takes as `device=`): the user's records, then those
    shipped with pymm. Looks at the files afresh. Raises `NoDevice`, `ValueError`.
    """
    backend = open_backend(device)
    reload()
    environment = Environment.of(backend.device, backend.toolchain)
    rows = records_of(backend.device, tuned_directory(), environment)
    return [Tuned(record, stale) for record, _, stale in rows]


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
    prefer: str = "time",
) -> Any:
    """`alpha a a^T + beta c`, or with `trans` `alpha a^T a + beta c`: half the work of `matmul`,
    for only one half of the symmetric result is computed (where it is small on a GPU, all of it).

    `a` is (..., n, k), with `trans` (..., k, n), the result (..., n, n); batches are multiplied
    matrix by matrix. k = 0 gives beta c.

    fill: "full" writes all of the result, symmetric to the bit. "lower" and "upper" update that
        half of `out` in place, diagonal included, and leave the other one as it is, to the bit:
        like BLAS's `?syrk`. They need `out`, of the product's own type.
    out: array of the result's shape to write to, which is returned. It may overlap a and c.
    c, beta: array of the result's shape, and its factor; one needs the other. c is symmetric: what
        is in the half of it that `fill` does not name, or for "full" in one of both, does not
        matter. c may be `out` itself; where only a half is written it must be.

    The other arguments, arrays, types and errors are those of `pymm.matmul`. There is no bias and
    no activation, of which the first would not leave the result symmetric: `pymm.matmul(a, a,
    trans_b=True)` takes both.
    """
    given = ("syrk", alpha, beta, trans, fill, dtype, casting, precision, out_dtype, stream, kernel)
    given += config, device, transfer, prefer
    result = cache.repeat(a, a, out, c, None, given)
    if type(result) is tuple:
        (out,) = result
    elif result is not None:
        return result
    given += type(alpha), type(beta), None
    key, out, launch = cache.lookup(a, a, out, c, given)
    if launch is not None:
        launch()
        return out
    options = SyrkOptions.of(locals())
    call = options.check(a, out, c)
    return _run(call, options, key, Arguments(a, a, out, c, given))


def plan_syrk(a: Any, /, out: Any = None, *, c: Any = None, **options: Any) -> Plan:
    """`syrk` prepared, as `pymm.plan` does it for `matmul`: each `plan()` only launches, and
    `plan(a)` takes another matrix of the same shape, strides and dtype. Takes the
    arguments of `syrk`.
    """
    return Plan(SyrkOptions.parse(options), a, out=out, c=c)


def explain_syrk(a: Any, /, out: Any = None, *, c: Any = None, **options: Any) -> Explanation:
    """What `pymm.syrk` would do with these arguments, as `pymm.explain` does for `matmul`. A tuple
    of integers in the place of an array is the shape of one of `dtype`:
    `explain_syrk((64, 4096), trans=True, dtype="f32")`.
    """
    return explain_call(SyrkOptions.parse(options), a, out=out, c=c)
