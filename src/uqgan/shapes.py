"""The words of every signature: tensors by what they mean and the shape they have.

Axes: `batch`, `classes`, `draws` (dropout passes, weight draws or ensemble members), `dim` (of a latent code).
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Images = Float[Tensor, "batch ..."]
"""What a network sees: pixels in [0, 1] as (batch, channels, height, width), or points as (batch, 2)."""

Labels = Int[Tensor, "batch"]
Logits = Float[Tensor, "batch classes"]
DrawnLogits = Float[Tensor, "draws batch classes"]
Probs = Float[Tensor, "batch classes"]
Scores = Float[Tensor, "batch"]
"""One number a sample; larger means more uncertain."""

Flags = Bool[Tensor, "batch"]
Prior = Float[Tensor, "classes"]
Codes = Float[Tensor, "batch dim"]
Scalar = Float[Tensor, ""]
