"""Class probabilities and uncertainties from logits (Eqs. 2-5).

Computed in log space, where Eq. 2 is a shift and Eq. 3 a softmax: nothing saturates, and no ε is needed
(decision 0004). Entropies are in nats; larger means more uncertain (decision 0005).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.shapes import DrawnLogits, Prior, Probs, Scores

LINEAR_FROM = 10.0
"""Logit from which on evidence grows linearly (decision 0019)."""


@dataclass(frozen=True)
class Prediction:
    """Output of every method for a batch; larger means more uncertain."""

    probs: Probs
    """p̂(y|x)."""
    aleatoric: Scores
    """Ambiguity between the known classes: the score for detecting wrong predictions."""
    epistemic: Scores
    """Dissimilarity to all known classes: the score for detecting OoD samples (Eq. 4 for one-vs-all readings)."""
    foreignness: Scores
    """1 - Σ_y C̃(i|x,y), at least 0: unlike Eq. 4 it is 0 for every mixture of known classes (decision 0008)."""
    spread: Scores | None = None
    """Σ_y of the standard deviation of p̂(y|x) over the draws; None for a single draw."""
    mean_entropy: Scores | None = None
    """Mean over several draws of the entropy of p̂(y|x), by one-vs-all readings, for joint detection; else None."""

    @property
    def labels(self) -> Tensor:
        return self.probs.argmax(1)

    def cpu(self) -> "Prediction":
        return self._map(Tensor.cpu)

    def first(self, n: int) -> "Prediction":
        """Predictions of the first n samples."""
        return self._map(lambda column: column[:n])

    def rows(self, index: Tensor) -> "Prediction":
        """Predictions of the samples at these indices, or where a boolean mask is set."""
        return self._map(lambda column: column[index])

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Columns in float32 by names such as `test/probs`, for storage; `of_arrays` is the inverse."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f"{prefix}/{name}": column.float().numpy() for name, column in columns.items() if column is not None}

    @staticmethod
    def of_arrays(prefix: str, arrays: Mapping[str, Tensor]) -> "Prediction":
        """Prediction from the columns that `arrays` returned."""
        found = {field.name: arrays.get(f"{prefix}/{field.name}") for field in fields(Prediction)}
        if any(column is None for name, column in found.items() if name not in OF_SEVERAL_DRAWS):
            raise KeyError(prefix)
        return Prediction(**found)  # type: ignore[arg-type]

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Prediction":
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {k: None if v is None else change(v) for k, v in columns.items()}
        return Prediction(**changed)

    @staticmethod
    def join(parts: "list[Prediction]") -> "Prediction":
        """Concatenation of the predictions for consecutive batches."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Prediction)}
        joined: dict[str, Any] = {k: None if v[0] is None else torch.cat(v) for k, v in columns.items()}
        return Prediction(**joined)


OF_SEVERAL_DRAWS = ("spread", "mean_entropy")
"""Columns that a prediction may lack."""
Reading = Callable[[DrawnLogits, Prior], Prediction]
"""Function that turns the logits of all draws into a prediction."""


def log_in_class(logits: Tensor) -> Tensor:
    """Eq. 2: log C̃(i|x,y). The re-weighting is a shift of the logit by log(n - 1)."""
    return F.logsigmoid(logits - math.log(logits.shape[-1] - 1))


def log_posterior(logits: Tensor, prior: Prior) -> Tensor:
    """Eq. 3 in log space: log p̂(y|x)."""
    return torch.log_softmax(log_in_class(logits) + prior.log(), -1)


def posterior(logits: Tensor, prior: Prior) -> Tensor:
    """Eq. 3: p̂(y|x)."""
    return log_posterior(logits, prior).exp()


def in_distribution(logits: Tensor, prior: Prior) -> Tensor:
    """Eq. 4: C̃(i|x) = Σ_y C̃(i|x,y) p̂(y|x)."""
    return (log_in_class(logits) + log_posterior(logits, prior)).logsumexp(-1).exp()


def epistemic(logits: Tensor, prior: Prior) -> Tensor:
    """C̃(o|x) = 1 - C̃(i|x), from out-of-class probabilities, so that values near 0 stay accurate."""
    log_out_of_class = F.logsigmoid(math.log(logits.shape[-1] - 1) - logits)
    return (log_out_of_class + log_posterior(logits, prior)).logsumexp(-1).exp()


def foreignness(logits: Tensor) -> Tensor:
    """1 - Σ_y C̃(i|x,y), not clamped at 0: at Lemma 1's optimum 0 for any mixture of the classes, and 1 far from all."""
    return 1 - log_in_class(logits).exp().sum(-1)


def entropy(probs: Tensor) -> Tensor:
    """Eq. 5, in nats."""
    return cast(Tensor, torch.special.entr(probs).sum(-1))


def read_one_vs_all(logits: DrawnLogits, prior: Prior) -> Prediction:
    """Prediction of one-vs-all logits (Eqs. 2-5); probabilities are averaged over the draws first."""
    drawn = posterior(logits, prior)
    probs = drawn.mean(0)
    return Prediction(
        probs=probs,
        aleatoric=entropy(probs),
        epistemic=epistemic(logits, prior).mean(0),
        foreignness=foreignness(logits).mean(0).clamp(min=0),
        spread=_spread(drawn),
        mean_entropy=entropy(drawn).mean(0) if len(drawn) > 1 else None,
    )


def read_max_softmax(logits: DrawnLogits, prior: Prior) -> Prediction:
    """Prediction of softmax logits; 1 - max p̂ serves as both uncertainties."""
    drawn = logits.softmax(-1)
    probs = drawn.mean(0)
    # 1 - max p̂ as the sum of the others: rounding in the subtraction would tie all confident samples.
    others = probs.sort(1).values[:, :-1].sum(1)
    return Prediction(probs, others, others, others, _spread(drawn))


def read_entropy(logits: DrawnLogits, prior: Prior) -> Prediction:
    """Prediction of softmax logits; the entropy of the mean over the draws serves as both uncertainties."""
    drawn = logits.softmax(-1)
    probs = drawn.mean(0)
    uncertainty = entropy(probs)
    return Prediction(probs, uncertainty, uncertainty, uncertainty, _spread(drawn))


def read_mutual_information(logits: DrawnLogits, prior: Prior) -> Prediction:
    """Prediction of softmax logits over draws of the weights: mean entropy, and mutual information with the weights.

    Their sum is the entropy of the mean: what the draws agree on is aleatoric, their disagreement epistemic.
    Computed in float64: where all draws are confident, float32 rounds their difference to 0, and samples would be tied.
    """
    wide = logits if logits.device.type == "mps" else logits.double()  # MPS has no float64
    drawn = wide.softmax(-1)
    probs = drawn.mean(0)
    mean_entropy = entropy(drawn).mean(0)
    information = (entropy(probs) - mean_entropy).clamp(min=0).to(logits.dtype)
    return Prediction(
        probs=probs.to(logits.dtype),
        aleatoric=mean_entropy.to(logits.dtype),
        epistemic=information,
        foreignness=information,
        spread=_spread(drawn.to(logits.dtype)),
    )


def evidence(logits: Tensor) -> Tensor:
    """exp(f), linear with the same slope from `LINEAR_FROM` on, so that it neither overflows nor saturates."""
    return logits.clamp(max=LINEAR_FROM).exp() * (1 + (logits - LINEAR_FROM).relu())


def concentration(logits: Tensor) -> Tensor:
    """α = evidence + 1 of the Dirichlet distribution over class probabilities."""
    return evidence(logits) + 1


def expected_probs(logits: Tensor) -> Tensor:
    """Mean of the Dirichlet distribution with parameters α: α / Σα."""
    alpha = concentration(logits)
    return alpha / alpha.sum(-1, keepdim=True)


def read_dirichlet(logits: DrawnLogits, prior: Prior) -> Prediction:
    """Prediction of logits of evidence; the entropy of the expected probabilities serves as both uncertainties."""
    drawn = expected_probs(logits)
    probs = drawn.mean(0)
    uncertainty = entropy(probs)
    return Prediction(probs, uncertainty, uncertainty, uncertainty, _spread(drawn))


UNITS: dict[Reading, tuple[str, str]] = {
    read_one_vs_all: ("nats", "probability"),
    read_entropy: ("nats", "nats"),
    read_mutual_information: ("nats", "nats"),
    read_dirichlet: ("nats", "nats"),
    read_max_softmax: ("1 - max p̂", "1 - max p̂"),
}
"""Units of the aleatoric and of the epistemic uncertainty, per reading."""

WITH_FOREIGNNESS: tuple[Reading, ...] = (read_one_vs_all,)
"""Readings whose foreignness is a separate score; for others it equals the epistemic uncertainty."""

RETURNS: dict[Reading, tuple[str, str]] = {
    read_one_vs_all: ("entropy of p̂", "Eq. 4"),
    read_entropy: ("entropy of p̂", "entropy of p̂"),
    read_mutual_information: ("mean entropy", "mutual information"),
    read_dirichlet: ("entropy of p̂", "entropy of p̂"),
    read_max_softmax: ("1 - max p̂", "1 - max p̂"),
}
"""Definitions of the aleatoric and of the epistemic uncertainty, per reading."""


def returned(reading: Reading) -> tuple[str, str]:
    """Definitions of both uncertainties of a reading as text, with their units."""
    aleatoric, epistemic = (
        what if what == unit else f"{what} ({unit})"
        for what, unit in zip(RETURNS[reading], UNITS[reading], strict=True)
    )
    return aleatoric, epistemic


def _spread(drawn: Tensor) -> Scores | None:
    return drawn.std(0).sum(1) if len(drawn) > 1 else None
