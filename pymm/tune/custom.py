"""The search for the best configuration of a user's kernel: the sampler, the measuring process, the
comparison at the end and the files are those of pymm's own kernels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits

from pymm.console import Stop, duration, show_table
from pymm.core.device import Device
from pymm.core.errors import Error, NoDevice
from pymm.core.files import Workplace
from pymm.core.paths import config_directory, state_directory
from pymm.kernels import Config
from pymm.kernels.custom import CustomConfig, CustomKernel, CustomProblem
from pymm.measure.custom import save_arrays
from pymm.measure.precompile import Precompiler, compilers_beside
from pymm.measure.worker import Site, Worker, WorkerFailed, devices_alone
from pymm.runtime.custom import require_cuda
from pymm.selection.custom import CustomRecord, load_custom, put_custom, unusable
from pymm.selection.records import Environment
from pymm.tune.comparison import Comparison
from pymm.tune.devices import Crew
from pymm.tune.finals import Decision
from pymm.tune.progress import Progress
from pymm.tune.race import Race
from pymm.tune.session import Broken, Session, Setup
from pymm.tune.storage import open_storage, open_study
from pymm.tune.study import SAMPLERS, Search
from pymm.tune.trial_log import TrialLog

#: Seconds that one trial may take, its verification included.
TRIAL_SECONDS = 30.0

#: Part of the time that is kept for the comparison at the end, and its most seconds.
FINAL_PART, FINAL_MOST = 0.3, 15.0

#: Stored configurations of other sizes that a search begins with.
WARM = 6


class TuningFailed(Error, RuntimeError):
    """No configuration of a user's kernel can be chosen; the message says why."""


@dataclass(frozen=True)
class TunedKernel:
    """The result of `tune_kernel`: the chosen `config`, its median `seconds` and those of the
    default, in one interleaved run; `gain`, the ratio of these between the ends of its 95 %
    interval; how many configurations were `tried`, in all runs, of how many `valid` ones; the file
    of trials, and the one that the configuration was `saved` in (None: it was not). Where times
    stay doubtful, `doubt` says why nothing was saved: then `config` is the stored configuration or
    the default, and the gain is NaN.
    """

    problem: CustomProblem
    config: CustomConfig
    seconds: float
    default: CustomConfig
    default_seconds: float
    gain: tuple[float, float, float]
    tried: int
    valid: int
    trials: Path
    saved: Path | None
    doubt: str = ""

    def show(self) -> None:
        """Print a table of it."""
        low, ratio, high = self.gain
        gain = self.doubt or "the default is best"
        if self.config != self.default and not self.doubt:
            gain = f"{ratio:.2f}x ({low:.2f} to {high:.2f})"
        columns = ("problem", "tried", "default", "tuned", "gain", "chosen")
        row = (
            self.problem.slug,
            f"{self.tried} of {self.valid}",
            duration(self.default_seconds),
            duration(self.seconds),
            gain,
            self.config.slug,
        )
        show_table(columns, [row], numbers=("tried", "default", "tuned"))


def tune_kernel(
    kernel: CustomKernel,
    sizes: Mapping[str, int],
    *,
    trials: int | None = None,
    seconds: float | None = 60.0,
    device: Any = None,
    sampler: str = "local",
    seed: int = 0,
    limit: float = TRIAL_SECONDS,
    output: Path | None = None,
    storage: Path | None = None,
    console: Console | None = None,
) -> TunedKernel:
    """Search the fastest configuration of a user's kernel for these sizes, and store it.

    Each configuration is compiled ahead, verified against the reference, timed and verified again
    in a process of its own: one that is wrong, crashes or hangs longer than `limit` seconds costs a
    trial, not the search. The search ends after `seconds`, or after `trials` configurations more
    than earlier runs have tried (None: no limit), whichever comes first; with Ctrl-C it ends with
    what it has. The same
    call again goes on.

    `device`: "cuda", "cuda:1", 1 (left out: the first GPU); `sampler`: "local", "random", "tpe" or
    "exhaustive"; `seed`: that of the search and of the arrays. The configuration is stored in the
    folder `output` (default: the user's configuration; nothing, if the device is the simulator),
    the study and a CSV of all trials in `storage` (default: the user's state). What happens is
    printed on `console`.

    Raises `ValueError` for arguments that are not possible, `NoDevice`, `TuningFailed` if no
    configuration can be chosen, `Busy` if another run tunes the same, `StoreError` for a damaged
    file.
    """
    _check(trials, seconds, sampler, limit)
    console = console or Console()
    run = _Run(kernel, kernel.problem(sizes), seed, limit, console, Stop())
    with ExitStack() as held:
        held.enter_context(run.stop.listening())
        held.enter_context(threadpool_limits(1, user_api="blas"))
        run.open(held, device, output, storage)
        try:
            with devices_alone([run.device], run.stop, run.say):
                return run.search(held, trials, seconds, sampler)
        except WorkerFailed as failure:
            raise NoDevice(str(failure)) from None


def _check(trials: int | None, seconds: float | None, sampler: str, limit: float) -> None:
    for name, given in (("trials", trials), ("seconds", seconds), ("limit", limit)):
        if given is not None and not given > 0:
            raise ValueError(f"{name}={given!r} is not above 0")
    if trials is None and seconds is None:
        raise ValueError("a search has an end: give trials or seconds")
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler {sampler!r} is none of {', '.join(SAMPLERS)}")


@dataclass
class _Run:
    """One call of `tune_kernel`."""

    kernel: CustomKernel
    problem: CustomProblem
    seed: int
    limit: float
    console: Console
    stop: Stop

    def open(self, held: ExitStack, device: Any, output: Path | None, storage: Path | None) -> None:
        """Start the measuring process, compute the reference and see that files can be written."""
        worker = Worker(Site(device))
        held.callback(worker.stop)
        try:
            worker.start()
        except WorkerFailed as failure:
            raise NoDevice(str(failure)) from None
        self.crew, self.compiler = Crew([worker], self.say), worker.compiler
        self.device: Device = self.crew.device
        require_cuda(self.device)
        if 2 * self.problem.bytes > self.device.memory_bytes > 0:
            raise ValueError(
                f"{self.problem.slug} takes {self.problem.bytes / 2**30:.1f} GiB, too many for "
                f"{self.device.name} with {self.device.memory_bytes / 2**30:.1f}"
            )
        self.environment = Environment.of(self.device, self.compiler.toolchain)
        self.output = output or (config_directory() if self.device.times_are_real else None)
        self.stored = load_custom(self.device, self.output) if self.output else ()
        if self.output:
            put_custom([], self.device, self.output)
        self.folder = (storage or state_directory()) / "custom" / self.device.slug
        workplace = held.enter_context(Workplace("pymm-custom-"))
        save_arrays(workplace, *self.kernel.values(self.problem, self.seed))
        self.problem = replace(self.problem, folder=str(workplace))

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def search(
        self, held: ExitStack, trials: int | None, seconds: float | None, sampler: str
    ) -> TunedKernel:
        """Search, compare the best, store the winner."""
        began = time.monotonic()
        ends = began + (math.inf if seconds is None else seconds)
        valid, rejected = self.kernel.configs(self.problem, self.device)
        if not valid:
            most = ", ".join(f"{count}: {why}" for why, count in rejected.most_common(3))
            raise TuningFailed(f"{self.problem.slug}: every configuration is rejected ({most})")
        setup = self._setup(held)
        with self._study(valid, sampler) as search:
            race = Race({self.kernel.name: search})
            setup.progress.begin(self.problem, "", race.space, ends, "1/1")
            session = Session(self.problem, race, setup)
            reserve = 0.0 if seconds is None else min(FINAL_MOST, FINAL_PART * seconds)
            if len(race):
                self.say(f"goes on after {len(race)} configurations of earlier runs")
            try:
                session.run(ends, race.goal(trials), ends, reserve)
            except Broken as failure:
                if race.best is None:
                    raise TuningFailed(f"{self.problem.slug}: {failure}") from None
                self.say(str(failure))
            decision = self._decide(race, session, setup, ends)
            if not self.stop():
                race.reach_goal()
        return self._result(decision, len(race), race.space, setup.log.path)

    def _setup(self, held: ExitStack) -> Setup:
        ahead = compilers_beside(self.device)
        compiler = held.enter_context(Precompiler(self.compiler, ahead))
        self.folder.mkdir(parents=True, exist_ok=True)
        log = TrialLog(self.folder / "trials.csv", self.say, 0, self.compiler.toolchain)
        held.callback(log.close)
        progress = held.enter_context(Progress(self.console))
        given = self.crew, compiler, log, progress, self.stop, ahead, self.seed, self.limit
        return Setup(*given)

    @contextmanager
    def _study(self, valid: list[CustomConfig], sampler: str) -> Iterator[Search]:
        """The search in its journal, which begins with the default, what is stored for these sizes
        and what is stored for others.
        """
        facts = {
            "device": self.device.name,
            "driver": self.environment.driver,
            "compiler": self.environment.compiler,
            "source": self.problem.digest,
        }
        journal = self.folder / f"{self.problem.slug}.journal"
        with open_storage(journal, self.say) as storage:
            study = open_study(storage, self.kernel.name, facts)
            search = Search(study, valid, sampler, self.seed)
            first = {self._default: "queue"} | dict.fromkeys(self._warm(), "warm")
            search.enqueue(first)
            yield search

    @property
    def _default(self) -> CustomConfig:
        return self.kernel.default_for(self.problem, self.device)

    def _warm(self) -> list[CustomConfig]:
        """Stored configurations, of the nearest sizes first."""
        own = [r for r in self.stored if r.problem.kernel == self.kernel.name]
        nearest = sorted(own, key=lambda record: self._distance(record.problem))
        usable = [r.config for r in nearest if self._may_run(r)]
        return [self.kernel.placed(c, self.problem) for c in dict.fromkeys(usable)][:WARM]

    def _may_run(self, record: CustomRecord) -> bool:
        """Whether the configuration of a record, perhaps of other code, is one of the space."""
        same = replace(record, digest=self.problem.digest)
        return not unusable(self.kernel, same, self.problem, self.device)

    def _distance(self, other: CustomProblem) -> float:
        """By the logarithms of the sizes; infinite for problems with other sizes."""
        own, others = dict(self.problem.sizes), dict(other.sizes)
        if own.keys() != others.keys():
            return math.inf
        return sum(abs(math.log2(own[name] / others[name])) for name in own)

    def _decide(self, race: Race, session: Session, setup: Setup, ends: float) -> Decision:
        """The comparison of the best. Raises `TuningFailed`."""
        if not race.ranking:
            raise TuningFailed(f"{self.problem.slug}: {self._why_none(race)}")
        final = Comparison(self.problem, (self.kernel,), race, setup, session.expected)
        saved: list[Config] = [
            self.kernel.placed(record.config, self.problem)
            for record in self.stored
            if record.problem == self.problem and self._may_run(record)
        ]
        decision = final.decide(False, ends, saved)
        if decision is None:
            why = "; ".join(final.doubts) or "nothing works any more"
            why = "interrupted, nothing saved" if self.stop() else why
            raise TuningFailed(f"{self.problem.slug}: {why}")
        for doubt in final.doubts if not decision.doubt else ():
            self.say(f"left out: {doubt}")
        return decision

    @staticmethod
    def _why_none(race: Race) -> str:
        """The outcomes of a search in which nothing worked, the last one with its words."""
        if not len(race):
            return "no configuration was tried in time; give more seconds"
        (search,) = race.searches.values()
        last = ""
        for trial in search.study.get_trials(deepcopy=False):
            last = trial.user_attrs.get("detail") or last
        return f"none of {len(race)} configurations works; the last one: {last or 'no words'}"

    def _result(self, decision: Decision, tried: int, valid: int, trials: Path) -> TunedKernel:
        winner, saved = decision.winner, None
        chosen = self.kernel.placed(winner.config, self.problem)
        if decision.doubt:
            self.say(
                f"{decision.doubt}: make the same call again on a quieter machine; the search goes "
                "on where it ended"
            )
        elif self.output:
            record = CustomRecord(
                self.problem,
                chosen,
                winner.seconds,
                winner.spread,
                date.today().isoformat(),
                self.environment,
                self.problem.digest,
            )
            saved = put_custom([record], self.device, self.output)
            self.say(f"Saved in {saved}")
        else:
            self.say("The simulator's times mean nothing: saved only in a folder given as output.")
        return TunedKernel(
            self.problem,
            chosen,
            winner.seconds,
            self._default,
            decision.default_seconds,
            decision.gain,
            tried,
            valid,
            trials,
            saved,
            decision.doubt,
        )
