"""What tests of reports share: measurements to read, and no pictures."""

import sys

import measured
import pytest


@pytest.fixture
def without_plots(monkeypatch):
    """As if Matplotlib were not installed: reports take milliseconds."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def folder(tmp_path):
    return measured.folder(tmp_path / "results", sparse=16)


#: One measurement of a report, as data.
ENTRY = {
    "problem": "f32-NN-64x64x64",
    "who": "pymm",
    "kernel": "00_reordered",
    "variant": "default",
    "config": "reordered-MB64-NB256-KB64",
    "seconds": 1e-4,
    "spread": 0.01,
    "rounds": 25,
}


def data(*entries, slug="a-gpu", schema=1):
    return {"schema": schema, "device": {"slug": slug}, "measurements": list(entries)}
