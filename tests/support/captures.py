"""Graphs that a user captures: begun, ended and launched through the driver, for PyCUDA cannot."""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import byref, c_int, c_uint64, c_void_p

from pymm.backends.cuda.driver import Driver

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


class CapturedGraph:
    """What was captured, ready to be launched any number of times."""

    def __init__(self, driver: Driver, graph: c_void_p) -> None:
        self._driver, self._graph, self._runnable = driver, graph, c_void_p()
        driver.call("cuGraphInstantiateWithFlags", byref(self._runnable), graph, c_uint64(0))

    def launch(self, stream: int) -> None:
        self._driver.call("cuGraphLaunch", self._runnable, c_void_p(stream))

    def destroy(self) -> None:
        """Give it back: the driver then tells who owns something for it."""
        self._driver.call("cuGraphExecDestroy", self._runnable)
        self._driver.call("cuGraphDestroy", self._graph)


@contextmanager
def captured(driver: Driver, stream: int, mode: int = GLOBAL):
    """Capture what is put on a stream; yields a list that holds the graph in the end."""
    driver.call("cuStreamBeginCapture_v2", c_void_p(stream), c_int(mode))
    made: list[CapturedGraph] = []
    graph = c_void_p()
    try:
        yield made
    except BaseException:
        driver.quick.cuStreamEndCapture(c_void_p(stream), byref(graph))
        raise
    driver.call("cuStreamEndCapture", c_void_p(stream), byref(graph))
    made.append(CapturedGraph(driver, graph))
