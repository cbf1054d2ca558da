"""Products of PyTorch's tensors with gradients: `matmul`, `Linear`, and the operator below them,
`torch.ops.pymm.matmul`, which `torch.compile` does not look into.

PyTorch 2.4 or newer is needed by this module, and by no other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pymm import api
from pymm.core.dtypes import BFLOAT16
from pymm.core.epilogue import ACTIVATIONS

__all__ = ["Linear", "matmul"]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def matmul(
    a: Tensor,
    b: Tensor,
    /,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    precision: str = "ieee",
) -> Tensor:
    """`activation(a b + bias)` as `torch.matmul` multiplies, differentiable in all three.

    Tensors of one dtype (float32, float64, float16, bfloat16) on one device: the CPU, or one that
    CUDA has, there on PyTorch's current stream. Transposes are views (`w.T`), which are read in
    place. Under `torch.autocast` operands are converted as for PyTorch's own product.

    a, b: (..., m, k) and (..., k, n), or vectors; batch axes broadcast.
    bias: (n,), or (1,) where b is a vector; of the same dtype, or float32 beside 16 bits.
    activation: None, "relu", "gelu", "gelu_tanh" or "silu", as `pymm.matmul` defines them. Where
        no gradient is recorded, and for "relu", it is part of the kernel that stores the product.
        Else the sums before it are stored for the backward pass, and PyTorch applies it: results of
        16 bits are then rounded twice.
    precision: of float32 products, as for `pymm.matmul`; of those of the backward pass as well.

    Gradients are products with transposed views, by tuned kernels too, summed over batch axes that
    were broadcast. The function works under `torch.compile(fullgraph=True)`, `torch.no_grad`, in
    CUDA graphs and twice differentiated.

    Raises what `pymm.matmul` raises; `TypeError` for tensors of several dtypes or devices.
    """
    a, b, bias = _autocast(a, b, bias)
    _check(a, b, bias, activation)
    rows, columns = a.dim() == 1, b.dim() == 1
    if rows:
        a = a.unsqueeze(0)
    if columns:
        b = b.unsqueeze(1)
    separate = activation not in (None, "relu") and _records_gradients(a, b, bias)
    fused = "" if separate or activation is None else activation
    result = _call_operator(a, b, bias, fused, precision)
    if separate:
        result = _activated(result, activation)
    if columns:
        result = result.squeeze(-1)
    if rows:
        result = result.squeeze(-1 if columns else -2)
    return result


class Linear(torch.nn.Linear):
    """`activation(x W^T + bias)`: `torch.nn.Linear` with its parameters, initial values and state
    dictionary, multiplied by `pymm.torch.matmul`.

    in_features, out_features, bias, device, dtype: as for `torch.nn.Linear`.
    activation, precision: as for `pymm.torch.matmul`. They are not part of the state dictionary.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        precision: str = "ieee",
    ) -> None:
        _check_activation(activation)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.precision = activation, precision

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return matmul(
            input,
            self.weight.t(),
            bias=self.bias,
            activation=self.activation,
            precision=self.precision,
        )

    def extra_repr(self) -> str:
        """What `print` shows of the layer."""
        more = [f"activation={self.activation!r}"] if self.activation else []
        more += [f"precision={self.precision!r}"] if self.precision != "ieee" else []
        return ", ".join([super().extra_repr(), *more])


# Checks and PyTorch's conventions, traced by `torch.compile`


def _autocast(a: Tensor, b: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What `torch.autocast` makes of the operands of a product. It leaves float64 as it is, and a
    bias may stay in float32.
    """
    kind = a.device.type if isinstance(a, Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return a, b, bias
    dtype = torch.get_autocast_dtype(kind)

    def converted(x: Any, *kept: torch.dtype) -> Any:
        if isinstance(x, Tensor) and x.dtype in _DTYPES and x.dtype not in (torch.float64, *kept):
            return x.to(dtype)
        return x

    return converted(a), converted(b), converted(bias, torch.float32)


def _records_gradients(*operands: Tensor | None) -> bool:
    asked = any(x is not None and x.requires_grad for x in operands)
    return asked and torch.is_grad_enabled()


def _check_activation(activation: str | None) -> None:
    if activation is not None and activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation={activation!r} is none of {known}; None is none")


def _check(a: Any, b: Any, bias: Any, activation: str | None) -> None:
    """What the operator does not say, or says too late: kinds, dtypes, devices."""
    _check_activation(activation)
    for name, x in (("a", a), ("b", b), ("bias", bias)):
        if x is None and name == "bias":
            continue
        if not isinstance(x, Tensor):
            kind = "None" if x is None else f"a {type(x).__name__}"
            raise TypeError(f"{name} is {kind}, not a tensor: torch.as_tensor makes one of arrays")
        if x.layout != torch.strided:
            raise TypeError(
                f"{name} is a sparse tensor ({x.layout}), and pymm multiplies dense ones: give it "
                f"{name}.to_dense()"
            )
        if x.device != a.device:
            raise TypeError(f"{name} is on {x.device} and a on {a.device}: move one of them")
        single = name == "bias" and x.dtype == torch.float32 and a.dtype.itemsize == 2
        if x.dtype != a.dtype and not single:
            raise TypeError(f"{name} is {x.dtype} and a {a.dtype}: convert one of them")
    if a.dtype not in _DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise TypeError(f"a product in {a.dtype}: pymm computes in {known}")
    if not a.dim() or not b.dim():
        name = "b" if a.dim() else "a"
        raise ValueError(f"{name} is a scalar: use * for products with scalars")


def _activated(sums: Tensor, activation: str) -> Tensor:
    """PyTorch's activation, which knows its derivative."""
    if activation == "silu":
        return functional.silu(sums)
    return functional.gelu(sums, approximate=_APPROXIMATIONS[activation])


_APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


# The operator: matrices or stacks of them, and no vectors. Tensors with the negative bit do not get
# here: PyTorch's dispatcher resolves it for operators that do not know it


_OPERATORS = torch.library.Library("pymm", "DEF")
_OPERATORS.define(
    "matmul(Tensor a, Tensor b, Tensor? bias, str activation, str precision) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_operator = torch.ops.pymm.matmul.default


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None, activation: str, precision: str) -> Tensor:
    """What the operator computes. CPU tensors go on as NumPy arrays, whose launches are found again
    soonest.
    """
    out = a.new_empty(_shape(a, b, bias))
    a, b = _readable(_plain(a)), _readable(_plain(b))
    bias = None if bias is None else _plain(bias)
    options = dict(activation=activation or None, precision=precision)
    if a.is_cpu:
        given = None if bias is None else _array(bias)
        api.matmul(_array(a), _array(b), _array(out), bias=given, device="cpu", **options)
    else:
        api.matmul(a, b, out, bias=bias, **options)
    return out


def _plain(x: Tensor) -> Tensor:
    """`x` as a tensor that records no gradients."""
    return x.detach() if x.requires_grad or type(x) is not Tensor else x


def _array(x: Tensor) -> np.ndarray:
    """The memory of a CPU tensor."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(BFLOAT16)
    return x.numpy()


def _multiply_fake(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, precision: str
) -> Tensor:
    return a.new_empty(_shape(a, b, bias))


def _shape(a: Tensor, b: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    """The result's. `ValueError` where there is none."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: {a.shape[-1]} columns of a and "
            f"{b.shape[-2]} rows of b cannot be multiplied"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != b.shape[-1]):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)}, and the result {b.shape[-1]} columns: a bias is "
            f"one row, of shape ({b.shape[-1]},)"
        )
    if a.dim() == b.dim() == 2:
        return (a.shape[0], b.shape[1])
    try:
        stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError as error:
        raise ValueError(f"the batch axes of a and b do not broadcast: {error}") from None
    return (*stack, a.shape[-2], b.shape[-1])


def _readable(x: Tensor) -> Tensor:
    """`x`, packed unless rows or columns are contiguous: gradients that were expanded are not."""
    (rows, columns), (down, across) = x.shape[-2:], x.stride()[-2:]
    if (across == 1 and down >= columns) or (down == 1 and across >= rows):
        return x
    return x.contiguous()


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    """Save what `_gradients` reads."""
    a, b, bias, ctx.activation, ctx.precision = inputs
    again = ctx.activation not in ("", "relu")
    needed = again or ctx.needs_input_grad[1], again or ctx.needs_input_grad[0]
    ctx.by_columns = b.dim() == 2 and b.stride(0) == 1 and b.stride(1) >= b.shape[0]
    ctx.shapes, ctx.bias_dtype = (a.shape, b.shape), None if bias is None else bias.dtype
    ctx.save_for_backward(
        a if needed[0] else None,
        b if needed[1] else None,
        bias if again else None,
        output if ctx.activation == "relu" else None,
    )


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Those of the operands: of C = A B they are dA = dC B^T and dB = A^T dC, of the bias the sum
    of the rows of dC.
    """
    a, b, bias, output = ctx.saved_tensors
    shape_a, shape_b = ctx.shapes
    grad = _before_activation(ctx, grad, a, b, bias, output)
    of_a = of_b = of_bias = None
    if ctx.needs_input_grad[0]:
        of_a = _summed(_call_operator(grad, b.mT, None, "", ctx.precision), shape_a)
    if ctx.needs_input_grad[1]:
        if len(shape_b) == 2:  # one product, and not the sum of one for each matrix of the batch
            left, right = a.flatten(0, -2), grad.flatten(0, -2)
            if ctx.by_columns:  # a transposed weight's gradient is stored like the weight
                of_b = _call_operator(right.mT, left, None, "", ctx.precision).mT
            else:
                of_b = _call_operator(left.mT, right, None, "", ctx.precision)
        else:
            of_b = _summed(_call_operator(a.mT, grad, None, "", ctx.precision), shape_b)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
        of_bias = grad.sum(tuple(range(grad.dim() - 1)), dtype=ctx.bias_dtype)
    return of_a, of_b, of_bias, None, None


def _summed(gradient: Tensor, shape: torch.Size) -> Tensor:
    """A gradient, summed over the axes that were broadcast."""
    return gradient if gradient.shape == shape else gradient.sum_to_size(shape)


def _before_activation(ctx: Any, grad: Tensor, *saved: Tensor | None) -> Tensor:
    """The gradient of the sums that the activation was applied to. `matmul` leaves all but "relu"
    to PyTorch, which saves those sums; here they are computed again.
    """
    a, b, bias, output = saved
    aten = torch.ops.aten
    if not ctx.activation:
        return grad
    if ctx.activation == "relu":
        return aten.threshold_backward(grad, output, 0)
    sums = _call_operator(a, b, bias, "", ctx.precision)
    if ctx.activation == "silu":
        sigmoid = torch.sigmoid(sums)  # aten.silu_backward has no derivative
        return grad * sigmoid * (1 + sums * (1 - sigmoid))
    return aten.gelu_backward(grad, sums, approximate=_APPROXIMATIONS[ctx.activation])


_OPERATORS.impl("matmul", _multiply, "CPU")
_OPERATORS.impl("matmul", _multiply, "CUDA")
torch.library.register_fake("pymm::matmul", _multiply_fake)
torch.library.register_autograd("pymm::matmul", _gradients, setup_context=_keep)


# The same without PyTorch's dispatcher, which takes the host as long as several products on a GPU.
# The operator remains for whoever looks into calls: compilers, tracers, modes, transforms


class _MatmulFunction(torch.autograd.Function):
    """The operator and its gradients, for autograd alone."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = _multiply(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grad)


def _call_operator(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str, precision: str
) -> Tensor:
    """The operator, called directly where nobody but autograd looks into calls."""
    given = a, b, bias, activation, precision
    if torch.compiler.is_compiling() or _is_intercepted() or not _are_ordinary(a, b, bias):
        return _operator(*given)
    return _MatmulFunction.apply(*given) if _records_gradients(a, b, bias) else _multiply(*given)


def _are_ordinary(*operands: Tensor | None) -> bool:
    """Whether all are on a CPU or on CUDA, of no subclass, and have memory with the elements that
    they have: without PyTorch's negative bit, and no zeros without memory.
    """
    for x in operands:
        if x is None:
            continue
        if type(x) not in _ORDINARY or not (x.is_cuda or x.is_cpu):
            return False
        if x.is_neg() or x._is_zerotensor():
            return False
    return True


_ORDINARY = (Tensor, torch.nn.Parameter)


def _is_intercepted() -> bool:
    """Whether something intercepts calls: a mode, a transform of `torch.func` or a tracer. True in
    a version of PyTorch that cannot be asked.
    """
    try:
        state = torch._C
        return bool(
            state._len_torch_dispatch_stack()
            or state._len_torch_function_stack()
            or state._functorch.peek_interpreter_stack() is not None
            or state._get_tracing_state() is not None
            or torch.autograd.forward_ad._current_level >= 0
        )
    except AttributeError:
        return True
