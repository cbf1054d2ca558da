"""Right operands of many products, split once."""

from __future__ import annotations

import weakref
from typing import Any

from pymm.backends.base import Backend, Matrix
from pymm.core.dtypes import FLOAT32, PREPARED
from pymm.kernels import kernels_for
from pymm.runtime.arguments import transposes
from pymm.runtime.arrays import ArraySpec, Operand, PreparedOperand, adopt
from pymm.runtime.bind import executable, open_backend
from pymm.runtime.launch_cache import cache
from pymm.runtime.layout import arrange


def prepare(
    b: Any, /, *, trans_b: bool | str = False, stream: Any = None, device: Any = None
) -> PreparedOperand:
    """The right operand of many products with precision="emulated", split once instead of in each:
    `pymm.matmul(a, pymm.prepare(b), precision="emulated")`.

    b: float32 matrix of a GPU, (k, n), or a stack of them; with `trans_b` (n, k). It must not
        change any more, nor be freed: what is made of it would stay as it is, and products that
        are not split read it itself. The result keeps it alive.
    trans_b: as in the products.
    stream: where b is ready and is split. The call waits for that, so that the result may be used
        on any stream; it must not be made while the stream is captured into a graph.
    device: as for `pymm.matmul`.

    The result takes the place of b in `matmul`, `plan` and `explain`, owns 4 bytes of device memory
    for each element of b, and is used wherever operands are split ("emulated" and "f16x3"). Where
    the device splits none, it is just b.

    Raises `TypeError` for arrays of the host and other dtypes, `ValueError` for arrays that are no
    matrices, or not stored in order, and for a captured stream; `MemoryError`, `CompileFailed` and
    `LaunchFailed` from the device.
    """
    trans, operand = transposes(trans_b, "trans_b"), adopt(b, "b")
    _check(operand)
    index = operand.device_index
    backend = open_backend(device if device is not None else f"cuda:{index or 0}")
    prepared = PreparedOperand(b, trans, _split(backend, operand, trans, stream))
    weakref.finalize(prepared, cache.clear).atexit = False  # cached launches own what was split
    return prepared


def _check(operand: Operand) -> None:
    if operand.on_host:
        raise TypeError(
            "b is a NumPy array: what is prepared stays on a GPU, so copy b there first "
            "(pycuda.gpuarray.to_gpu, torch.as_tensor(..., device='cuda'), cupy.asarray)"
        )
    if operand.spec.dtype != FLOAT32:
        raise TypeError(f"b has dtype {operand.spec.dtype}: only float32 is split")
    if len(operand.spec.shape) < 2 or not operand.aligned or operand.spec.stored() is None:
        raise ValueError(
            f"b of shape {operand.spec.shape} and strides {operand.spec.strides} is not prepared: "
            "it must be a matrix, or a stack, with unit stride along one of its last two axes"
        )


def _split(backend: Backend, operand: Operand, trans: bool, stream: Any) -> Any:
    """What the device has of the operand; None if it splits none."""
    handle = operand.stream if stream is None else stream
    handle = None if handle is None else backend.stream(handle)
    if backend.is_captured(handle):
        raise ValueError("b cannot be prepared on a stream that is being captured into a graph")
    shape = operand.spec.shape
    k = shape[-1] if trans else shape[-2]
    left = ArraySpec.packed((*shape[:-2], 1, k), FLOAT32)
    product = arrange(left, operand.spec, None, False, trans, PREPARED)
    kernels = kernels_for(product.problem, backend.device)
    if not kernels or len(product.steps) != 1:
        return None
    step, which = product.steps[0], int(not product.swapped)
    place = (step.left, step.right)[which]
    matrix = Matrix(operand.address + place.offset, place.ld, place.batch_stride, operand.owner)
    config = kernels[-1].default_for(step.problem, backend.device)
    return executable(backend, config, step.problem).split(step.problem, which, matrix, handle)
