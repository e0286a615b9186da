"""User-supplied classifiers: any network that returns one logit per class."""

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn

from uqgan.errors import UsageError
from uqgan.shapes import Images, Logits

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class UserClassifier(nn.Module):
    """Copy of a user-supplied network, checked by a trial pass; with `draws` its dropout stays on in prediction."""

    def __init__(self, net: nn.Module, shape: tuple[int, ...], n_classes: int, draws: bool = False) -> None:
        super().__init__()
        self.name, self.draws = type(net).__qualname__, draws
        try:
            self.net = deepcopy(net)
        except Exception as error:
            raise self._refusal(f"cannot be copied ({_first_line(error)})") from error
        self._check_layers()
        super().train(False)  # dropout off: the trial pass must not consume random numbers
        x = torch.zeros(2, *shape, device=next(net.parameters()).device)
        self._check_logits(x, n_classes)
        self.takes_channels_last = self._try_channels_last(x)
        self.eval()

    def forward(self, x: Images) -> Logits:
        return cast(Tensor, self.net(x).float())

    def train(self, mode: bool = True) -> "UserClassifier":
        super().train(mode)
        if self.draws:
            for layer in self._dropout():
                layer.train()
        return self

    def start_anew(self) -> list[str]:
        """Draw new weights by the layers' `reset_parameters`; returns the names of those that stay as they were.

        Frozen weights stay by intention, and are not named; nor are constants, such as the ones of an untrained norm.
        """
        given = {name: weight.detach().clone() for name, weight in self.net.named_parameters()}
        for layer in reversed(list(self.net.modules())):  # a network's own start comes after those of its layers
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset) and {weight.requires_grad for weight in layer.parameters()} == {True}:
                reset()
        return [
            name
            for name, weight in self.net.named_parameters()
            if weight.requires_grad and torch.equal(weight, given[name]) and (weight != weight.flatten()[:1]).any()
        ]

    def _dropout(self) -> list[nn.Module]:
        return [layer for layer in self.net.modules() if isinstance(layer, DROPOUTS) and layer.p > 0]

    def _check_layers(self) -> None:
        if not any(weight.requires_grad for weight in self.net.parameters()):
            raise self._refusal("has no weights to train (give it parameters that require gradients)")
        if self.draws and not self._dropout():
            raise self._refusal("has no dropout to draw from (put nn.Dropout in, or take a method without dropout)")

    @torch.no_grad()
    def _check_logits(self, x: Images, n_classes: int) -> None:
        try:
            out: Any = self.net(x)
        except Exception as error:
            raise self._refusal(f"fails on inputs of shape {tuple(x.shape)} ({_first_line(error)})") from error
        if not isinstance(out, Tensor):
            found = f"a {type(out).__name__}"
        elif not out.is_floating_point():
            found = f"a tensor of {out.dtype}"
        elif out.shape != (len(x), n_classes):
            found = f"shape {tuple(out.shape)}"
        else:
            return
        rule = "must give one logit per class (change its last layer)"
        raise self._refusal(f"gives {found} for {n_classes} classes: {rule}")

    @torch.no_grad()
    def _try_channels_last(self, x: Images) -> bool:
        """Whether the network accepts images in channels-last format: `flatten` does, `view` doesn't."""
        if x.ndim != 4:
            return False
        try:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.net(x.contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            return False
        finally:
            self.net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return True

    def _refusal(self, why: str) -> UsageError:
        return UsageError(f"classifier = {self.name}: {why}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
