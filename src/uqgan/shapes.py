"""Tensor types for annotations, named by meaning and shape.

Axes: `batch`, `classes`, `draws` (dropout masks, weight draws or ensemble members), `dim` (of a latent code).
"""

from jaxtyping import Float, Int
from torch import Tensor

Images = Float[Tensor, "batch ..."]
"""Input of a network: pixels in [0, 1] as (batch, channels, height, width), or points as (batch, 2)."""

Labels = Int[Tensor, "batch"]
Logits = Float[Tensor, "batch classes"]
DrawnLogits = Float[Tensor, "draws batch classes"]
Concentrations = Float[Tensor, "batch classes"]
"""α of a Dirichlet distribution over the classes."""
Probs = Float[Tensor, "batch classes"]
Scores = Float[Tensor, "batch"]
"""One number per sample; as an uncertainty, larger means more uncertain."""

Prior = Float[Tensor, "classes"]
Codes = Float[Tensor, "batch dim"]
Scalar = Float[Tensor, ""]
