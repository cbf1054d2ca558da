"""pymm.torch on a GPU, against PyTorch's own products in float64: what a CPU does not have, which
is streams, graphs, reduced precisions and copies on the device.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import torch

    import pymm.torch
except ModuleNotFoundError:
    torch = None

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda"
DTYPES = {"float64": 1e-11, "float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def seeded():
    if not torch.cuda.is_available():
        pytest.fail("this PyTorch has no GPU")
    torch.manual_seed(0)


def tensor(*shape, dtype="float32", grad=True):
    made = torch.randn(shape, device=DEVICE).to(getattr(torch, dtype))
    return made.requires_grad_(grad)


def assert_close(found, wanted, error):
    """Relative to the largest element: sums of random signs may come out near zero."""
    scale = wanted.double().abs().max().item() if wanted.numel() else 1
    torch.testing.assert_close(found.double(), wanted.double(), rtol=error, atol=error * scale)


def compared(function, reference, given, error, grad=None):
    """The results of both and the gradients of all that is given."""
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
    found, wanted = function(*given), reference(*wide)
    assert_close(found, wanted, error)
    grad = torch.randn_like(wanted) if grad is None else grad(wanted)
    gradients = torch.autograd.grad(found, given, grad.to(found.dtype))
    expected = torch.autograd.grad(wanted, wide, grad.to(found.dtype).double())
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other, error)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [
        ((128, 64), (64, 256)),
        ((3, 17, 33), (33, 65)),
        ((2, 1, 16, 31), (5, 31, 8)),
        ((129,), (129, 7)),
        ((7, 129), (129,)),
        ((1, 0), (0, 5)),
    ],
)
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_products_and_gradients(dtype, shapes, activation):
    a, b = (tensor(*shape, dtype=dtype) for shape in shapes)
    bias = tensor(1 if b.dim() == 1 else b.shape[-1], dtype=dtype)
    act = {None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]

    def reference(a, b, bias):
        return act(a @ b + (bias if b.dim() > 1 else bias[0]))

    def ours(a, b, bias):
        return pymm.torch.matmul(a, b, bias=bias, activation=activation)

    if activation == "relu":  # elements near zero have either derivative in narrow types
        with torch.no_grad():
            wide = (a.double() @ b.double()).abs()
            bias.copy_(torch.full_like(bias, 2 * (wide.max().item() if wide.numel() else 1) + 1))
    compared(ours, reference, (a, b, bias), DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["transposed", "stepped", "expanded", "negative", "column"])
def test_memory_layouts(dtype, layout):
    """Of operands and of gradients: that of a sum is one element, expanded."""
    kind = getattr(torch, dtype)
    make = {
        "transposed": lambda x: x.mT.contiguous().mT,
        "stepped": lambda x: x.repeat_interleave(2, -1)[..., ::2],
        "expanded": lambda x: x.flatten()[0].expand(x.shape),
        "negative": lambda x: torch._neg_view(-x),
        "column": lambda x: x[:, :1].expand(x.shape),
    }[layout]
    a, b = (
        make(torch.randn(64, 64, device=DEVICE).to(kind)).detach().requires_grad_()
        for _ in range(2)
    )
    for grad in (None, torch.ones_like, make, lambda x: x.new_ones(()).expand(x.shape)):
        compared(pymm.torch.matmul, torch.matmul, (a, b), DTYPES[dtype], grad)


@pytest.mark.parametrize("precision, error", [("tf32", 4e-3), ("emulated", 1e-4)])
def test_precision(precision, error):
    """Of the gradients, too."""
    given = tensor(128, 256), tensor(256, 192)
    compared(lambda a, b: pymm.torch.matmul(a, b, precision=precision), torch.matmul, given, error)


def test_gradcheck_and_opcheck():
    given = [tensor(*shape, dtype="float64") for shape in ((2, 3, 4), (4, 5), (5,))]
    for activation in ("", "relu", "silu"):
        more = activation, "ieee"
        assert torch.autograd.gradcheck(lambda *x, m=more: torch.ops.pymm.matmul(*x, *m), given)
        torch.library.opcheck(torch.ops.pymm.matmul, (*given, *more))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    """The second mode records CUDA graphs."""
    torch._dynamo.reset()
    layer = pymm.torch.Linear(96, 64, activation="gelu", device=DEVICE)
    compiled = torch.compile(lambda x: layer(x).sin(), fullgraph=True, mode=mode)
    for _ in range(4):
        x = tensor(32, 96)
        given = x, *layer.parameters()
        found = torch.autograd.grad(compiled(x).square().sum(), given)
        found = [one.clone() for one in found]
        wanted = torch.autograd.grad(layer(x).sin().square().sum(), given)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, 1e-4)


def test_a_training_step_in_a_graph():
    """Captured after a warm-up on another stream, as PyTorch asks for; replayed with new data."""
    layers = [
        pymm.torch.Linear(64, 128, activation="gelu", device=DEVICE),
        pymm.torch.Linear(128, 8, device=DEVICE),
    ]
    model = torch.nn.Sequential(*layers)
    x, given = torch.randn(32, 64, device=DEVICE), list(model.parameters())
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        torch.autograd.grad(model(x).square().sum(), given)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(x).square().sum()
        gradients = torch.autograd.grad(loss, given)
    for _ in range(3):
        x.copy_(torch.randn(32, 64, device=DEVICE))
        graph.replay()
        wanted = model(x).square().sum()
        assert_close(loss, wanted, 1e-4)
        for one, other in zip(gradients, torch.autograd.grad(wanted, given), strict=True):
            assert_close(one, other, 1e-4)


def test_work_follows_the_current_stream():
    """Operands are written late, on a stream of their own; so are the gradients."""
    stream = torch.cuda.Stream()
    w = tensor(256, 256)
    with torch.cuda.stream(stream):
        pymm.torch.matmul(tensor(256, 256, grad=False), w).sum().backward()  # compiled by then
        for _ in range(5):
            w.grad = None
            torch.cuda._sleep(20_000_000)
            x = torch.full((256, 256), 2.0, device=DEVICE)
            found = pymm.torch.matmul(x, w)
            found.sum().backward()
            total = w.grad.clone()
    stream.synchronize()
    assert_close(found, (x @ w).detach(), 1e-5)
    assert torch.equal(total, torch.full_like(total, 512.0))


def test_autocast():
    layer = pymm.torch.Linear(64, 32, activation="relu", device=DEVICE)
    x = tensor(16, 64)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found = layer(x)
    assert found.dtype == torch.bfloat16
    wanted = torch.relu(torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert_close(found, wanted, DTYPES["bfloat16"])
    found.sum().backward()
    assert layer.weight.grad.dtype == x.grad.dtype == torch.float32


@pytest.mark.parametrize("options", [[], ["--dtype", "bfloat16", "--width", "1024"], ["--compile"]])
def test_the_example_trains_on_a_gpu(options):
    command = [sys.executable, ROOT / "examples" / "torch_mlp.py", "--device", DEVICE, *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the same losses: True" in done.stdout and "one step: PyTorch" in done.stdout
