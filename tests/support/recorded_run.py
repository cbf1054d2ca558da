"""One run of the tuner on recorded workers, with all its files in a folder of its own."""

import io
import math
from dataclasses import replace

from recorded import NoCompiler, RecordedWorker
from rich.console import Console

from pymm.console import Stop
from pymm.core.device import Device
from pymm.kernels import find_kernel
from pymm.measure.worker_process import Site
from pymm.selection.store import load
from pymm.tune.options import parse
from pymm.tune.trial_log import read_trials
from pymm.tune.tuner import Tuner

GPU = Device(
    "recorded GPU",
    "cuda",
    capability=(9, 0),
    sms=132,
    shared_per_block=232448,
    shared_per_sm=233472,
    memory_bytes=2**33,
    peak_flops={"f32": 1e15},
)
KERNEL = find_kernel("register_tile")
BEST = KERNEL.config({"MB": 128, "NB": 128, "KB": 16, "TA": 8, "TB": 8})


def smooth(config, problem):
    """Seconds, best at `BEST`."""
    pairs = zip(config.parameters, BEST.parameters, strict=False)
    return 1e-4 * (1 + sum(abs(math.log2(x / y)) for (_, x), (_, y) in pairs))


def numbered(name):
    """One of several GPUs of a model, by its name in `--devices`."""
    return replace(GPU, index=name or 0, bus=f"0000:{name or 0:02x}:00.0")


class Run:
    """A tuner on recorded workers, with its files in `folder`. `device` is that of every worker, or
    a function of its name in `--devices`; `gpus` is what "all" finds.
    """

    def __init__(
        self,
        folder,
        arguments,
        outcome=smooth,
        device=GPU,
        worker=None,
        gpus=(),
        kernels="--kernels register_tile",
        **details,
    ):
        self.folder, self.text = folder, io.StringIO()
        self.workers, self.compilers = [], []
        self.stop = Stop()

        def hire(site):
            of = device if isinstance(device, Device) else device(site.device)
            self.workers.append((worker or RecordedWorker)(outcome, of, **details))
            return self.workers[-1]

        def open_compiler(compiler, count):
            self.compilers.append(NoCompiler())
            return self.compilers[-1]

        defaults = f"--shapes 256 --dtypes f32 {kernels} --sampler random"
        if "--stale" in arguments:
            defaults = "--sampler random"
        where = f"--storage {folder}/state --output {folder}/out --csv {folder}/trials.csv"
        options = parse(f"{defaults} {where} {arguments}".split())
        console = Console(file=self.text, width=200)
        self.tuner = Tuner(
            options, Site(), hire, open_compiler, console, self.stop, lambda: list(gpus)
        )
        self.status = self.tuner.run()
        self.output = self.text.getvalue()

    @property
    def asked(self):
        return [config for worker in self.workers for config in worker.asked]

    @property
    def rows(self):
        return list(read_trials(self.folder / "trials.csv"))

    @property
    def records(self):
        return load(GPU, self.folder / "out")
