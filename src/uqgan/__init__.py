"""Image classifiers that say what a picture is, how torn they are between classes, and how foreign it is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uqgan.api import fit, load, load_task
    from uqgan.config import Config
    from uqgan.methods import METHODS
    from uqgan.run import Run
    from uqgan.uncertainty import Prediction

__version__ = "0.1.0"
__all__ = ["METHODS", "Config", "Prediction", "Run", "__version__", "fit", "load", "load_task"]

_HOMES = {"METHODS": "methods", "Config": "config", "Prediction": "uncertainty", "Run": "run"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'uqgan' has no attribute {name!r}")
    return getattr(import_module(f"uqgan.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
