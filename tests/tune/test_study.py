"""Asking and telling: nothing invalid, nothing twice, nothing lost, and good ones soon."""

import itertools
import json
import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial

from pymm.core.device import Device
from pymm.core.errors import Busy
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure.workbench import OUTCOMES, Trial
from pymm.tune import strategies
from pymm.tune.storage import open_storage, open_study
from pymm.tune.study import LASTING, SAMPLERS, Search
from pymm.tune.trial_log import repair

PROBLEM = Problem(256, 256, 256)
DEVICE = Device("recorder", "cuda", capability=(9, 0), memory_bytes=2**33)
KERNEL = find_kernel("register_tile")
VALID = KERNEL.configs(PROBLEM, DEVICE)[0]
TINY = find_kernel("shared_tile").configs(PROBLEM, DEVICE)[0]


def seconds(config):
    """A smooth landscape with its best at MB = NB = 128, TA = TB = 8, KB = 16."""
    wanted = dict(MB=128, NB=128, KB=16, TA=8, TB=8)
    apart = sum(abs(math.log2(getattr(config, name) / v)) for name, v in wanted.items())
    return 1e-3 * (1 + apart)


def trial(config, outcome="ok"):
    found = seconds(config) if outcome in ("ok", "too_slow") else math.nan
    return Trial(PROBLEM, config, outcome, found)


def new_search(sampler="local", configs=VALID, seed=0):
    return Search(optuna.create_study(), configs, sampler, seed)


@given(
    st.integers(0, 4).flatmap(
        lambda names: st.lists(
            st.lists(st.integers(1, 3), min_size=names, max_size=names), min_size=1, max_size=20
        )
    ),
    st.data(),
)
def test_neighbours_differ_in_few_parameters(rows, data):
    """Also of a space with one configuration, or with a parameter that has one value."""
    pool = strategies.Pool([dict(zip("abcd", row, strict=False)) for row in rows])
    centres = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=3))
    most = data.draw(st.integers(0, 4))
    differ = [
        [sum(a != b for a, b in zip(row, rows[c], strict=True)) for c in centres] for row in rows
    ]
    wanted = [any(changes <= most for changes in of_row) for of_row in differ]
    assert pool.neighbours(centres, most).tolist() == wanted


def test_features_of_parameters_that_depend_on_each_other():
    """Rows of a block, threads along them and an independent flag, where a thread has 2 to 8 rows:
    the logarithm of rows per thread.
    """
    rows = [
        {"rows": 2**r, "threads": 2**t, "flag": f}
        for r, t, f in itertools.product(range(4, 8), range(2, 5), range(2))
        if 1 <= r - t <= 3
    ]
    pool = strategies.Pool(rows)
    per_thread = [math.log2(row["rows"] / row["threads"]) for row in rows]
    assert (pool.features[:, :3] == pool.points).all()
    assert pool.features[:, 3:].T.tolist() == [[(x - 1) / 2 for x in per_thread]]


def test_a_product_of_parameters_that_is_bounded_is_a_feature():
    rows = [{"m": 2**a, "n": 2**b} for a in range(4) for b in range(4) if a + b <= 3]
    pool = strategies.Pool(rows)
    assert pool.features[:, 2].tolist() == [(math.log2(row["m"] * row["n"])) / 3 for row in rows]


@given(
    st.integers(0, 3).flatmap(
        lambda names: st.lists(
            st.lists(st.integers(1, 3), min_size=names, max_size=names), min_size=1, max_size=12
        )
    )
)
def test_features_are_in_the_unit_cube(rows):
    """Also where parameters are equal, opposite or constant."""
    features = strategies.Pool([dict(zip("abc", row, strict=False)) for row in rows]).features
    assert len(features) == len(rows) and ((features >= 0) & (features <= 1)).all()


def test_measurements_without_gain():
    def known(*seconds):
        return strategies.Known(dict(enumerate(seconds)), frozenset())

    assert known().without_gain() == 0
    assert known(math.nan, math.nan).without_gain() == 2
    assert known(1.0).without_gain() == 0
    assert known(math.nan, 1.0, 2.0, 0.5).without_gain() == 0
    assert known(1.0, 0.5, 0.499, math.nan, 0.9).without_gain() == 3  # 0.499 is no gain


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_invalid_and_nothing_twice(sampler):
    """Batches of five under way at once, a third of them failing."""
    search, seen, batch = new_search(sampler), [], []
    for step in range(60):
        number, config = search.ask()
        assert config in VALID and not KERNEL.violations(config, PROBLEM, DEVICE)
        assert config not in seen
        seen.append(config)
        batch.append((number, config))
        if len(batch) == 5:
            number, config = batch.pop(step % 5)
            search.tell(number, trial(config, ["ok", "ok", "wrong"][step % 3]))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_space_can_be_used_up(sampler):
    """Every configuration exactly once, then None: no endless search for a new one."""
    search, seen = new_search(sampler, TINY), []
    while (asked := search.ask()) is not None:
        seen.append(asked[1])
        search.tell(asked[0], Trial(PROBLEM, asked[1], "ok", 1e-3))
    assert sorted(c.slug for c in seen) == sorted(c.slug for c in TINY)
    assert search.exhausted and search.ask() is None


def test_a_trial_that_is_not_worth_repeating_is_pruned(tmp_path):
    """Its rough time is an intermediate value, which the next run takes over."""
    with open_storage(tmp_path / "j") as storage:
        search = Search(open_study(storage, "k", {}), VALID[:9], "exhaustive")
        for outcome in ("ok", "too_slow", "wrong"):
            number, config = search.ask()
            search.tell(number, trial(config, outcome))
        states = [one.state.name for one in search.study.get_trials()]
        assert states == ["COMPLETE", "PRUNED", "FAIL"]
        known = dict(search.known.seconds)
    with open_storage(tmp_path / "j") as storage:
        search = Search(open_study(storage, "k", {}), VALID[:9], "exhaustive")
        assert search.known.seconds == pytest.approx(known, nan_ok=True)
        assert list(search.ranking) == VALID[:1]


def test_one_configuration_is_a_space():
    search = new_search(configs=TINY[:1])
    assert search.ask()[1] == TINY[0]
    assert search.ask() is None
    with pytest.raises(ValueError, match="no configuration"):
        new_search(configs=[])


@pytest.mark.parametrize("sampler", ["local", "tpe", "random"])
def test_same_seed_same_search(sampler):
    def run(seed):
        search, asked = new_search(sampler, seed=seed), []
        for _ in range(25):
            number, config = search.ask()
            search.tell(number, trial(config))
            asked.append(config)
        return asked

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_queue_comes_first_and_only_once():
    """The default, then stored ones; what is not valid here or repeated is left out."""
    foreign = find_kernel("naive").default_config
    default = KERNEL.default_config
    search = new_search()
    search.enqueue([default, VALID[7], default, foreign, VALID[7]])
    search.enqueue([default])
    assert [search.ask()[1] for _ in range(2)] == [default, VALID[7]]
    assert search.ask()[1] not in (default, VALID[7])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_trial_says_where_it_came_from(sampler):
    search = new_search(sampler)
    search.enqueue({KERNEL.default_config: "queue", VALID[7]: "warm"})
    found = []
    for _ in range(40):
        number, config = search.ask()
        found.append(search.origin(number))
        search.tell(number, trial(config))
    assert found[:2] == ["queue", "warm"] and set(found) <= set(strategies.ORIGINS)
    assert [t.user_attrs["origin"] for t in search.study.trials] == found
    wanted = {
        "local": {"random", "neighbour"},
        "tpe": {"model"},
        "random": {"random"},
        "exhaustive": {"queue"},
    }
    assert wanted[sampler] <= set(found[2:]) <= wanted[sampler] | {"model"}


@pytest.mark.parametrize("most, spent, left", [(9, 0.0, 3), (9, 0.4, 2), (None, 0.2, 6), (2, 0, 2)])
def test_the_queue_gets_a_third(most, spent, left):
    """Of the trials or of the time, but the default and one more are always tried."""
    search = new_search()
    search.enqueue(VALID[:6])
    asked = 0
    for _ in range(9):
        search.limit_queue(most, spent)
        number, config = search.ask()
        asked += search.origin(number) == "queue"
        search.tell(number, trial(config))
    assert asked == left == search.from_queue and not search.queued


def test_the_most_promising_of_what_is_compiled_is_measured_next():
    """By all results so far, however early it was asked for; by age while they are few."""
    search, ordered = new_search(), sorted(VALID, key=seconds)
    tried = ordered[40::20][:40]
    search.enqueue(tried)
    for count in range(len(tried)):
        if count < strategies.START:
            assert search.most_promising([ordered[-1], ordered[0]]) == 0
        number, config = search.ask()
        search.tell(number, trial(config))
    assert search.most_promising([ordered[-1], ordered[-2], ordered[0], ordered[-3]]) == 2
    assert new_search("random").most_promising([ordered[-1], ordered[0]]) == 0


def test_most_questions_go_near_the_best():
    """To two changes from one of the four best; every second to one change from the very best, and
    every eighth (while nothing is gained, every second) anywhere, which far from the best is where
    little is known.
    """
    search, far = new_search(), {True: [], False: []}
    for count in range(80):
        best = [search.configs.index(config) for config in search.best_configs(4)]
        free = search.known.free(search.pool)
        one, two = (
            set(free[search.pool.neighbours(best[:n], c)[free]]) for n, c in ((1, 1), (4, 2))
        )
        number, config = search.ask()
        index = search.configs.index(config)
        if count >= strategies.START:
            gained = search.known.without_gain() < strategies.PATIENCE
            wide = count % (8 if gained else 2) == 1
            far[gained] += [index not in two] if wide else []
            assert wide or not two or index in two, count
            assert count % strategies.CLIMB or not one or index in one, count
        search.tell(number, trial(config))
    assert any(far[True]) and any(far[False])


def test_best_counts_only_what_is_right():
    search = new_search(configs=TINY)
    outcomes = ["too_slow", "ok", "wrong", "crashed"]
    for _, outcome in zip(TINY, outcomes, strict=False):
        number, config = search.ask()
        search.tell(number, Trial(PROBLEM, config, outcome, 1e-9 if outcome != "ok" else 5e-3))
    assert search.best[1] == 5e-3
    assert len(search.best_configs(9)) == 1


def test_all_failing_is_survived():
    """A surrogate without a single time still names new configurations."""
    search = new_search()
    for _ in range(30):
        number, config = search.ask()
        search.tell(number, trial(config, "crashed"))
    assert search.best is None and len(search) == 30


@pytest.mark.parametrize("sampler", ["local", "tpe"])
def test_a_killed_run_goes_on(tmp_path, sampler):
    """All results are known, what was under way is asked for first, the rest as if not stopped."""
    path, done = tmp_path / "deep" / "study.journal", {}
    with open_storage(path) as storage:
        search = Search(open_study(storage, "register_tile", {"source": "a"}), VALID, sampler)
        for _ in range(12):
            number, config = search.ask()
            search.tell(number, trial(config, "wrong" if len(done) == 5 else "ok"))
            done[config] = True
        begun = [search.ask()[1] for _ in range(2)]
    with open_storage(path) as storage:
        search = Search(open_study(storage, "register_tile", {"source": "a"}), VALID, sampler)
        assert len(search) == 12
        assert search.best[1] == min(seconds(c) for c in search.ranking)
        assert [search.ask()[1] for _ in range(2)] == begun
        number, config = search.ask()
        assert config not in done and config not in begun


def failed(search, config, outcome):
    """A trial of a configuration that ended so, for a study."""
    return create_trial(
        state=TrialState.FAIL,
        params=config.as_dict(),
        distributions=search._space,
        user_attrs={"outcome": outcome},
    )


def test_what_was_left_unmeasured_comes_first_in_its_order():
    """Also if it is left once more, if another tuner had it too, and if it is in the queue."""
    search = new_search()
    search.enqueue(VALID[:2])
    begun = [search.ask() for _ in range(4)]
    (number, config), *others = begun
    search.study.add_trial(failed(search, config, "repeated"))
    for one in reversed(others):
        search.forget(*one)
    search.forget(number, config)

    search = Search(search.study, VALID)
    search.forget(*search.ask())
    search = Search(search.study, VALID)
    search.enqueue(VALID[:3])
    assert search.queued == 5 and search.from_queue == 2
    assert [search.ask()[1] for _ in range(4)] == [config for _, config in begun]
    assert search.queued == 1 and search.from_queue == 2
    assert search.ask()[1] == VALID[2] and search.from_queue == 3 and not search.queued


def test_what_an_older_pymm_gave_up_stays_given_up():
    """Its studies may have the leavings of many runs."""
    search = new_search()
    search.study.add_trial(failed(search, VALID[3], "interrupted"))
    search.study.add_trial(failed(search, VALID[4], "unmeasured"))
    search = Search(search.study, VALID)
    assert search.queued == 1 and search.ask()[1] == VALID[4]


def test_an_exhaustive_search_has_no_limit_for_its_queue():
    search = new_search("exhaustive", VALID[:9])
    search.enqueue(VALID[5:9])
    for _ in range(4):
        search.limit_queue(4, 1.0)
        number, config = search.ask()
        search.tell(number, trial(config))
        assert config in VALID[5:9]


@pytest.mark.parametrize("outcome", [o for o in OUTCOMES if o not in LASTING])
def test_what_may_have_been_the_machine_is_not_remembered(tmp_path, outcome):
    """Only what a configuration is guilty of excludes it from the next run of its study."""
    told = {}
    with open_storage(tmp_path / "j") as storage:
        search = Search(open_study(storage, "k", {}), VALID[:8])
        for kind in (outcome, *LASTING):
            number, config = search.ask()
            search.tell(number, Trial(PROBLEM, config, kind, 1e-3))
            told[kind] = config
        assert len(search) == 5, "in the run itself it is, so that it is not asked for for ever"
    with open_storage(tmp_path / "j") as storage:
        search = Search(open_study(storage, "k", {}), VALID[:8], "exhaustive")
        assert len(search) == 4
        asked = []
        while (one := search.ask()) is not None:
            asked.append(one[1])
    assert told[outcome] in asked and not {told[kind] for kind in LASTING} & set(asked)


def test_which_study_is_resumed(tmp_path):
    with open_storage(tmp_path / "j") as storage:

        def name(resume="auto", **facts):
            return open_study(storage, "k", {"source": "a", **facts}, resume).study_name

        assert name() == "k-1"
        assert name() == "k-1"
        assert name(resume="never") == "k-2"
        assert name() == "k-2"
        assert name(source="b") == "k-3", "another source: nothing measured before counts"
        assert name(source="b") == "k-3"
        assert open_study(storage, "other-k", {}).study_name == "other-k-1"


def damaged(tmp_path, change):
    path = tmp_path / "j"
    with open_storage(path) as storage:
        search = Search(open_study(storage, "k", {}), TINY)
        number, config = search.ask()
        search.tell(number, Trial(PROBLEM, config, "ok", 1e-3))
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize("tail", [b'{"op_code":4,"wor', b"{", b"\x00\xff\x00", b'{"a":1}'])
def test_half_written_tail_is_cut_off(tmp_path, tail):
    path = damaged(tmp_path, lambda text: text + tail)
    with open_storage(path) as storage:
        search = Search(open_study(storage, "k", {}), TINY)
        assert len(search) == 1
        number, config = search.ask()
        search.tell(number, Trial(PROBLEM, config, "ok", 2e-3))
    with open_storage(path) as storage:
        assert len(Search(open_study(storage, "k", {}), TINY)) == 2


@pytest.mark.parametrize("line", [b"#", b"{}", b'{"op_code": 99, "worker_id": "x"}'])
def test_a_damaged_journal_is_named_and_kept(tmp_path, line):
    """Under a name of its own each time: nothing that was set aside is lost by the next damage."""
    said = []
    for name in ("j.damaged", "j.damaged-1"):
        path = damaged(tmp_path, lambda text: text.replace(b"\n", b"\n" + line + b"\n", 1))
        before = path.read_bytes()
        with open_storage(path, said.append) as storage:
            assert len(Search(open_study(storage, "k", {}), TINY)) == 0
        assert (tmp_path / name).read_bytes() == before
        assert str(path) in said[-1] and f"kept as {tmp_path / name}" in said[-1]
    assert len(said) == 2
    assert repair(tmp_path / "nothing") == ""


def test_two_tuners_of_one_journal(tmp_path):
    with open_storage(tmp_path / "j"), pytest.raises(Busy, match="another tuner"):  # noqa: SIM117
        with open_storage(tmp_path / "j"):
            pass
    with open_storage(tmp_path / "j"):
        pass


def test_journal_tells_what_happened(tmp_path):
    """Outcomes and parameters stand in the journal, as optuna-dashboard shows them."""
    with open_storage(tmp_path / "j") as storage:
        search = Search(open_study(storage, "k", {"device": "recorder"}), TINY)
        number, config = search.ask()
        search.tell(number, Trial(PROBLEM, config, "crashed", detail="killed by SIGSEGV"))
    with open_storage(tmp_path / "j") as storage:
        (found,) = optuna.load_study(study_name="k-1", storage=storage).trials
    assert found.user_attrs == {
        "origin": "random",
        "outcome": "crashed",
        "detail": "killed by SIGSEGV",
    }
    assert found.params == config.as_dict()
    for line in (tmp_path / "j").read_text().splitlines():
        json.loads(line)
