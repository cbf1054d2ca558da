"""The launches of a product as one CUDA graph. One driver call, of 2.5 us, queues all of them; each
launch by itself takes 4 us. launch.py decides which products become graphs.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from pymm.backends.cuda.driver import Driver, DriverError, shown

#: Most graphs of a process: each takes some 10 KiB of the driver's memory.
MOST_GRAPHS = 1024


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        ("sizes", c_uint * 7),
        ("parameters", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class _Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (
        ("from_port", c_ubyte),
        ("to_port", c_ubyte),
        ("type", c_ubyte),
        ("unused", c_ubyte * 5),
    )


#: Dependencies of a launch on the one before it: on its end, or as an early launch
#: (common/dependent_launch.cuh).
_ORDINARY, _EARLY = _Edge(0, 0, 0), _Edge(1, 0, 1)


class Graph:
    """Launches that run one after the other. Each is given by the arguments of `Driver.launcher`
    besides the stream, and its packed arguments. Raises `DriverError` if the driver cannot make the
    graph.
    """

    alive = 0

    def __init__(self, driver: Driver, launches: Sequence[tuple]) -> None:
        self._driver, self._made = driver, c_void_p()
        graph, before = c_void_p(), None
        driver.call("cuGraphCreate", byref(graph), c_uint(0))
        try:
            for launch in launches:
                before = self._add(graph, before, *launch)
            driver.call("cuGraphInstantiateWithFlags", byref(self._made), graph, c_uint64(0))
        finally:
            driver.call("cuGraphDestroy", graph)
        Graph.alive += 1
        weakref.finalize(self, _give_back, driver, self._made)  # at the latest at exit

    def _add(
        self,
        graph: c_void_p,
        before: c_void_p | None,
        function: int,
        sizes: tuple[int, ...],
        early: bool,
        arguments: bytes,
    ) -> c_void_p:
        node, extra = c_void_p(), shown(arguments)
        place = ctypes.addressof(extra)
        kernel = _Kernel(function, (c_uint * 7)(*sizes), None, place, None, None)
        alone = None, c_size_t(0), byref(kernel)
        self._driver.call("cuGraphAddKernelNode_v2", byref(node), graph, *alone)
        if before is not None:
            edge = byref(_EARLY if early else _ORDINARY)
            ends = byref(before), byref(node), edge, c_size_t(1)
            self._driver.call("cuGraphAddDependencies_v2", graph, *ends)
        return node

    @property
    def handle(self) -> int:
        """Its CUgraphExec."""
        return self._made.value or 0

    def launcher(self, stream: int) -> Callable[[], None]:
        """A call that launches the graph on a stream. It keeps the GIL, since the driver does not
        lock graphs against other threads.
        """
        launch, words = self._driver.quick.cuGraphLaunch, self._driver.words
        given = self._made, c_void_p(stream)

        def call(keep: Graph = self) -> None:
            code = launch(*given)
            if code:
                raise DriverError(f"cuGraphLaunch failed: {words(code)}")

        return call


def _give_back(driver: Driver, made: c_void_p) -> None:
    Graph.alive -= 1
    with suppress(DriverError):  # the context may be gone
        driver.call("cuGraphExecDestroy", made)
