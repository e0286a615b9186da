"""Time of the pure functions on one CPU core: OoD metrics of 100,000 scores, bootstrap intervals, L_R, a critic step.

And of a whole evaluation, with its 1,000 resamples, of random predictions for a setting's whole test side: as the data
here have it, and of CIFAR10 with all OoD sets of the paper, 66,032 samples. Evaluations use all cores.

python benchmarks/core.py [--record]

With --record only the largest evaluation is timed, once, and written into results/speed/evaluation.json.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import joblib
import torch

from predict import TEST_SIDES
from uqgan import metrics, paper
from uqgan.environment import circumstances
from uqgan.errors import count
from uqgan.evaluation import Outputs, evaluate
from uqgan.files import write_json
from uqgan.losses import critic_loss
from uqgan.models.gan import Critic
from uqgan.regulariser import spread_loss
from uqgan.uncertainty import Prediction

RESULTS = Path(__file__).parent.parent / "results" / "speed"


def best_ms(work: Callable[[], object], times: int = 7) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return 1e3 * min(found)


def random_prediction(n: int, shift: float) -> Prediction:
    epistemic = (2 * torch.randn(n) + shift).sigmoid()
    foreignness = (epistemic + 0.1 * torch.randn(n)).clamp(min=0)  # some are tied at 0
    return Prediction(torch.randn(n, 5).softmax(1), torch.rand(n), epistemic, foreignness)


def outcome(known: int, sets: Sequence[int]) -> Outputs:
    ood = {f"set {k}": random_prediction(n, 1 + k / 3) for k, n in enumerate(sets)}
    return Outputs(torch.randint(5, (known,)), random_prediction(known, 0.0), ood)


def whole_side() -> tuple[int, tuple[int, ...]]:
    """Test side of CIFAR10 with all OoD sets of the paper."""
    return TEST_SIDES["cifar10"][0], tuple(paper.sizes("cifar10").values())


def record() -> None:
    """Time the largest evaluation, and keep it."""
    side = whole_side()
    seconds = best_ms(partial(evaluate, outcome(*side)), times=1) / 1e3
    around = circumstances(torch.device("cpu"), seconds, None, {}, command="python benchmarks/core.py --record")
    facts = {key: around[key] for key in ("command", "commit", "seconds", "device", "versions")}
    load = round(os.getloadavg()[0], 1)
    found = {"samples": side[0] + sum(side[1]), "resamples": 1000, "cores": joblib.cpu_count(), "load": load}
    write_json(RESULTS / "evaluation.json", found | facts)
    print(found | facts)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--record"]:
        record()
        return
    torch.manual_seed(0)
    score, is_ood = torch.randn(100_000), torch.rand(100_000) < 0.5
    y = torch.randint(2, (256,))
    z, z_fake = torch.randn(256, 2), torch.randn(256, 2, requires_grad=True)
    D = Critic(2, 2)
    rows = {
        "the seven OoD metrics of 100,000 scores": lambda: metrics.ood_scores(score, is_ood),
        "the same, scores with many ties": lambda: metrics.ood_scores(score.round(), is_ood),
        "100 bootstrap resamples of AUROC": lambda: metrics.auroc_interval(score, is_ood, 100),
        "L_R and its gradient, batch 256, 2 classes": lambda: torch.autograd.grad(spread_loss(z, z_fake, y), z_fake),
        "critic loss and its gradient, batch 256": lambda: torch.autograd.grad(
            critic_loss(D, z, z_fake.detach(), y, 10.0), list(D.parameters())
        ),
    }
    for name, work in rows.items():
        print(f"{name:48} {best_ms(work):8.1f} ms")
    whole = whole_side()
    sides = {"mnist": TEST_SIDES["mnist"], "cifar10": TEST_SIDES["cifar10"], "cifar10 with LSUN": whole}
    for setting, side in sides.items():
        seconds = best_ms(partial(evaluate, outcome(*side)), times=2) / 1e3
        n, cores = side[0] + sum(side[1]), count(joblib.cpu_count(), "core")
        print(f"{f'evaluation of {setting}: {n:,} samples, {cores}':48} {seconds:8.1f} s")


if __name__ == "__main__":
    main()
