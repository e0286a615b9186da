"""Measurements of generator, critic and classifier at each validation, and warnings about classes without a shield.

A measurement is part of a row of the log: `critic.distance`, `gradient.C`, `gradient.G`, `gradient.D`, and per class k
`spread.k` and `out_of_class.k`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from uqgan.acceleration import local_seed
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.errors import count
from uqgan.log import Log
from uqgan.models.autoencoders import Autoencoder
from uqgan.shapes import Labels, Scalar

PER_CLASS = 64
"""Number of real and of generated codes compared per class."""
MOST_DECODED = 1024
"""Limit of generated examples, over all classes, that are decoded and classified; decoding takes most of the time."""
SENTENCES_SHOWN = 5
Rows = Sequence[Mapping[str, Any]]


class Fault(NamedTuple):
    """Finding for a class whose measurement is below a limit, with advice."""

    limit: float
    finding: str
    verdict: str
    advice: str


FAULTS = {
    # Two overlapping Gaussians trained without the regulariser, whose shield is open, settle at 0.10 to 0.14.
    "spread": Fault(0.25, "spread over {:.2g} of the class's own width", "collapsed", "a larger --uqgan.lambda-reg"),
    "out_of_class": Fault(
        0.5, "are called out-of-class in {:.2g} of all cases", "not shielded", "a larger --uqgan.lambda-cl"
    ),
}


class Health:
    """Comparison of generated codes per class with a fixed sample of real codes, made at every validation.

    Classes of zero width (fewer than two training samples, or identical ones) are excluded.
    """

    @torch.no_grad()
    def __init__(self, C: nn.Module, G: nn.Module, D: nn.Module, A: Autoencoder, task: Task, seed: int) -> None:
        self.C, self.G, self.D, self.A, self.seed = C, G, D, A, seed
        real = task.train[sample_per_class(task.train.y, task.n_classes)]
        chunks = zip(torch.split(real.x, CHUNK), torch.split(real.y, CHUNK), strict=True)
        codes = torch.cat([A.encode(as_input(x), y) for x, y in chunks])
        z, y = codes.view(-1, PER_CLASS, A.dim), real.y.view(-1, PER_CLASS)
        wide = width(z) > 1e-5 * z.norm(dim=2).mean()
        self.z, self.y, self.width = z[wide], y[wide], width(z)[wide]
        self.n_decoded = max(1, min(PER_CLASS, MOST_DECODED // task.n_classes))
        share = task.train.class_frequencies(task.n_classes)[self.y[:, 0]]
        self.share = share / share.sum()
        self.names = ["critic.distance", "gradient.C", "gradient.G", "gradient.D"]
        self.names += [f"{kind}.{k}" for kind in FAULTS for k in self.y[:, 0].tolist()]

    @torch.no_grad()
    def measure(self, step: int) -> dict[str, float]:
        """Measurements rounded to four digits, copied from the device at once; training is not affected."""
        z, y = self.z.flatten(0, 1), self.y.flatten()
        with local_seed(y.device, self.seed * 1_000_003 + step):
            z_fake = self.G.eval()(y)
            on_real, on_fake = self.D(torch.cat([z, z_fake]), torch.cat([y, y])).view(2, -1, PER_CLASS).mean(2)
            decoded = torch.arange(len(y), device=y.device).view_as(self.y)[:, : self.n_decoded].flatten()
            true_head = self.C.eval()(self.A.decode(z_fake[decoded], y[decoded])).gather(1, y[decoded, None])
        found = [
            (self.share * (on_real - on_fake)).sum()[None],
            *(gradient_norm(net).to(y.device)[None] for net in (self.C, self.G, self.D)),
            width(z_fake.view_as(self.z)) / self.width,
            (true_head.view(-1, self.n_decoded) < 0).float().mean(1),
        ]
        return {name: float(f"{value:.4g}") for name, value in zip(self.names, torch.cat(found).tolist(), strict=True)}


def sample_per_class(y: Labels, n_classes: int) -> Tensor:
    """Indices of PER_CLASS samples per non-empty class, ordered by class; samples of small classes are repeated."""
    labels = y.cpu()
    members = [(labels == k).nonzero()[:, 0] for k in range(n_classes)]
    return torch.cat([each[torch.arange(PER_CLASS) % len(each)] for each in members if len(each)]).to(y.device)


def width(z: Tensor) -> Tensor:
    """Mean distance of a class's codes from their mean: (classes, codes, dim) to (classes,)."""
    distance: Tensor = (z - z.mean(1, keepdim=True)).norm(dim=2)
    return distance.mean(1)


def gradient_norm(net: nn.Module) -> Scalar:
    """Norm of the last step's gradient; weights without one count as 0."""
    return get_total_norm([weight.grad for weight in net.parameters() if weight.grad is not None])


def first_member(rows: Rows) -> list[Mapping[str, Any]]:
    """Rows of an ensemble's first member as a representative; all rows of a method with a single member."""
    return [row for row in rows if not row.get("member")]


def measured(rows: Rows) -> list[Mapping[str, Any]]:
    """Rows of the first member that hold a measurement."""
    return [row for row in first_member(rows) if "critic.distance" in row]


def settled(rows: Rows, kind: str) -> dict[int, float]:
    """Median of a measurement over the last third of training, per class."""
    rows = measured(rows)
    late = [row for row in rows if 3 * row["step"] > 2 * rows[-1]["step"]]
    return {k: median(row[f"{kind}.{k}"] for row in late) for k in measured_classes(rows)}


def measured_classes(rows: Rows) -> list[int]:
    """Classes that have measurements."""
    return [int(key.partition(".")[2]) for key in rows[-1] if key.startswith("spread.")] if rows else []


def warnings(rows: Rows, class_names: Sequence[str]) -> list[str]:
    """Warnings about classes with faults at the end of training, worst first; of many the rest is counted."""
    sentences = []
    for kind, fault in FAULTS.items():
        low = sorted((value, k) for k, value in settled(rows, kind).items() if value < fault.limit)
        sentences += [
            f"generated examples that should surround class {class_names[k]} (its shield) "
            f"{fault.finding.format(value)}: {fault.verdict} (try {fault.advice})"
            for value, k in low[:SENTENCES_SHOWN]
        ]
        if len(low) > SENTENCES_SHOWN:
            sentences.append(f"shields of {count(len(low) - SENTENCES_SHOWN, 'more class')}: {fault.verdict} too")
    return sentences


def say_warnings(log: Log, class_names: Sequence[str]) -> None:
    """Print the warnings about the member of this log, unless its training was stopped early."""
    if log.stopped:
        return
    for sentence in warnings(log.member_rows, class_names):
        log.say(sentence)
