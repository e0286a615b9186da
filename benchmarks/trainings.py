"""Time of a whole training of the methods that train by epochs, each alone on its device.

    python benchmarks/trainings.py mnist cifar10 [--methods entropy bayes …] [--device cuda]
                                   [--json results/speed/trainings.json] [--commit HASH]

Random pictures in the task's shape and number, the paper's networks and settings. All trainings start at once, as most
of their start-up is compiling; after its first epoch each waits for its turn, and two epochs with their validations are
timed while the others rest. The whole training takes as many epochs as the settings say; start-up is not part of it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from iteration import SHAPES, merge, used_precision
from uqgan.acceleration import choose_device
from uqgan.config import Config, load_config
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task
from uqgan.environment import COMMIT, describe, versions
from uqgan.log import Log
from uqgan.methods import METHODS

N_TRAIN = {"mnist": 24_476, "cifar10": 20_000, "cifar100": 20_000, "tiny-imagenet": 40_000}
TIMED_EPOCHS = 2
BY_EPOCHS = [name for name, method in METHODS.items() if method.recipe.SETTINGS[0] != "uqgan" and method.members == 1]


def random_task(name: str) -> Task:
    channels, size, n_classes = SHAPES[name]
    generator = torch.Generator().manual_seed(0)

    def pictures(n: int) -> Dataset:
        x = torch.randint(256, (n, channels, size, size), generator=generator, dtype=torch.uint8)
        return Dataset(x, torch.randint(n_classes, (n,), generator=generator))

    train, validation, few = pictures(N_TRAIN[name]), pictures(N_TRAIN[name] // 8), pictures(64)
    flip = name.startswith("cifar")
    names = tuple(map(str, range(n_classes)))
    return Task(name, name, names, train, validation, few, few, {}, {}, {"random": pictures(4096).x}, flip)


class Turns(Log):
    """Log that waits for this training's turn after the first epoch, times the next ones, and ends the process."""

    def __init__(self, place: Path, epoch_steps: int) -> None:
        super().__init__()
        self.place, self.epoch_steps, self.step, self.start = place, epoch_steps, 0, 0.0

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        def advance() -> None:
            self.step += 1
            if self.step in (self.epoch_steps, (1 + TIMED_EPOCHS) * self.epoch_steps) and torch.cuda.is_available():
                torch.cuda.synchronize()
            if self.step == self.epoch_steps:
                self.place.with_suffix(".ready").touch()
                while not self.place.with_suffix(".go").exists():
                    time.sleep(0.01)
                self.start = time.perf_counter()
            elif self.step == (1 + TIMED_EPOCHS) * self.epoch_steps:
                self.place.with_suffix(".done").write_text(str((time.perf_counter() - self.start) / TIMED_EPOCHS))
                os._exit(0)

        yield advance


def settings_of(name: str, method: str) -> tuple[Config, int, int]:
    """Settings, number of epochs, and steps per epoch."""
    config = load_config(name).model_copy(update={"fresh": True})
    own = getattr(config, METHODS[method].section)
    known = own.batch_size // 2 if METHODS[method].sees_ood else own.batch_size
    return config, own.epochs, -(-N_TRAIN[name] // known)


def work(name: str, method: str, device: torch.device, place: Path) -> None:
    torch.set_num_threads(1)
    config, _, epoch_steps = settings_of(name, method)
    METHODS[method].fit(random_task(name).to(device), config, Turns(place, epoch_steps))


def measure(jobs: list[tuple[str, str]], chosen: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    places = {job: folder / "-".join(job) for job in jobs}
    command = [sys.executable, __file__, "--device", chosen.device, "--work"]
    processes = {job: subprocess.Popen([*command, str(place), *job]) for job, place in places.items()}
    device = choose_device(chosen.device)
    started = time.monotonic()
    while any(not places[job].with_suffix(".ready").exists() and p.poll() is None for job, p in processes.items()):
        if time.monotonic() - started > chosen.patience:
            break
        time.sleep(0.1)
    for job, process in processes.items():
        if process.poll() is None and places[job].with_suffix(".ready").exists():
            places[job].with_suffix(".go").touch()
            process.wait()
            config, epochs, _ = settings_of(*job)
            seconds = float(places[job].with_suffix(".done").read_text())
            yield {
                "task": job[0],
                "method": job[1],
                "epochs": epochs,
                "seconds_per_epoch": round(seconds, 4),
                "seconds": round(epochs * seconds, 1),
                "precision": used_precision(config.precision, device),
                "device": describe(device),
                "commit": chosen.commit,
                "versions": {key: versions()[key] for key in ("torch", "python")},
            }
        else:
            process.kill()
            print(f"{job[1]} on {job[0]}: did not start", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default="mnist", help="mnist, cifar10, cifar100, tiny-imagenet")
    parser.add_argument("--methods", nargs="+", default=[m for m in BY_EPOCHS if m != "entropy"], choices=BY_EPOCHS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for the start of all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--work", nargs=3, metavar=("PLACE", "TASK", "METHOD"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        place, name, method = chosen.work
        work(name, method, choose_device(chosen.device), Path(place))
        return
    jobs = [(name, method) for name in chosen.tasks for method in chosen.methods]
    with TemporaryDirectory() as folder:
        for row in measure(jobs, chosen, Path(folder)):
            print(
                f"{row['task']:14} {row['method']:15} {row['seconds_per_epoch']:.3f} s an epoch, {row['seconds']:.1f} s"
            )
            if chosen.json:
                merge(chosen.json, [row], ("task", "method", "device"))


if __name__ == "__main__":
    main()
