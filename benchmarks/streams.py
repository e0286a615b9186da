"""Several runs in one process, each on a CUDA stream of its own: the alternative to processes under MPS.

    python benchmarks/streams.py mnist [--runs 1 2 4 8] [--method uqgan] [--steps 200]
                                 [--json results/speed/streams.json]

A thread per run, on random pictures as in iteration.py. Threads take turns step by step, so that each captures and
replays its own CUDA graph without another in between; what they ask of the GPU may run side by side. Time is that of a
step of all runs together. The graphs share one generator of random numbers here, so this says how fast it would be, not
that results would be those of runs alone. On a CPU there are no streams: it only shows that the script works.
"""

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from iteration import SHAPES, Stopwatch, merge, settings, train, used_precision
from uqgan.acceleration import choose_device
from uqgan.config import Config
from uqgan.environment import COMMIT, describe, versions

WARM = {"cuda": 10, "cpu": 1}


class Turns:
    """Lets one thread at a time run, the next after each step; times the steps of all from `first` to `last`."""

    def __init__(self, lanes: int, first: int, last: int) -> None:
        self.order, self.first, self.last = list(range(lanes)), first, last
        self.lanes, self.arrived = lanes, {first: 0, last: 0}
        self.marks: dict[int, float] = {}
        self.changed = threading.Condition()

    def wait(self, lane: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.order[0] == lane)

    def pass_on(self, lane: int) -> None:
        with self.changed:
            self.order.append(self.order.pop(0))
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.order[0] == lane)

    def leave(self) -> None:
        with self.changed:
            self.order.pop(0)
            self.changed.notify_all()

    def arrive(self, step: int) -> None:
        if step in self.arrived:
            self.arrived[step] += 1
            if self.arrived[step] == self.lanes:  # the last one: the clock is read when the GPU has caught up
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.marks[step] = time.perf_counter()

    @property
    def ms(self) -> float:
        return 1e3 * (self.marks[self.last] - self.marks[self.first]) / (self.last - self.first)


class Lane(Stopwatch):
    """Log of one run, which passes on to the next one after each step."""

    def __init__(self, turns: Turns, number: int) -> None:
        super().__init__(turns.first, turns.last)
        self.turns, self.number = turns, number

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        def advance() -> None:
            self.step += 1
            self.turns.arrive(self.step)
            self.turns.pass_on(self.number)

        yield advance


def run(name: str, method: str, config: Config, device: torch.device, lane: Lane) -> None:
    lane.turns.wait(lane.number)
    try:
        with torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else nullcontext():  # type: ignore[no-untyped-call]
            train(name, method, config, device, lane, eager=False)
    finally:
        lane.turns.leave()


def measure(name: str, method: str, lanes: int, steps: int, device: torch.device) -> dict[str, Any]:
    first = WARM[device.type]
    config, turns = settings(name, first + steps + 1, eager=False), Turns(lanes, first, first + steps)
    threads = [
        threading.Thread(target=run, args=(name, method, config, device, Lane(turns, number)))
        for number in range(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(turns.marks) < 2:
        raise SystemExit(f"{name}: a run failed")
    found = versions()
    return {
        "task": name,
        "method": method,
        "runs": lanes,
        "ms_per_iteration_of_all": round(turns.ms, 3),
        "precision": used_precision(config.precision, device),
        "device": describe(device),
        "commit": COMMIT,
        "versions": {key: found[key] for key in ("torch", "python")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(SHAPES), metavar="TASK")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--method", default="uqgan", choices=["uqgan", "uqgan-mc"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    for name in chosen.tasks:
        rows = [measure(name, chosen.method, lanes, chosen.steps, device) for lanes in chosen.runs]
        alone = rows[0]["ms_per_iteration_of_all"] / rows[0]["runs"]
        for row in rows:
            ms = row["ms_per_iteration_of_all"]
            print(f"{name}: {row['runs']} runs {ms:.2f} ms, {row['runs'] * alone / ms:.2f} times the throughput")
        if chosen.json:
            merge(chosen.json, rows, ("task", "method", "runs", "device"))


if __name__ == "__main__":
    main()
