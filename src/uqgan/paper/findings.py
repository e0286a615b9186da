"""Findings of the paper's studies, each compared with a measured curve."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from uqgan.paper.studies import Curve, Value

CLOSE = 0.005
"""Difference of scores that says nothing, as seeds differ by as much."""


@dataclass(frozen=True)
class Finding:
    """Comparison of a curve with a finding of the paper."""

    words: str
    """Statement of the paper."""
    agrees: bool | None
    """None if the differences are too small to tell."""
    evidence: str
    """Values of the curve."""

    @property
    def verdict(self) -> str:
        if self.agrees is None:
            return f"no difference larger than {100 * CLOSE:g} points"
        return "agrees" if self.agrees else "does not agree"


Check = Callable[[Curve], tuple[bool | None, str] | None]
"""Whether a curve agrees, and its values; None if values are missing."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and its test on a curve."""

    study: str
    words: str
    check: Check
    tasks: tuple[str, ...] = ()
    """Tasks that it is restricted to; empty for none."""


def findings(curve: Curve) -> list[Finding]:
    """Comparisons of a curve with all findings of the paper about it."""
    found = []
    for claim in CLAIMS:
        if claim.study == curve.study and curve.task in (claim.tasks or (curve.task,)) and (said := claim.check(curve)):
            found.append(Finding(claim.words, *said))
    return found


def at(value: Value, score: float) -> str:
    return f"{100 * score:.2f} at {value:g}" if isinstance(value, int | float) else f"{value} {100 * score:.2f}"


def ahead(ours: float, others: float) -> bool | None:
    """Whether a score is higher than the best of others, or lower; None if they differ by no more than CLOSE."""
    return ours > others if abs(ours - others) > CLOSE else None


def best_within(low: float, high: float, curve: Curve) -> tuple[bool | None, str] | None:
    """Whether a value from low to high has the best AUROC."""
    found = curve.means("auroc")
    inside = {value: score for value, score in found.items() if low <= float(value) <= high}
    outside = {value: score for value, score in found.items() if value not in inside}
    if not inside or not outside or len(found) < 3:
        return None
    ours, other = max(inside, key=inside.__getitem__), max(outside, key=outside.__getitem__)
    first, second = sorted((ours, other), key=lambda value: -found[value])
    return ahead(found[ours], found[other]), f"best AUROC {at(first, found[first])}, {at(second, found[second])}"


def worse_at(values: tuple[float, ...], curve: Curve) -> tuple[bool, str] | None:
    """Whether the AUROC at each of these values is lower than the best one."""
    found = curve.means("auroc")
    if not set(values) <= set(found) or len(found) < 3:
        return None
    best = max(found, key=found.__getitem__)
    said = ", ".join(at(value, found[value]) for value in values)
    return all(found[best] - found[value] > CLOSE for value in values), f"AUROC {said}, best {at(best, found[best])}"


def best_named(name: str, curve: Curve) -> tuple[bool | None, str] | None:
    """Whether a value has a better AUROC than all others."""
    found = curve.means("auroc")
    if name not in found or len(found) < 2:
        return None
    said = ", ".join(at(value, score) for value, score in found.items())
    return ahead(found[name], max(score for value, score in found.items() if value != name)), f"AUROC: {said}"


def trend(metric: str, sign: int, methods: tuple[str, ...], curve: Curve) -> tuple[bool | None, str] | None:
    """Whether a metric is higher (sign 1) or lower (-1) at the largest value than at the smallest."""
    chosen = methods or curve.methods
    found = {method: curve.means(metric, method) for method in chosen if method in curve.methods}
    ends = {method: (each[min(each)], each[max(each)]) for method, each in found.items() if len(each) > 1}
    if not ends:
        return None
    said = ", ".join(f"{method} {100 * first:.2f} → {100 * last:.2f}" for method, (first, last) in ends.items())
    return ahead(min(sign * (last - first) for first, last in ends.values()), 0.0), said


def highest(metric: str, method: str, curve: Curve) -> tuple[bool | None, str] | None:
    """Whether a method has the highest mean of a metric over all values."""
    found = {each: list(curve.means(metric, each).values()) for each in curve.methods}
    averages = {each: sum(scores) / len(scores) for each, scores in found.items() if scores}
    if method not in averages or len(averages) < 2:
        return None
    said = ", ".join(f"{each} {100 * score:.2f}" for each, score in averages.items())
    others = max(score for each, score in averages.items() if each != method)
    return ahead(averages[method], others), f"mean over the values: {said}"


HANDWRITTEN = ("mnist", "digits")
"""For CIFAR10 the paper calls the effect of the regulariser less clear."""
CLAIMS = (
    Claim("lambda-cl", "λ_cl = 2 is locally optimal", partial(best_within, 2, 2), ("mnist",)),
    Claim("lambda-cl", "λ_cl = 4 is locally optimal", partial(best_within, 4, 4), ("cifar10",)),
    Claim("lambda-cl", "a large λ_cl greatly decreases the scores", partial(worse_at, (128,))),
    Claim("lambda-real", "λ_real from 0.5 to 0.6 is best", partial(best_within, 0.5, 0.6)),
    Claim("lambda-real", "both extremes of λ_real greatly decrease the scores", partial(worse_at, (0.0, 1.0))),
    Claim("latent-dim", "32 latent dimensions are best", partial(best_within, 32, 32), ("mnist",)),
    Claim("latent-dim", "128 latent dimensions are best", partial(best_within, 128, 128), ("cifar10",)),
    Claim("lambda-reg", "λ_reg = 32 is locally optimal", partial(best_within, 32, 32), ("mnist",)),
    Claim("lambda-reg", "λ_reg from 1 to 2 is locally optimal", partial(best_within, 1, 2), ("cifar10",)),
    Claim(
        "lambda-reg", "without the regulariser the scores are comparatively bad", partial(worse_at, (0,)), HANDWRITTEN
    ),
    Claim("regulariser", "the log-angle loss performs best", partial(best_named, "angle")),
    Claim(
        "n-classes",
        "more known classes give UQGAN and GEN a higher AUROC",
        partial(trend, "auroc", 1, ("uqgan", "uqgan-mc", "gen-sensoy")),
    ),
    Claim("n-classes", "more known classes give all methods a lower accuracy", partial(trend, "accuracy", -1, ())),
    Claim("n-classes", "UQGAN with MC-Dropout has the highest AUROC", partial(highest, "auroc", "uqgan-mc")),
    Claim("n-classes", "UQGAN with MC-Dropout has the highest accuracy", partial(highest, "accuracy", "uqgan-mc")),
)
"""Findings of the paper's section 4 and of its appendix on parameters."""
