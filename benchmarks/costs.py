"""Cost of each method beside `max-softmax`: a whole training with the task's settings, and predictions.

    python benchmarks/costs.py [digits | mnist | cifar10 | …] [--device cuda] [--runs 3]
                               [--json results/speed/costs.json] [--commit HASH]

The digits themselves, or random pictures in a paper's task's shape and number. Of each stage of a training, the
autoencoder's too, the first epoch is left out and the next ones are timed, with their validations; UQGAN's joint
training is timed from validation to validation. The whole takes as many as the settings say; start-up is not part of
it. Methods with the same weights have one time, and an ensemble takes its members times that. All are timed in turn,
--runs times: the median counts. On a CPU it is the processor time of one thread, from which other programs take none;
on a GPU the clock's. `make results` shows the file, and gives `uqgan methods` the ratios.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from iteration import merge, used_precision
from trainings import N_TRAIN, random_task
from uqgan.acceleration import choose_device
from uqgan.config import Config, UqganConfig, load_config
from uqgan.data.tasks import Task, load_task
from uqgan.environment import COMMIT, describe, versions
from uqgan.log import Log
from uqgan.methods import METHODS, Method

FILE = Path(__file__).parent.parent / "results" / "speed" / "costs.json"
EPOCHS = 5
"""Number of epochs per stage; all except the first are timed."""
SAMPLES = {"cpu": 1_000, "cuda": 10_000}
AT_LEAST = 0.5
"""Time for which predictions are repeated, in seconds."""
BESIDE = "max-softmax"


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Marks(Log):
    """Log that records the time at the end of each epoch, per stage."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.marks = device, dict[str, list[float]]()

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        steps, marks = 0, self.marks.setdefault(name, [])

        def advance() -> None:
            nonlocal steps
            steps += 1
            if steps % (total // EPOCHS) == 0:
                marks.append(now(self.device))

        yield advance


def short(settings: Any) -> Any:
    """Section of the settings with the number of epochs of this benchmark."""
    if isinstance(settings, UqganConfig):
        return settings.model_copy(update={"iterations": EPOCHS * settings.validate_every})
    return settings.model_copy(update={"epochs": EPOCHS})


def n_epochs(settings: Any) -> float:
    return settings.iterations / settings.validate_every if isinstance(settings, UqganConfig) else settings.epochs


def has_weights_of(method: Method) -> tuple[object, ...]:
    """Key of the trained weights of a member."""
    return method.recipe.SETTINGS[0], method.sections, method.dropout, method.sees_ood


def time_epochs(method: Method, task: Task, config: Config) -> dict[str, list[float]]:
    """Seconds of each timed epoch, per section of the settings."""
    log = Marks(task.train.x.device)
    few = config.model_copy(update={name: short(getattr(config, name)) for name in method.sections})
    replace(method, members=1).fit(task, few, log)
    stages = dict(zip(method.sections, method.recipe.SETTINGS, strict=True))
    return {name: [b - a for a, b in pairwise(log.marks[stage])] for name, stage in stages.items()}


def time_prediction(method: Method, task: Task, config: Config) -> float:
    """Seconds of predictions by untrained networks."""
    device = task.train.x.device
    predictor = method.assemble(task.shape, task.n_classes, config).to(device)
    predictor.make_fast(config)
    x = torch.randint(256, (SAMPLES[device.type], *task.shape), dtype=torch.uint8, device=device)
    predictor.predict(x[: len(x) if device.type == "cuda" else 1], seed=0).cpu()  # the first call loads kernels
    marks = [now(device)]
    while marks[-1] - marks[0] < AT_LEAST:
        predictor.predict(x, seed=0).cpu()
        marks.append(now(device))
    return median(b - a for a, b in pairwise(marks))


def measure(task: Task, config: Config, runs: int) -> dict[str, tuple[float, float]]:
    """Seconds of a whole training and of the predictions, per method."""
    epochs: dict[tuple[object, ...], dict[str, list[float]]] = {}
    predictions: dict[str, list[float]] = {name: [] for name in METHODS}
    for turn in range(runs):
        done = set()
        for name, method in METHODS.items():
            predictions[name].append(time_prediction(method, task, config))
            key = has_weights_of(method)
            if key not in done:
                done.add(key)
                timed = epochs.setdefault(key, {section: [] for section in method.sections})
                for section, seconds in time_epochs(method, task, config).items():
                    timed[section] += seconds
            print(f"turn {turn + 1} of {runs}: {name}", flush=True)
    found = {}
    for name, method in METHODS.items():
        stages = epochs[has_weights_of(method)]
        one = sum(n_epochs(getattr(config, section)) * median(seconds) for section, seconds in stages.items())
        found[name] = (method.members * one, median(predictions[name]))
    return found


def figures(value: float) -> float:
    """Value rounded to three significant digits, more than measurements repeat."""
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="digits", choices=["digits", *N_TRAIN])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=FILE)
    parser.add_argument("--commit", default=COMMIT)
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    torch.set_num_threads(1)
    task = (load_task("digits") if chosen.task == "digits" else random_task(chosen.task)).to(device)
    config = load_config(chosen.task).model_copy(update={"fresh": True})
    found = measure(task, config, chosen.runs)
    beside = found[BESIDE]
    rows = [
        {
            "task": chosen.task,
            "method": name,
            "training_seconds": figures(training),
            "training_ratio": figures(training / beside[0]),
            "prediction_seconds": figures(prediction),
            "prediction_ratio": figures(prediction / beside[1]),
            "samples": SAMPLES[device.type],
            "device": describe(device),
            "threads": 1,
            "precision": used_precision(config.precision, device),
            "runs": chosen.runs,
            "command": shlex.join(["python", "benchmarks/costs.py", *sys.argv[1:]]),
            "commit": chosen.commit,
            "versions": {key: versions()[key] for key in ("torch", "python")},
        }
        for name, (training, prediction) in found.items()
    ]
    for row in rows:
        print(
            f"{row['method']:15} training {row['training_seconds']:8} s ({row['training_ratio']} x)  "
            f"{row['samples']:,} predictions {row['prediction_seconds']:8} s ({row['prediction_ratio']} x)"
        )
    merge(chosen.json, rows, ("task", "method", "device"))


if __name__ == "__main__":
    main()
