"""Is the shield whole? What generator, critic and classifier are like at each validation, and sentences about it.

A measurement is names and numbers for a row of the log: `critic.distance`, `gradient.C`, `gradient.G`, `gradient.D`,
and of each class k `spread.k` and `out_of_class.k`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from uqgan.acceleration import own_randomness
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.models.autoencoders import Autoencoder
from uqgan.shapes import Labels, Scalar

PER_CLASS = 64
"""Real codes and generated ones that are held against each other."""
PICTURES = 1024
"""Generated examples of all classes that the classifier is asked about, at most: decoding them takes the time."""
SENTENCES_SHOWN = 5
Rows = Sequence[Mapping[str, Any]]


class Fault(NamedTuple):
    """What is wrong with a class's shield if one of its numbers is below the limit."""

    limit: float
    finding: str
    verdict: str
    advice: str


FAULTS = {
    # Two overlapping Gaussians without the regulariser, a shield known to be open, settle at 0.10 to 0.14.
    "spread": Fault(
        0.25, "generated codes spread over {:.2g} of the class's own width", "collapsed", "a larger uqgan.lambda_reg"
    ),
    "out_of_class": Fault(
        0.5, "the classifier calls {:.2g} of its examples out-of-class", "not shielded", "a larger uqgan.lambda_cl"
    ),
}


class Health:
    """Holds the generated examples of each class against the same real codes at every validation.

    A class without a width of its own (fewer than two training samples, or all alike) is left out.
    """

    @torch.no_grad()
    def __init__(self, C: nn.Module, G: nn.Module, D: nn.Module, A: Autoencoder, task: Task, seed: int) -> None:
        self.C, self.G, self.D, self.A, self.seed = C, G, D, A, seed
        real = task.train[some_of_each(task.train.y, task.n_classes)]
        chunks = zip(torch.split(real.x, CHUNK), torch.split(real.y, CHUNK), strict=True)
        codes = torch.cat([A.encode(as_input(x), y) for x, y in chunks])
        z, y = codes.view(-1, PER_CLASS, A.dim), real.y.view(-1, PER_CLASS)
        wide = width(z) > 1e-5 * z.norm(dim=2).mean()
        self.z, self.y, self.width = z[wide], y[wide], width(z)[wide]
        self.asked = max(1, min(PER_CLASS, PICTURES // task.n_classes))
        share = task.train.class_frequencies(task.n_classes)[self.y[:, 0]]
        self.share = share / share.sum()
        self.names = ["critic.distance", "gradient.C", "gradient.G", "gradient.D"]
        self.names += [f"{kind}.{k}" for kind in FAULTS for k in self.y[:, 0].tolist()]

    @torch.no_grad()
    def measure(self, step: int) -> dict[str, float]:
        """All numbers with four digits, read from the device at once. Training goes on as if nothing had been asked."""
        z, y = self.z.flatten(0, 1), self.y.flatten()
        with own_randomness(y.device, self.seed * 1_000_003 + step):
            z_fake = self.G.eval()(y)
            on_real, on_fake = self.D(torch.cat([z, z_fake]), torch.cat([y, y])).view(2, -1, PER_CLASS).mean(2)
            asked = torch.arange(len(y), device=y.device).view_as(self.y)[:, : self.asked].flatten()
            own_head = self.C.eval()(self.A.decode(z_fake[asked], y[asked])).gather(1, y[asked, None])
        found = [
            (self.share * (on_real - on_fake)).sum()[None],
            *(gradient_norm(net).to(y.device)[None] for net in (self.C, self.G, self.D)),
            width(z_fake.view_as(self.z)) / self.width,
            (own_head.view(-1, self.asked) < 0).float().mean(1),
        ]
        return {name: float(f"{value:.4g}") for name, value in zip(self.names, torch.cat(found).tolist(), strict=True)}


def some_of_each(y: Labels, n_classes: int) -> Tensor:
    """Indices of PER_CLASS samples of each class that has any, one class after another; few ones come repeatedly."""
    labels = y.cpu()
    members = [(labels == k).nonzero()[:, 0] for k in range(n_classes)]
    return torch.cat([own[torch.arange(PER_CLASS) % len(own)] for own in members if len(own)]).to(y.device)


def width(z: Tensor) -> Tensor:
    """How far a class's codes lie from their mean, on average: (classes, codes, dim) to (classes,)."""
    distance: Tensor = (z - z.mean(1, keepdim=True)).norm(dim=2)
    return distance.mean(1)


def gradient_norm(net: nn.Module) -> Scalar:
    """Of the last step's gradient; a weight without one counts as nothing."""
    return get_total_norm([weight.grad for weight in net.parameters() if weight.grad is not None])


def measured(rows: Rows) -> list[Mapping[str, Any]]:
    """The rows of a log that hold a measurement."""
    return [row for row in rows if "critic.distance" in row]


def settled(rows: Rows, kind: str) -> dict[int, float]:
    """Where a number of each class settled: its median in the last third of training."""
    rows = measured(rows)
    late = [row for row in rows if 3 * row["step"] > 2 * rows[-1]["step"]]
    return {k: median(row[f"{kind}.{k}"] for row in late) for k in classes(rows)}


def classes(rows: Rows) -> list[int]:
    """Those that were measured."""
    return [int(key.partition(".")[2]) for key in rows[-1] if key.startswith("spread.")] if rows else []


def warnings(rows: Rows, class_names: Sequence[str]) -> list[str]:
    """What is wrong with the shields at the end of a log, a sentence a class and kind; of many the worst are named."""
    sentences = []
    for kind, fault in FAULTS.items():
        low = sorted((value, k) for k, value in settled(rows, kind).items() if value < fault.limit)
        sentences += [
            f"shield of class {class_names[k]}: {fault.finding.format(value)}: {fault.verdict} (try {fault.advice})"
            for value, k in low[:SENTENCES_SHOWN]
        ]
        if len(low) > SENTENCES_SHOWN:
            sentences.append(f"shields of {len(low) - SENTENCES_SHOWN} more classes: {fault.verdict} too")
    return sentences


def say_warnings(log: Log, class_names: Sequence[str]) -> None:
    for sentence in warnings(log.rows, class_names):
        log.say(sentence)
