"""What is shown while a tuner works: a live display on a terminal, else plain lines."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pymm.console import duration, significant
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.measure.workbench import Trial
from pymm.tune.finals import NOTHING_SAVED, gain_words
from pymm.tune.objective import Front

#: Seconds between two plain lines when nothing better was found.
PLAIN_EVERY = 10.0

#: Columns of the table in a file.
TABLE_WIDTH = 160


def clock(seconds: float) -> str:
    """Minutes and seconds, `3:07`; `any time` for infinity."""
    if math.isinf(seconds):
        return "any time"
    full = max(0, int(seconds))
    return f"{full // 60}:{full % 60:02d}"


@dataclass
class State:
    """The problem that is being tuned, so far."""

    title: str = ""
    space: int = 0
    best: Trial | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    compiling: int = 0
    ends: float = 0.0
    of: str = ""


class Progress:
    """Shows how a run goes on. A context manager: the live display ends with it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.state = State()
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._terminal = self.console.is_terminal
        self._printed_at = 0.0

    def __enter__(self) -> Progress:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, problem: Problem, kernel: str, space: int, ends: float, of: str) -> None:
        """A new problem, its number of valid configurations, when its time is over (by the
        monotonic clock) and which of how many it is (`3/12`).
        """
        self.state = State(f"{problem.slug} {kernel}".strip(), space, ends=ends, of=of)
        self._printed_at = time.monotonic()
        if not self._terminal:
            self.say(f"[{of}] {self.state.title}: {space} valid configurations")

    def trial(self, trial: Trial) -> None:
        """Show that a trial is over."""
        state = self.state
        state.outcomes[trial.outcome] += 1
        better = trial.outcome == "ok" and (
            state.best is None or trial.seconds < state.best.seconds
        )
        if better:
            state.best = trial
        if not self._terminal and (better or time.monotonic() - self._printed_at > PLAIN_EVERY):
            self._printed_at = time.monotonic()
            self.say("  " + self._line())
        self.tick(state.compiling)

    def tick(self, compiling: int) -> None:
        """Update the display; `compiling` sources wait for the compiler."""
        self.state.compiling = compiling
        if self._terminal:
            self._live.update(self._display(), refresh=True)

    def _line(self) -> str:
        state = self.state
        trials = f"{sum(state.outcomes.values())} tried"
        return f"{trials}, best {_best(state.best)}, {clock(state.ends - time.monotonic())} left"

    def _display(self) -> Table:
        state = self.state
        counts = ", ".join(f"{count} {name}" for name, count in state.outcomes.most_common())
        table = Table.grid(padding=(0, 2))
        table.add_row(f"[bold]{state.of}[/bold]", f"[bold]{state.title}[/bold]")
        table.add_row("best", _best(state.best))
        table.add_row("tried", f"{sum(state.outcomes.values())} of {state.space}: {counts}")
        table.add_row("compiling", str(state.compiling))
        table.add_row("time left", clock(state.ends - time.monotonic()))
        return table


def _best(trial: Trial | None) -> str:
    if trial is None:
        return "none yet"
    rate = f" ({trial.gflops:,.1f} GFLOP/s)" if trial.problem.flops else ""
    return f"{duration(trial.seconds)}{rate} {trial.config.slug}"


@dataclass(frozen=True)
class Line:
    """One line of the table that a run ends in: times in seconds, NaN where there is none; `gain`,
    `within` and `doubt` as `finals.Decision` has them, `tried` the configurations of all runs;
    `unsteady` is the spread of the baseline's times where that is too large, else 0.
    """

    problem: Problem
    default: float
    tuned: float
    reference: float
    library: str
    peak: float  # operations per second, 0 where unknown
    chosen: Config
    is_default: bool = False
    gain: tuple[float, float, float] = (math.nan,) * 3
    within: float = math.nan
    tried: int = 0
    doubt: str = ""
    unsteady: float = 0.0

    @property
    def words(self) -> str:
        """What tuning has gained, or why nothing is saved."""
        return self.doubt or gain_words(self.gain, self.within, self.is_default)


def show_lines(lines: list[Line], console: Console) -> None:
    """Print the table: GFLOP/s of default, tuned and baseline, the gain with its 95 % interval, and
    the chosen configuration; then the geometric mean of the ratios to the baseline, without lines
    whose times are doubtful or whose baseline's times spread too far, and how many these are.
    """
    library = next((line.library for line in lines if line.library), "reference")
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(file=console.file, width=TABLE_WIDTH)
    table = Table(title="GFLOP/s, medians of one interleaved run for each line", title_style="")
    for name in ("problem", "tried", "default", "tuned", library, "gain", f"tuned / {library}"):
        if name == "gain":  # in a narrow terminal it would vanish
            table.add_column(name, overflow="fold", min_width=len(NOTHING_SAVED))
        else:
            left = name == "problem"
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
    table.add_column("of peak", justify="right")
    table.add_column("chosen", overflow="fold")
    for line in lines:
        flops = line.problem.flops
        rates = [_rate(flops, s) for s in (line.default, line.tuned, line.reference)]
        tuned = math.nan if line.doubt else line.tuned
        ratio = _ratio(line.reference, tuned) + "?" * bool(line.unsteady and tuned > 0)
        of_peak = f"{flops / tuned / line.peak:.0%}" if line.peak and tuned > 0 else "-"
        row = (line.problem.slug, str(line.tried), *rates, line.words, ratio, of_peak)
        table.add_row(*row, line.chosen.slug)
    console.print(table)
    sure = [line for line in lines if not line.doubt]
    compared = [line for line in sure if line.reference > 0]
    ratios = [line.reference / line.tuned for line in compared if not line.unsteady]
    if len(ratios) > 1:
        mean = statistics.geometric_mean(ratios)
        console.print(f"tuned / {library}: geometric mean {mean:.2f} of {len(ratios)} products")
    if uncertain := [line.unsteady for line in compared if line.unsteady]:
        console.print(
            f"The times of {library} spread by up to {max(uncertain):.0%} in {len(uncertain)} of "
            f"{len(lines)} products: their ratios are uncertain (?), no mean counts them.",
            soft_wrap=True,
        )
    if len(sure) < len(lines):
        console.print(
            f"Nothing was saved for {len(lines) - len(sure)} of {len(lines)} products, whose times "
            "are doubtful: run the same command again on a quieter machine; each search goes on "
            "where it ended.",
            soft_wrap=True,
        )


def show_front(problem: Problem, front: Front, console: Console) -> None:
    """Print the configurations that none other is both faster and thriftier than."""
    if not console.is_terminal:
        console = Console(file=console.file, width=TABLE_WIDTH)
    table = Table(title=f"time and energy of {problem.slug} (Pareto front)", title_style="")
    for name in ("time", "energy", "GFLOP/J"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    for config, cost in front:
        table.add_row(
            duration(cost.seconds),
            f"{significant(cost.joules * 1e3)} mJ",
            f"{problem.flops / cost.joules / 1e9:.1f}",
            config.slug,
        )
    console.print(table)


def _rate(flops: int, seconds: float) -> str:
    return f"{flops / seconds / 1e9:,.1f}" if seconds > 0 else "-"


def _ratio(slower: float, faster: float) -> str:
    return f"{slower / faster:.2f}x" if slower > 0 and faster > 0 else "-"
