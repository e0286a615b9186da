"""Small discrete worlds with known p(x|y) and p(y), to hold formulas against the truth."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class World:
    """A few values of x, each drawn with p(x|y) for a class y of p(y)."""

    likelihood: Tensor  # (values, classes), columns sum to 1
    prior: Tensor  # (classes,)

    @property
    def joint(self) -> Tensor:
        return self.likelihood * self.prior

    @property
    def posterior(self) -> Tensor:
        return self.joint / self.joint.sum(1, keepdim=True)

    @property
    def uniform_posterior(self) -> Tensor:
        """p(y|x) were all classes equally frequent."""
        return self.likelihood / self.likelihood.sum(1, keepdim=True)

    def optimal_logits(self) -> Tensor:
        """Where Eq. 1 has its minimum: C̃ = p_U(y|x), i.e. Eq. 2 inverted."""
        n = len(self.prior)
        return torch.logit(self.uniform_posterior) + torch.log(torch.tensor(n - 1.0, dtype=torch.double))

    def expected(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor], logits: Tensor) -> Tensor:
        """The loss under the world's own distribution: one sample for each (x, y), weighted by p(x, y)."""
        total = torch.zeros((), dtype=torch.double)
        for x in range(len(logits)):
            for y in range(len(self.prior)):
                total = total + self.joint[x, y] * loss(logits[x : x + 1], torch.tensor([y]), self.prior)
        return total


@st.composite
def discrete_worlds(draw: st.DrawFn) -> World:
    n, values = draw(st.integers(2, 5)), draw(st.integers(2, 6))
    seed = draw(st.integers(0, 2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    likelihood = torch.rand(values, n, generator=generator, dtype=torch.double) + 0.02
    prior = torch.rand(n, generator=generator, dtype=torch.double) ** 2 + 0.05  # far from balanced
    return World(likelihood / likelihood.sum(0), prior / prior.sum())
