"""A bound call that is made again and again becomes a graph, and nobody can tell by its results."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest
from captures import captured
from products import integers

from pymm.backends.base import Matrix
from pymm.backends.cuda.driver import Driver, DriverError
from pymm.backends.cuda.graphs import Graph
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels import parse_slug
from pymm.kernels.source import render

pytestmark = pytest.mark.simulator

PROBLEM = Problem(21, 33, 9)
CONFIG = parse_slug("transposed_a-MB16-NB32-KB8-TA2-TB4")


class Product:
    """One bound product on its own buffers, launched by Python or by compiled code."""

    compiled = False

    def __init__(self, backend, stream=None):
        self.backend, shapes = backend, ((21, 9), (9, 33), (21, 33))
        self.buffers = [backend.allocate(4 * m * n) for m, n in shapes]
        a, b, c = (Matrix(x.address, n) for x, (_, n) in zip(self.buffers, shapes, strict=True))
        executable = backend.load(render(CONFIG, PROBLEM))
        self.bound = executable.bind(PROBLEM, 1.0, a, b, 0.0, c, stream)
        self.call = self.bound.direct() if self.compiled else self.bound

    def check(self, seed):
        """Other operands, another product."""
        self.fill(seed)
        self.call()
        self.compare(seed)

    def fill(self, seed):
        self.buffers[0].write(integers((21, 9), np.float32, seed))
        self.buffers[1].write(integers((9, 33), np.float32, seed + 1))
        self.buffers[2].fill(0xFF)

    def compare(self, seed):
        a, b = integers((21, 9), np.float32, seed), integers((9, 33), np.float32, seed + 1)
        self.backend.synchronize()
        got = np.empty((21, 33), np.float32)
        self.buffers[2].read(got)
        np.testing.assert_array_equal(got, a @ b)


@pytest.fixture(params=[False, True], ids=["Python", "compiled"], autouse=True)
def compiled(request, monkeypatch):
    """Whether compiled code launches."""
    monkeypatch.setattr(Product, "compiled", request.param)
    return request.param


@pytest.fixture
def launches(cuda):
    """The module, which needs a driver, or what stands in."""
    from pymm.backends.cuda import launch

    return launch


@pytest.fixture
def made(monkeypatch):
    """The launches of every graph that is made."""
    seen = []
    original = Graph.__init__

    def noted(self, driver, launches):
        seen.append(launches)
        original(self, driver, launches)

    monkeypatch.setattr(Graph, "__init__", noted)
    return seen


@pytest.fixture
def stream(cuda):
    """A stream that PyCUDA made."""
    import pycuda.driver as driver

    context = driver.Device(cuda.device.index).retain_primary_context()
    context.push()
    yield driver.Stream()
    driver.Context.pop()


def test_repeated_calls_become_one_graph(cuda, launches, made):
    gc.collect()  # graphs that earlier tests left in cycles
    product, before = Product(cuda), Graph.alive
    for seed in range(launches.REPEATED + 3):
        assert len(made) == (seed >= launches.REPEATED)
        product.check(seed)
    assert Graph.alive == before + 1
    del product
    gc.collect()
    assert Graph.alive == before


def test_a_single_launch_that_takes_the_device_long_stays_one(cuda, launches, made, monkeypatch):
    product = Product(cuda)
    monkeypatch.setattr(launches, "BRIEF", PROBLEM.flops - 1)
    for seed in range(launches.REPEATED + 2):
        product.check(seed)
    assert not made


@pytest.mark.parametrize("busy", [False, True])
def test_a_stream_that_is_captured_gets_single_launches(
    cuda, launches, made, stream, monkeypatch, busy, compiled
):
    product, ran = Product(cuda, stream), []
    original = Graph.launcher

    def counted(self, stream):
        launch = original(self, stream)
        return lambda: (ran.append(stream), launch())

    monkeypatch.setattr(Graph, "launcher", counted)
    driver = Driver()
    if busy:  # all the calls that would make a graph are captured
        for _ in range(launches.REPEATED):
            with captured(driver, stream.handle):
                product.call()
    for seed in range(launches.REPEATED + 2 - launches.REPEATED * busy):
        product.check(seed)
    by_python = 0 if busy or compiled else 2
    assert len(made) == (not busy) and len(ran) == by_python
    with captured(driver, stream.handle) as graphs:
        product.call()
    assert len(ran) == by_python
    product.fill(7)
    graphs[0].launch(stream.handle)
    product.compare(7)
    graphs[0].destroy()


def test_a_driver_that_makes_no_graphs_launches(cuda, launches, monkeypatch):
    product, original = Product(cuda), Driver.call

    def refuses(self, name, *arguments):
        if name == "cuGraphAddKernelNode_v2":
            raise DriverError("cuGraphAddKernelNode_v2 failed: not supported")
        return original(self, name, *arguments)

    monkeypatch.setattr(Driver, "call", refuses)
    before = Graph.alive
    for seed in range(launches.REPEATED + 3):
        product.check(seed)
    assert Graph.alive == before


def test_graphs_are_bounded(cuda, launches, made, monkeypatch):
    monkeypatch.setattr(launches, "MOST_GRAPHS", Graph.alive + 1)
    products = [Product(cuda) for _ in range(2)]
    for seed in range(launches.REPEATED + 2):
        for product in products:
            product.check(seed)
    assert len(made) == 1


def test_a_graph_that_fails_is_told_as_a_launch(cuda, launches, monkeypatch):
    product, graphs = Product(cuda), []
    original = Graph.launcher
    monkeypatch.setattr(
        Graph, "launcher", lambda self, stream: graphs.append(self) or original(self, stream)
    )
    for seed in range(launches.REPEATED):
        product.check(seed)
    Driver().call("cuGraphExecDestroy", graphs[0]._made)
    with pytest.raises(LaunchFailed, match="transposed_a.*f32-NN-21x33x9.*cuGraphLaunch failed"):
        product.call()


def refuse(code=-1):
    raise AssertionError(f"Python was asked for a launch ({code})")


@pytest.mark.parametrize("brief", [True, False], ids=["graph", "kernel"])
def test_compiled_code_needs_no_python(cuda, launches, monkeypatch, brief):
    """From the launch on that may be a graph; in another context, or in none, Python is asked."""
    import pycuda.driver as driver

    monkeypatch.setattr(launches, "BRIEF", PROBLEM.flops if brief else 0)
    product = Product(cuda)
    product.fill(0)
    launch = product.bound.direct()
    for _ in range(launches.REPEATED):
        launch()
    original = type(product.bound)._otherwise
    monkeypatch.setattr(type(product.bound), "_otherwise", lambda self, code: refuse(code))
    product.fill(3)
    context = driver.Device(cuda.device.index).retain_primary_context()
    context.push()
    try:
        product.bound.direct()()
        product.compare(3)
    finally:
        driver.Context.pop()
    other = driver.Device(cuda.device.index).make_context()
    try:
        with pytest.raises(AssertionError, match=r"Python was asked for a launch \(-1\)"):
            product.bound.direct()()
        monkeypatch.setattr(type(product.bound), "_otherwise", original)
        product.fill(4)
        product.bound.direct()()
        product.compare(4)
    finally:
        other.pop()
        other.detach()


def test_a_launch_waits_for_the_turn_of_another_thread(cuda, launches):
    """A graph of several launches does not come between the launches of another product."""
    import pycuda.driver as driver

    problem = replace(PROBLEM, m=33, op="syrk", trans_b=True)
    buffers = [cuda.allocate(4 * m * n) for m, n in ((33, 9), (33, 33))]
    buffers[0].write(integers((33, 9), np.float32))
    a = b = Matrix(buffers[0].address, 9)
    c = Matrix(buffers[1].address, 33)
    bound = cuda.load(render(CONFIG, problem)).bind(problem, 1.0, a, b, 1.0, c)
    launch, context = bound.direct(), driver.Device(cuda.device.index).retain_primary_context()

    def work():
        context.push()
        launch()
        driver.Context.pop()

    buffers[1].fill(0)
    for _ in range(launches.REPEATED + 1):
        work()
    assert bound._compiled.in_turn
    buffers[1].fill(0)
    thread = threading.Thread(target=work)
    with launches._turn:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join()
    cuda.synchronize()
    got, x = np.empty((33, 33), np.float32), integers((33, 9), np.float32)
    buffers[1].read(got)
    np.testing.assert_array_equal(got, x @ x.T)


def test_a_function_that_the_driver_lacks_is_named(cuda):
    with pytest.raises(DriverError, match="cuNoSuchThing failed: the driver has no such function"):
        Driver().call("cuNoSuchThing")
