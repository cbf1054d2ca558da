"""What pymm says besides its results: to notebooks, and to the logger `pymm`."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest

import pymm
from pymm.backends import open_device


class Table(HTMLParser):
    """The rows of a table; text outside of cells is a fault."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ("table", "tr", "th", "td"), tag
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag != "table":
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert self.open[-1] in ("th", "td")
        self.rows[-1][-1] += data


A, B = np.ones((30, 20)), np.ones((20, 10))


@pytest.mark.parametrize(
    "told",
    [
        lambda: pymm.explain(A, B, device="cpu:1"),
        lambda: pymm.explain((3, 0), (0, 5), device="cpu:1"),
        lambda: pymm.explain_syrk(A, device="cpu:1"),
        lambda: pymm.plan(A, B, device="cpu:1"),
        lambda: pymm.plan(np.ones((0, 4)), np.ones((4, 4)), device="cpu:1"),
        lambda: pymm.plan_syrk(A, device="cpu:1"),
    ],
)
def test_a_notebook_shows_the_rows_of_str(told):
    told = told()
    rows = Table(told._repr_html_()).rows
    assert [f"{name:<15}{text}".rstrip() for name, text in rows] == str(told).splitlines()
    assert len(rows) > 2


def test_html_of_a_device_is_escaped(monkeypatch):
    told = pymm.explain(A, B, device="cpu:1")
    object.__setattr__(told, "reason", "<script>alert('&')</script>")
    assert ["because", "<script>alert('&')</script>"] in Table(told._repr_html_()).rows


def test_choices_and_compilations_are_logged(caplog, tmp_path):
    with caplog.at_level(logging.DEBUG, "pymm"):
        backend = open_device("cpu:1", tmp_path)
        product = pymm.plan(np.ones((33, 21)), np.ones((21, 11)), device=backend)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    said = f"f64-NN-33x11x21: {product.config.slug}, {product.choice.reason}"
    assert ("DEBUG", said) in lines
    begins = f"compiled {product.config.slug} for cpu-"
    assert [name for name, line in lines if line.startswith(begins)] == ["INFO"]


def test_what_is_warned_of_once_is_logged_each_time(caplog):
    backend = open_device("cpu:1")
    with caplog.at_level(logging.INFO, "pymm"), warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(3):
            backend.warn_once("too little of something, for a test")
    assert len(given) == 1
    assert [r.getMessage() for r in caplog.records].count(
        f"{backend.device.name}: too little of something, for a test"
    ) == 3


def test_nothing_is_printed_unless_a_program_asks_for_the_log():
    code = "import numpy as np, pymm; pymm.matmul(np.eye(3), np.eye(3), device='cpu:1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
