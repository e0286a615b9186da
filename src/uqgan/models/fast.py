"""Quick layers that compute the same as the plain ones of the networks, swapped in place."""

from torch import nn


def fast(net: nn.Module) -> None:
    """Swap layers of a network in place for equivalent quick ones: same function, same state-dict keys and shapes."""
