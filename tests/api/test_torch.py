"""Products of PyTorch's tensors with gradients, against PyTorch's own in float64. On the CPU; on a
GPU those marked so.
"""

import copy
import io
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pymm

try:
    import torch

    import pymm.torch
except ModuleNotFoundError:
    torch = None  # the tests are deselected, except in CI, where they then fail

pytestmark = pytest.mark.torch

#: PyTorch's activations by our names.
ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: torch.relu(x),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda x: torch.nn.functional.silu(x),
}

#: Relative and absolute error that one rounding of the result explains, with sums in float32.
CLOSE = {
    "float64": (1e-12, 1e-12),
    "float32": (1e-5, 1e-5),
    "float16": (2e-3, 2e-3),
    "bfloat16": (1.6e-2, 1.6e-2),
}


def exact(x):
    return x.detach().double().requires_grad_(x.requires_grad)


def assert_close(found, wanted, dtype="float32", scale=1):
    relative, absolute = CLOSE[dtype]
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=scale * relative, atol=scale * absolute
    )


def views(shape, dtype, device="cpu"):
    """Tensors of one shape whose elements lie in memory in every way that there is."""
    *stack, rows, columns = shape
    plain = torch.randn(shape, dtype=dtype, device=device)
    wide = torch.randn((*stack, 2 * rows, 3 * columns), dtype=dtype, device=device)
    return {
        "plain": plain,
        "transposed": torch.randn((*stack, columns, rows), dtype=dtype, device=device).mT,
        "sliced": wide[..., rows:, 1 : columns + 1],
        "stepped": wide[..., ::2, ::3],
        "one row": torch.randn(columns, dtype=dtype, device=device).expand(shape),
        "one column": torch.randn((rows, 1), dtype=dtype, device=device).expand(shape),
        "one element": torch.randn((), dtype=dtype, device=device).expand(shape),
        "negative": torch._neg_view(plain.clone()),
        "negative, transposed": torch._neg_view(plain.mT.contiguous()).mT,
    }


LAYOUTS = (
    "plain",
    "transposed",
    "sliced",
    "stepped",
    "one row",
    "one column",
    "one element",
    "negative",
    "negative, transposed",
)


@st.composite
def products(draw):
    """Shapes of a and b that can be multiplied, of any rank, batch axes broadcast."""
    extent = st.sampled_from([1, 2, 3, 7, 17])
    m, n, k = draw(extent), draw(extent), draw(st.sampled_from([0, 1, 2, 5, 16, 33]))
    stack = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=2))

    def batch():
        axes = [draw(st.sampled_from([1, extent])) for extent in stack]
        return axes[draw(st.integers(0, len(axes))) :]

    left, right = (
        draw(st.sampled_from(["matrices", "vector"])),
        draw(st.sampled_from(["matrices", "vector"])),
    )
    return (
        (k,) if left == "vector" else (*batch(), m, k),
        (k,) if right == "vector" else (*batch(), k, n),
    )


@settings(max_examples=60, deadline=None)
@given(products(), st.sampled_from(list(ACTIVATIONS)), st.booleans(), st.integers(0, 2**31))
def test_products_and_gradients_are_those_of_pytorch(shapes, activation, biased, seed):
    torch.manual_seed(seed)
    a, b = (torch.randn(shape, requires_grad=True) for shape in shapes)
    columns = 1 if b.dim() == 1 else b.shape[-1]
    bias = torch.randn(columns, requires_grad=True) if biased else None
    given = [x for x in (a, b, bias) if x is not None]
    wide = [exact(x) for x in given]
    found = pymm.torch.matmul(a, b, bias=bias, activation=activation)
    sums = wide[0] @ wide[1]
    if biased:
        sums = sums + (wide[2] if b.dim() > 1 else wide[2][0])
    wanted = ACTIVATIONS[activation](sums)
    assert found.shape == wanted.shape and found.dtype == torch.float32
    assert_close(found, wanted, scale=8)
    grad = torch.randn(wanted.shape)
    gradients = torch.autograd.grad(found, given, grad)
    expected = torch.autograd.grad(wanted, wide, grad.double())
    for x, one, other in zip(given, gradients, expected, strict=True):
        assert one.shape == x.shape
        assert_close(one, other, scale=16)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, ["plain", "transposed"])))
def test_memory_layouts(dtype, layouts):
    """With the gradients, whose own layout is each of them, too."""
    kind = getattr(torch, dtype)
    for left, right in (layouts, layouts[::-1]):
        a = views((5, 9), kind)[left].detach().requires_grad_()
        b = views((9, 7), kind)[right].detach().requires_grad_()
        grad = views((5, 7), kind)[left]
        found = pymm.torch.matmul(a, b)
        wide = exact(a), exact(b)
        wanted = wide[0] @ wide[1]
        assert found.dtype == kind
        assert_close(found, wanted, dtype, scale=4)
        of_a, of_b = torch.autograd.grad(found, (a, b), grad)
        want_a, want_b = torch.autograd.grad(wanted, wide, grad.double())
        assert_close(of_a, want_a, dtype, scale=8)
        assert_close(of_b, want_b, dtype, scale=8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pymm_matmul_reads_tensors_of_the_cpu_as_pytorch_does(layout, dtype):
    """In place, the negative bit too, so a plan sees what an operand holds later."""
    base = views((6, 6), getattr(torch, dtype))
    a, b, c = base[layout], base["plain"], base["negative"]
    for left, right in ((a, b), (b, a), (a, a)):
        wanted = left.double() @ right.double()
        assert_close(array(pymm.matmul(left, right, device="cpu")), wanted, dtype, scale=8)
        found = pymm.matmul(left, right, c=c, beta=2, device="cpu")
        assert_close(array(found), wanted + 2 * c.double(), dtype, scale=8)
    plan = pymm.plan(a, b, device="cpu")
    if "one" not in layout:
        a.mul_(2)
    assert_close(array(plan()), a.double() @ b.double(), dtype, scale=8)


def array(found):
    """A NumPy array as a tensor of float64."""
    return torch.from_numpy(found.astype(np.float64))


def test_bits_of_complex_views():
    """Imaginary parts of a conjugate have the negative bit; the conjugate bit is PyTorch's sign of
    an imaginary part, of which a real product has none.
    """
    z = torch.randn(4, 4, dtype=torch.complex64)
    part, b = z.conj().imag, torch.randn(4, 4)
    assert part.is_neg() and z.conj().is_conj()
    assert_close(array(pymm.matmul(part, b, device="cpu")), part.double() @ b.double())
    assert_close(pymm.torch.matmul(part, b), part.double() @ b.double())
    with pytest.raises(NotImplementedError, match="complex64"):
        pymm.matmul(z.conj(), z, device="cpu")
    with pytest.warns(np.exceptions.ComplexWarning):
        real = pymm.matmul(z.conj(), b, dtype="f4", casting="unsafe", device="cpu")
    assert_close(array(real), z.real.double() @ b.double())
    with pytest.raises(ValueError, match=r"bias has PyTorch's negative bit.*resolve_neg"):
        pymm.matmul(b, b, bias=part[0], device="cpu")
    assert_close(pymm.torch.matmul(b, b, bias=part[0]), b.double() @ b.double() + part[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(activation):
    """First and second derivatives by finite differences, through the operator as well, which
    computes the sums before the activation again where `matmul` saves them.
    """
    torch.manual_seed(3)
    shapes = (2, 3, 4), (4, 5), (5,)
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]

    def ours(a, b, bias):
        return pymm.torch.matmul(a, b, bias=bias, activation=activation)

    def operator(a, b, bias):
        return torch.ops.pymm.matmul(a, b, bias, activation or "", "ieee")

    for function in (ours, operator):
        assert torch.autograd.gradcheck(function, given)
        assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("shapes", [((5, 3), (3, 7)), ((2, 1, 5, 3), (4, 3, 7)), ((0, 3), (3, 1))])
@pytest.mark.filterwarnings("default")  # PyTorch's own, of its compiler
def test_opcheck(activation, shapes):
    a, b = (torch.randn(shape, requires_grad=True) for shape in shapes)
    for bias in (None, torch.randn(shapes[1][-1], requires_grad=True)):
        torch.library.opcheck(torch.ops.pymm.matmul, (a, b, bias, activation, "ieee"))
    torch.library.opcheck(
        torch.ops.pymm.matmul, (a.detach(), b.mT.contiguous().mT, None, activation, "ieee")
    )


@pytest.mark.parametrize("backend, sizes", [("aot_eager", (4, 7, 1)), ("inductor", (4,))])
@pytest.mark.filterwarnings("default")  # PyTorch's own, of its compilers
def test_compiled_without_graph_breaks(backend, sizes, tmp_path, monkeypatch):
    """Forward and backward, with shapes that change, and with gradients off."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    layer = pymm.torch.Linear(6, 5, activation="gelu")

    def model(x, w):
        return layer(x).sin() + pymm.torch.matmul(x, w, activation="relu")

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for rows in sizes:
        x = torch.randn(3, rows, 6, requires_grad=True)
        w = torch.randn(6, 5, requires_grad=True)
        given = x, w, *layer.parameters()
        grads = [torch.autograd.grad(f(x, w).square().sum(), given) for f in (compiled, model)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w), model(x, w))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(3,), (1, 3), (8, 3), (2, 5, 3), (0, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_pytorchs(activation, shape, bias):
    torch.manual_seed(5)
    ours = pymm.torch.Linear(3, 4, bias, dtype=torch.float64, activation=activation)
    theirs = torch.nn.Linear(3, 4, bias, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    x, y = (torch.ones(shape, dtype=torch.float64).mul_(0.3).requires_grad_() for _ in range(2))
    found, wanted = ours(x), ACTIVATIONS[activation](theirs(y))
    assert_close(found, wanted, "float64")
    found.square().sum().backward()
    wanted.square().sum().backward()
    assert_close(x.grad, y.grad, "float64")
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(one.grad, other.grad, "float64")


def test_linear_starts_saves_and_shows_itself_like_pytorchs():
    torch.manual_seed(0)
    ours = pymm.torch.Linear(3, 4, activation="silu", precision="tf32")
    torch.manual_seed(0)
    theirs = torch.nn.Linear(3, 4)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor)
    stored = io.BytesIO()
    torch.save(ours.state_dict(), stored)
    stored.seek(0)
    assert theirs.load_state_dict(torch.load(stored)).missing_keys == []
    assert repr(theirs)[:-1] + ", activation='silu', precision='tf32')" == repr(ours)
    for same in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert repr(same) == repr(ours) and torch.equal(same.weight, ours.weight)
    with pytest.raises(ValueError, match="activation='tanh' is none of 'relu'"):
        pymm.torch.Linear(3, 4, activation="tanh")


def test_without_gradients():
    """The activation is fused then, and nothing is saved."""
    w = torch.nn.Parameter(torch.randn(5, 5))
    x = torch.randn(3, 5)
    with torch.no_grad():
        found = pymm.torch.matmul(x, w, activation="gelu")
    assert not found.requires_grad
    assert_close(found, ACTIVATIONS["gelu"](exact(x) @ exact(w).detach()), scale=4)
    with torch.inference_mode():
        assert not pymm.torch.matmul(x, w).requires_grad


@pytest.mark.parametrize("frozen", ["weight", "input"])
def test_only_what_the_backward_pass_needs_is_saved(frozen):
    x, w = torch.randn(4, 3), torch.randn(3, 5)
    (w if frozen == "input" else x).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        found = pymm.torch.matmul(x, w)
    wanted = x if frozen == "input" else w
    assert [t.data_ptr() for t in saved] == [wanted.data_ptr()]
    found.sum().backward()
    assert (w.grad is None) == (frozen == "weight") and (x.grad is None) == (frozen == "input")


@pytest.mark.parametrize("activation, separate", [("relu", 0), ("gelu", 1), ("silu", 1)])
def test_products_of_one_step(activation, separate, monkeypatch):
    """One forward and two backward. An activation is fused where nothing is to be saved for it."""
    fused, multiply = [], pymm.torch.api.matmul

    def record(*operands, **options):
        fused.append(options["activation"])
        return multiply(*operands, **options)

    monkeypatch.setattr(pymm.torch.api, "matmul", record)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    pymm.torch.matmul(x, w, activation=activation).sum().backward()
    assert fused == [None if separate else activation, None, None]
    with torch.no_grad():
        pymm.torch.matmul(x, w, activation=activation)
    assert fused[3:] == [activation]


def test_meta_tensors_have_shapes():
    layer = pymm.torch.Linear(3, 4, device="meta", activation="relu")
    assert layer(torch.empty(2, 5, 3, device="meta")).shape == (2, 5, 4)


def test_the_gradient_of_a_transposed_weight_is_stored_like_the_weight():
    """PyTorch would have to copy any other."""
    x, w = torch.randn(6, 5), torch.randn(7, 5, requires_grad=True)
    (found,) = torch.autograd.grad(pymm.torch.matmul(x, w.t()).sum(), w)
    assert found.is_contiguous()
    torch.testing.assert_close(found, x.sum(0).expand(7, 5))


def test_autocast():
    layer = pymm.torch.Linear(6, 5, activation="relu")
    x = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = (
            layer(x),
            torch.relu(torch.nn.functional.linear(x, layer.weight, layer.bias)),
        )
        assert pymm.torch.matmul(x.double(), x.double().T).dtype == torch.float64
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert_close(found, wanted, "bfloat16", scale=2)
    found.sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32


def test_a_bias_of_float32_beside_16_bits():
    x, w = torch.randn(4, 6).bfloat16(), torch.randn(6, 5).bfloat16()
    bias = torch.randn(5, requires_grad=True)
    found = pymm.torch.matmul(x, w, bias=bias)
    assert_close(found, x.double() @ w.double() + bias.double(), "bfloat16", scale=2)
    found.sum().backward()
    assert bias.grad.dtype == torch.float32 and torch.equal(bias.grad, torch.full((5,), 4.0))


def refused():
    x = torch.ones(3, 3)
    sparse = x.to_sparse()
    return {
        "None": (TypeError, "a is None, not a tensor", (None, x), {}),
        "arrays": (TypeError, "b is a ndarray, not a tensor: torch.as_tensor", (x, x.numpy()), {}),
        "sparse": (TypeError, r"b is a sparse tensor.*b\.to_dense\(\)", (x, sparse), {}),
        "dtypes": (TypeError, "b is torch.float64 and a torch.float32", (x, x.double()), {}),
        "devices": (TypeError, "b is on meta and a on cpu", (x, x.to("meta")), {}),
        "integers": (
            TypeError,
            "a product in torch.int32: pymm computes in float32",
            (x.int(),) * 2,
            {},
        ),
        "scalar": (ValueError, r"b is a scalar: use \*", (x, x[0, 0]), {}),
        "extents": (ValueError, r"3 columns of a and 2 rows of b", (x, x[:2]), {}),
        "stacks": (ValueError, "do not broadcast", (x.expand(2, 3, 3), x.expand(3, 3, 3)), {}),
        "bias": (ValueError, r"bias has shape \(2,\)", (x, x), dict(bias=x[0, :2])),
        "bias's rank": (ValueError, r"bias has shape \(3, 3\)", (x, x), dict(bias=x)),
        "bias's dtype": (TypeError, "bias is torch.float16", (x, x), dict(bias=x[0].half())),
        "bias in f64": (TypeError, "bias is", (x.double(),) * 2, dict(bias=x[0])),
        "activation": (ValueError, "activation='tanh' is none of", (x, x), dict(activation="tanh")),
        "precision": (ValueError, "precision='low' is none of", (x, x), dict(precision="low")),
        "on a CPU": (NotImplementedError, "computes in tf32", (x, x), dict(precision="tf32")),
    }


@pytest.mark.parametrize("case", refused() if torch else ["PyTorch is missing"])
def test_refused(case):
    kind, message, given, options = refused()[case]
    with pytest.raises(kind, match=message):
        pymm.torch.matmul(*given, **options)


def test_pymm_matmul_names_what_computes_gradients():
    x = torch.randn(3, 3, requires_grad=True)
    message = r"a requires grad.*pymm\.torch\.matmul, torch\.no_grad\(\) or a\.detach\(\)"
    with pytest.raises(TypeError, match=message):
        pymm.matmul(x, x, device="cpu")
    with torch.no_grad(), pytest.raises(TypeError, match=r"\(sparse\).*a\.to_dense\(\)"):
        pymm.matmul(x.to_sparse(), x, device="cpu")
    with pytest.raises(TypeError, match="on the device meta that has no memory"):
        pymm.matmul(torch.ones(3, 3, device="meta"), x.detach(), device="cpu")
    with pytest.raises(TypeError, match="no memory"):
        pymm.matmul(torch._efficientzerotensor(3, 3), x.detach(), device="cpu")
    with pytest.raises(TypeError, match="out is a Tensor, not an array that can be written"):
        pymm.matmul(x.detach(), x.detach(), torch.empty(3, 3), device="cpu")


def test_autograd_alone_needs_no_dispatcher(monkeypatch):
    """Forward, backward and twice differentiated, without the operator."""

    def refuse(*_):
        raise AssertionError("the operator was called")

    monkeypatch.setattr(pymm.torch, "_operator", refuse)
    a = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(5, 4, dtype=torch.float64))
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def compute(a, w, bias):
        return pymm.torch.matmul(a, w.t(), bias=bias, activation="relu")

    assert torch.autograd.gradcheck(compute, (a, w, bias))
    assert torch.autograd.gradgradcheck(compute, (a, w, bias))
    with torch.no_grad():
        close = torch.relu(a @ w.t() + bias)
        torch.testing.assert_close(compute(a, w, bias), close)


def test_whoever_looks_into_calls_sees_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = torch.randn(3, 3, requires_grad=True)
    with Watching():
        y = pymm.torch.matmul(x, x)
    torch.testing.assert_close(y, x @ x)
    assert torch.ops.pymm.matmul.default in seen
    negative = torch._neg_view(x.detach())
    torch.testing.assert_close(pymm.torch.matmul(x.detach(), negative), -y.detach())
