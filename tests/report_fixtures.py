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
