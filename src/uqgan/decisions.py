"""Decisions at stated error rates: flagged samples, sets of classes, and one of three words per sample.

Thresholds are ranks among the scores of the calibration samples, which are used for nothing else. They hold for any
method, however well it is trained, as long as new samples have the distribution of the calibration samples.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from uqgan.errors import UsageError, count
from uqgan.files import read_arrays, write_arrays, write_json
from uqgan.samples import brief
from uqgan.shapes import Labels, Probs, Scores
from uqgan.temperature import temper
from uqgan.uncertainty import Prediction

WORDS = ("accept", "ambiguous", "unknown")
REASONS = ("", "strange as a mixture of known classes is", "no class plausible enough", "several classes plausible")
"""Reasons to call a sample ambiguous, after the empty one of other samples."""
SCORES = ("epistemic", "foreignness", "aleatoric")
SETS = ("lac", "aps")
NO_FOREIGNNESS = (
    "this method has no foreignness of its own, which would tell a mixture of known classes from a stranger: "
    "all that is flagged is called unknown"
)


@dataclass(frozen=True)
class Rule:
    """Rule for decisions, which can be changed without training."""

    false_alarm: float = 0.05
    """Share of known samples that may be flagged."""
    coverage: float = 0.9
    """Share of known samples whose set of classes must contain the true one."""
    score: str = "epistemic"
    """Score by which samples are flagged: epistemic, foreignness or aleatoric."""
    per_label: bool = False
    """Whether a sample is compared with the calibration samples of its predicted label only."""
    sets: str = "lac"
    """Sets of classes: `lac`, the smallest on average, or `aps`, randomised and larger for ambiguous samples."""

    def __post_init__(self) -> None:
        for name, usual in (("false_alarm", 0.05), ("coverage", 0.9)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
                raise UsageError(f"{name} = {brief(value)}: must be a number above 0 and below 1 ({usual} is usual)")
            object.__setattr__(self, name, float(str(value) if isinstance(value, np.floating) else value))
        for name, known in (("score", SCORES), ("sets", SETS), ("per_label", (True, False))):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} = {getattr(self, name)}: must be one of {', '.join(map(str, known))}")

    def write(self, file: Path) -> None:
        write_json(file, asdict(self))

    @staticmethod
    def read(file: Path) -> "Rule":
        try:
            return Rule(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise UsageError(f"{file}: damaged, or no rule to decide by (uqgan calibrate writes it anew)") from None


@dataclass(frozen=True)
class Calibration:
    """Predictions for the calibration samples, and their labels."""

    y: Labels
    prediction: Prediction
    temperature: float = 1.0
    """Temperature fitted on the validation samples; 1 where it does not help."""

    def temper(self, probs: Probs) -> Probs:
        """Class probabilities at this temperature, for display; sets and scores use the raw ones."""
        return temper(probs, self.temperature)

    def write(self, file: Path) -> None:
        arrays = self.prediction.arrays("calibration")
        write_arrays(file, {"y": self.y.numpy(), "temperature": [self.temperature]} | arrays)

    @staticmethod
    def read(file: Path) -> "Calibration":
        with read_arrays(file, "calibration scores", "delete it, and uqgan calibrate writes it anew") as arrays:
            y, prediction = arrays["y"], Prediction.of_arrays("calibration", arrays)
            if prediction.probs.ndim != 2 or not y.shape == prediction.epistemic.shape == prediction.probs.shape[:1]:
                raise ValueError(y.shape)
            return Calibration(y, prediction, float(arrays["temperature"]))


@dataclass(frozen=True)
class Decisions:
    """Decisions about a batch."""

    p_value: Tensor
    """Share of samples with a score at least as high, among the calibration samples and the new one."""
    flagged: Tensor
    """Mask of the samples whose p-value is at most the false-alarm rate."""
    words: tuple[str, ...]
    """accept, ambiguous or unknown."""
    reasons: tuple[str, ...]
    """Why a sample is ambiguous; empty for others."""
    sets: Tensor
    """Plausible classes of each sample, (batch, classes); possibly none."""
    shown: Tensor
    """`sets` with the most probable class added to each."""
    why: str
    """Reason why no flagged sample is called ambiguous; empty if some may be."""


def decide(
    prediction: Prediction, calibration: Calibration, rule: Rule, has_foreignness: bool, seed: int | None = 0
) -> Decisions:
    """Decisions about a batch.

    A flagged sample is `ambiguous` if its foreignness alone would not flag it, as for a mixture of known
    classes, else `unknown`. One that is not flagged is `accept` if its LAC set is a single class, else `ambiguous`.
    """
    check_rule(calibration, rule)
    if prediction.probs.shape[1] != calibration.prediction.probs.shape[1]:
        n, known = prediction.probs.shape[1], calibration.prediction.probs.shape[1]
        raise UsageError(f"prediction: has {n} classes, calibration {known}: must be of the same run")
    p_value = p_values(prediction, calibration.prediction, rule.score, rule.per_label)
    flagged = p_value <= rule.false_alarm
    like_known = p_values(prediction, calibration.prediction, "foreignness", rule.per_label) > rule.false_alarm
    lac = lac_sets(prediction.probs, calibration, rule.coverage)
    unknown = flagged & ~(like_known & has_foreignness)
    accepted = ~flagged & (lac.sum(1) == 1)
    words = torch.where(unknown, 2, torch.where(accepted, 0, 1)).tolist()
    causes = torch.where(flagged, 1, torch.where(lac.sum(1) == 0, 2, 3)) * ~(unknown | accepted)
    sets = lac if rule.sets == "lac" else aps_sets(prediction.probs, calibration, rule.coverage, seed)
    top = torch.nn.functional.one_hot(prediction.labels, prediction.probs.shape[1]).bool()
    why = "" if has_foreignness else NO_FOREIGNNESS
    reasons = tuple(REASONS[cause] for cause in causes.tolist())
    return Decisions(p_value, flagged, tuple(WORDS[word] for word in words), reasons, sets, sets | top, why)


def check_rule(calibration: Calibration, rule: Rule, class_names: Sequence[str] = ()) -> None:
    """Refuse rates that need more calibration samples than there are."""
    for label, n in sorted(_group_sizes(calibration, rule).items(), key=lambda group: group[1]):
        if _most(rule.false_alarm, n + 1) < 1:
            fewest = math.ceil(1 / rule.false_alarm - 1e-9) - 1
            needed = count(fewest, "calibration sample") if fewest < 1e9 else "over a billion calibration samples"
            group = "" if label is None else f" predicted to be {class_names[label] if class_names else label}"
            fix = f"choose {math.ceil(1000 / (n + 1)) / 1000:g} or more" if n else "train with more pictures"
            fix += "" if label is None else ", or don't decide per label"
            raise UsageError(f"false_alarm = {rule.false_alarm:g}: needs {needed}{group}, there are {n:,} ({fix})")
    n = len(calibration.y)
    if _least(rule.coverage, n + 1) > n:
        needed = count(math.ceil(1 / (1 - rule.coverage) - 1e-9) - 1, "calibration sample")
        fix = f"choose {math.floor(1000 * n / (n + 1)) / 1000:g} or less"
        raise UsageError(f"coverage = {rule.coverage:g}: needs {needed}, there are {n:,} ({fix})")


def p_values(new: Prediction, known: Prediction, score: str, per_label: bool) -> Tensor:
    """p-values of a score, among all known samples or among those with the same predicted label."""
    scores, known_scores = getattr(new, score), getattr(known, score)
    if not per_label:
        return p_value(scores, known_scores)
    found = torch.ones(len(scores), dtype=torch.double)
    for label in set(new.labels.tolist()):
        chosen = new.labels == label
        found[chosen] = p_value(scores[chosen], known_scores[known.labels == label])
    return found


def p_value(scores: Scores, known: Scores) -> Tensor:
    """(1 + #{known ≥ score}) / (n + 1): for a known sample at most α with probability at most α."""
    smaller = torch.searchsorted(known.double().sort().values, scores.double().contiguous())
    return (1 + len(known) - smaller).double() / (len(known) + 1)


def thresholds(calibration: Calibration, rule: Rule) -> dict[int | None, tuple[int, float]]:
    """Number of calibration samples, and score above which a sample is flagged; per label if the rule is."""
    labels, scores = calibration.prediction.labels, getattr(calibration.prediction, rule.score)
    found = {}
    for label, n in _group_sizes(calibration, rule).items():
        group = scores if label is None else scores[labels == label]
        found[label] = (n, float(group.sort(descending=True).values[_most(rule.false_alarm, n + 1) - 1]))
    return found


def lac_threshold(calibration: Calibration, coverage: float) -> float:
    """Largest 1 - p̂(y|x) of a class in a LAC set: the ⌈(n + 1) coverage⌉-th smallest of the calibration samples."""
    known = not_probs(calibration.prediction.probs).gather(1, calibration.y[:, None])[:, 0]
    return _quantile(known, coverage)


def lac_sets(probs: Probs, calibration: Calibration, coverage: float) -> Tensor:
    """Least ambiguous sets (Sadinle et al., 2019): all classes with a probability above one threshold; may be empty."""
    return not_probs(probs) <= lac_threshold(calibration, coverage)


def aps_sets(probs: Probs, calibration: Calibration, coverage: float, seed: int | None = 0) -> Tensor:
    """Randomised adaptive sets (Romano et al., 2020): the most probable classes up to a sum, the last one at random."""
    chance = torch.Generator()
    _ = chance.seed() if seed is None else chance.manual_seed(seed)
    known_u, u = (torch.rand(len(each), generator=chance, dtype=torch.double) for each in (calibration.y, probs))
    known = aps_scores(calibration.prediction.probs, known_u).gather(1, calibration.y[:, None])[:, 0]
    return aps_scores(probs, u) <= _quantile(known, coverage)


def aps_scores(probs: Probs, u: Scores) -> Tensor:
    """Total probability of the more probable classes, plus a share 1 - u of the class's probability."""
    ordered, order = probs.double().sort(dim=1, descending=True, stable=True)
    return torch.empty_like(ordered).scatter(1, order, ordered.cumsum(1) - u[:, None] * ordered)


def not_probs(probs: Probs) -> Tensor:
    """1 - p̂, for the top class as the sum of the others: rounding in the subtraction would tie confident samples."""
    wide = probs.double()
    top = wide.argmax(1, keepdim=True)
    return (1 - wide).scatter(1, top, wide.scatter(1, top, 0.0).sum(1, keepdim=True))


def _group_sizes(calibration: Calibration, rule: Rule) -> dict[int | None, int]:
    """Number of calibration samples, in total or per predicted label."""
    if not rule.per_label:
        return {None: len(calibration.y)}
    counts = calibration.prediction.labels.bincount(minlength=calibration.prediction.probs.shape[1])
    return dict(enumerate(counts.tolist()))


def _quantile(scores: Tensor, coverage: float) -> float:
    rank = _least(coverage, len(scores) + 1)
    return float(scores.sort().values[rank - 1]) if rank <= len(scores) else math.inf


def _most(rate: float, n: int) -> int:
    """Largest k with k / n at most the rate; a quotient is rounded as the literal is, so 7 / 100 is at most 0.07."""
    k = round(rate * n) + 1
    while k / n > rate:
        k -= 1
    return k


def _least(rate: float, n: int) -> int:
    """Smallest k with k / n at least the rate."""
    k = max(0, round(rate * n) - 1)
    while k / n < rate:
        k += 1
    return k
