"""A multi-layer perceptron trained twice from the same weights: with PyTorch's linear layers and
with pymm's, whose bias, activation and gradients are products of pymm.

    python examples/torch_mlp.py
    python examples/torch_mlp.py --device cuda --width 4096 --rows 8192 --dtype bfloat16

Prints the losses beside each other, and on a GPU the time of a step.
"""

import argparse
import copy
import statistics

import torch
from torch import nn

import pymm.torch

parser = argparse.ArgumentParser(description="trains the same layers with PyTorch's and pymm's")
parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
parser.add_argument("--width", type=int, default=64, help="of the hidden layers")
parser.add_argument("--rows", type=int, default=256, help="in one batch")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16"])
parser.add_argument("--compile", action="store_true", help="by torch.compile(fullgraph=True)")
args = parser.parse_args()

FEATURES, OUTPUTS = 32, 8
dtype = getattr(torch, args.dtype)
torch.manual_seed(0)


def both():
    """The layers of PyTorch, and pymm's with the same weights."""
    sizes = [FEATURES, args.width, args.width]
    theirs = nn.Sequential()
    for before, after in zip(sizes, sizes[1:], strict=False):
        theirs.append(nn.Linear(before, after)).append(nn.GELU())
    theirs.append(nn.Linear(args.width, OUTPUTS))
    ours = nn.Sequential(
        *(
            pymm.torch.Linear(before, after, activation="gelu")
            for before, after in zip(sizes, sizes[1:], strict=False)
        ),
        pymm.torch.Linear(args.width, OUTPUTS),
    )
    linear = [layer for layer in theirs if isinstance(layer, nn.Linear)]
    for layer, same in zip(ours, linear, strict=True):
        layer.load_state_dict(copy.deepcopy(same.state_dict()))
    return [model.to(device=args.device, dtype=dtype) for model in (theirs, ours)]


def train(model, x, wanted):
    """The losses of all steps, and the median time of one in milliseconds, None on a CPU."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    run = torch.compile(model, fullgraph=True) if args.compile else model
    losses, times = [], []
    for _ in range(args.steps):
        if args.device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(x).float(), wanted)
        loss.backward()
        optimizer.step()
        if args.device == "cuda":
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        losses.append(loss.item())
    return losses, statistics.median(times[len(times) // 2 :]) if times else None


x = torch.randn(args.rows, FEATURES)
wanted = torch.sin(x @ torch.randn(FEATURES, OUTPUTS)).to(args.device)
x = x.to(args.device, dtype)
theirs, ours = both()
losses, time = train(theirs, x, wanted)
losses_ours, time_ours = train(ours, x, wanted)

print("step  PyTorch    pymm")
for step in sorted({*range(0, args.steps, max(args.steps // 6, 1)), args.steps - 1}):
    print(f"{step:4}  {losses[step]:.6f}  {losses_ours[step]:.6f}")
if time is not None:
    device = torch.cuda.get_device_name()
    print(f"one step: PyTorch {time:.3f} ms, pymm {time_ours:.3f} ms on {device}")
same = torch.allclose(
    torch.tensor(losses),
    torch.tensor(losses_ours),
    rtol=5e-2 if dtype == torch.bfloat16 else 1e-3,
)
print(f"the loss fell: {losses_ours[-1] < losses_ours[0]}; the same losses: {same}")
