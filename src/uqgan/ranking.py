"""Ranking metrics of samples, and of any resample of them, from one sort and running sums.

Larger score = more positive; ties taken together. A resample is given by how often each sample of either class was
drawn, in the order in which the samples came. NumPy alone, so that a worker has little to import.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Counts = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Curve:
    """What a falling threshold accepts, from one score of a positive to the next: in between, no metric changes."""

    tp: Floats  # (scores + 1,)  positives accepted, from none on
    fp: Floats  # (scores,)  negatives accepted with each
    tied: Indices  # (ties,)  scores that negatives have too
    before: Floats  # (ties,)  negatives accepted above these
    negatives: float

    @cached_property
    def steps(self) -> Floats:
        """Positives of each score; 0 where none was drawn."""
        return np.diff(self.tp)

    def auroc(self) -> float:
        """P(positive > negative) + P(equal) / 2. The sums are over integers, hence exact."""
        twice = 2 * self.tp[-1] * self.negatives
        lost = 2 * _dot(self.steps, self.fp) - _dot(self.steps[self.tied], self.fp[self.tied] - self.before)
        return float((twice - lost) / twice)

    def areas(self) -> tuple[float, float]:
        """Under the precision-recall points, joined by straight lines and by steps: AUPR and average precision.

        A straight line is the mean of the steps from its either end.
        """
        share = _false_share(self.tp[1:], self.fp)
        right = 1 - _dot(self.steps, share) / self.tp[-1]
        share = _false_share(self.tp[:-1], self.fp)
        share[self.tied] = _false_share(self.tp[self.tied], self.before)
        left = 1 - _dot(self.steps, share) / self.tp[-1]
        return float(left + right) / 2, float(right)

    def fpr_at_tpr(self, tpr: float) -> float:
        """At the first threshold, going down, that accepts a share >= tpr of the positives."""
        # A quotient is rounded as the literal 0.95 is: 19 of 20 reaches it. The product 0.95 * 20 need not.
        first = bisect_left(self.tp, tpr, key=lambda accepted: accepted / self.tp[-1])
        return float(self.fp[first - 1] / self.negatives)


@dataclass(frozen=True)
class Side:
    """A class from its own end of the scores: positives from the highest down, negatives from the lowest up.

    So both sides read alike, and what beats k scores of the other class beats the first k of the other side.
    """

    order: Indices  # (samples,)
    ends: Indices  # (scores + 1,)  samples down to each distinct score, from none on
    beaten: Indices  # (scores,)  scores of the other class that each beats
    tied: Indices  # (ties,)  scores that the other class has too
    held: Indices  # (ties,)  scores of the other class that these beat or tie with

    def sums(self, counts: Counts) -> Floats:
        """How often the samples down to each score were drawn."""
        return _running(counts[self.order])[self.ends]

    def curve(self, own: Floats, other: Floats) -> Curve:
        """From the sums of both classes, with this one as positive."""
        fp = other[self.beaten]
        np.subtract(other[-1], fp, out=fp)
        return Curve(own, fp, self.tied, other[-1] - other[self.held], other[-1])


@dataclass(frozen=True)
class Ranking:
    """Two classes ranked by a score."""

    positive: Side
    negative: Side

    def curves(self, positive: Counts, negative: Counts) -> tuple[Curve, Curve]:
        """Of the score, and of the negated score with the classes exchanged."""
        tp, tn = self.positive.sums(positive), self.negative.sums(negative)
        return self.positive.curve(tp, tn), self.negative.curve(tn, tp)

    def ood_scores(self, positive: Counts, negative: Counts) -> dict[str, float]:
        """The seven OoD columns, where OoD is positive."""
        ood_positive, id_positive = self.curves(positive, negative)
        aupr_in, ap_in = id_positive.areas()
        aupr_out, ap_out = ood_positive.areas()
        return {
            "auroc": id_positive.auroc(),
            "aupr_in": aupr_in,
            "aupr_out": aupr_out,
            "ap_in": ap_in,
            "ap_out": ap_out,
            "fpr95_id_positive": id_positive.fpr_at_tpr(0.95),
            "fpr95_ood_positive": ood_positive.fpr_at_tpr(0.95),
        }


@dataclass(frozen=True)
class Duels:
    """Which negatives each positive beats: enough for the AUROC, and faster than a ranking."""

    order: Indices  # (negatives,)  from the lowest score up
    beaten: Indices  # (levels,)  negatives that a positive of this level beats
    held: Indices  # (levels,)  negatives that it beats or ties with
    level: Indices  # (positives,)

    def auroc(self, positive: Counts, negative: Counts) -> float:
        below = _running(negative[self.order])
        twice = below[self.beaten] + below[self.held]
        return float(_dot(positive, twice[self.level]) / (2 * len(positive) * len(negative)))


@dataclass(frozen=True)
class Resampling:
    """The OoD columns of one score, and the AUROC of another beside it, over resamples."""

    ranking: Ranking
    beside: Duels | None
    sizes: tuple[int, int]
    """Positives and negatives."""

    def measure(self, positive: Counts, negative: Counts) -> dict[str, float]:
        beside = {"auroc_beside": self.beside.auroc(positive, negative)} if self.beside else {}
        return self.ranking.ood_scores(positive, negative) | beside

    def replicates(self, resamples: int, seed: int, share: tuple[int, int] = (0, 1)) -> list[dict[str, float]]:
        """Of every resample; or of a share of them: each nth, from number k on, for (k, n)."""
        number, shares = share
        drawn = draws(self.sizes, resamples, seed)
        return [self.measure(*counted(draw, self.sizes)) for k, draw in enumerate(drawn) if k % shares == number]


def draws(sizes: Sequence[int], resamples: int, seed: int) -> Iterator[tuple[Indices, ...]]:
    """Samples of each size with replacement, one resample at a time: it fits the processor's cache."""
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield tuple(generator.integers(0, size, size, dtype=np.intp) for size in sizes)


def counted(draw: Sequence[Indices], sizes: Sequence[int]) -> tuple[Counts, ...]:
    """How often each sample was drawn."""
    return tuple(np.bincount(indices, minlength=size) for indices, size in zip(draw, sizes, strict=True))


def rank(score: Floats, positive: Bools) -> Ranking:
    """Sort once. Both classes must be present."""
    order = np.argsort(-score)
    falling = score[order]
    starts = np.flatnonzero(np.append(True, falling[1:] != falling[:-1]))  # of the runs of equal scores
    hit = positive[order]
    positives, negatives = (np.add.reduceat(held, starts, dtype=np.intp) for held in (hit, ~hit))  # in each run
    index = np.where(positive, positive.cumsum(), (~positive).cumsum())[order] - 1  # within the class
    return Ranking(
        _side(index[hit], positives, negatives),
        _side(index[~hit][::-1].copy(), negatives[::-1], positives[::-1]),
    )


def _side(order: Indices, own: Counts, other: Counts) -> Side:
    """From the numbers of both classes in each run of equal scores."""
    mine, theirs = own > 0, other > 0
    beaten: Indices = (theirs.sum() - theirs.cumsum())[mine]
    tied = np.flatnonzero(theirs[mine])
    return Side(order, np.append(0, own[mine].cumsum()), beaten, tied, beaten[tied] + 1)


def pair(score: Floats, positive: Bools) -> Duels:
    """Both classes must be present."""
    order = np.argsort(score[~positive])
    rising = score[~positive][order]
    beaten, held = (np.searchsorted(rising, score[positive], side=side) for side in ("left", "right"))
    # Sums of the two rise with the score, so that equal sums are equal pairs.
    _, first, level = np.unique(beaten + held, return_index=True, return_inverse=True)
    return Duels(order, beaten[first], held[first], level)


def _running(counts: Counts) -> Floats:
    """0, then the running sum."""
    sums = np.empty(len(counts) + 1)
    sums[0], sums[1:] = 0, counts.cumsum()
    return sums


def _false_share(tp: Floats, fp: Floats) -> Floats:
    """1 - precision; 0 where nothing is accepted, as scikit-learn puts a last point at (recall 0, precision 1)."""
    accepted = tp + fp
    accepted[: np.searchsorted(accepted, 1)] = 1
    return np.divide(fp, accepted, out=accepted)


def _dot(a: Counts | Floats, b: Floats) -> np.float64:
    """Not by BLAS, which shares long sums among threads: their number would show in the last digits."""
    return np.float64(np.einsum("i,i->", a, b))
