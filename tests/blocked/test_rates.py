"""The rates of a link: measured once, kept, measured again where the file is damaged."""

from __future__ import annotations

import json

import pytest

import pymm.simulator as simulator
from pymm.blocked import rates
from pymm.blocked.plan import Rates
from pymm.core.paths import state_directory

pytestmark = pytest.mark.simulator


@pytest.fixture
def path(cuda, monkeypatch):
    monkeypatch.setattr(rates, "SAMPLE", 2**20)
    return state_directory() / f"link-{cuda.device.slug}.json"


def test_measured_once_within_the_room_and_kept(cuda, path):
    cuda.reset()
    simulator.most_used(0)
    before = simulator.most_used(0)
    first = rates._kept(cuda, 300_000)
    assert simulator.most_used(0) - before <= 300_000
    assert json.loads(path.read_text()) == {"up": first.up, "down": first.down}
    assert rates._kept(cuda, 300_000) == first


@pytest.mark.parametrize("damage", ["", "{", '{"up": -1, "down": 2}', "[]", '{"up": 1e10}'])
def test_a_damaged_file_is_written_anew(cuda, path, damage):
    path.write_text(damage)
    found = rates._kept(cuda, 2**20)
    assert json.loads(path.read_text()) == {"up": found.up, "down": found.down}


def test_times_that_mean_nothing_are_not_kept(cuda, path):
    assert rates.link_rates(cuda, 2**20) == Rates()
    assert not path.exists()
