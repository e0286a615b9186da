"""Validation of arguments from Python: arrays of any kind as tensors, whole numbers, paths."""

import operator
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uqgan.errors import UsageError

MOST_SEED = 2**31 - 1


def checked_samples(x: Any, shape: tuple[int, ...], what: str = "x") -> Tensor:
    """Samples of that shape: uint8 images unchanged, pixels in [0, 1] or points as float32.

    Arrays may be read-only, reversed, of any float type, or lists of lists.
    """
    found = as_tensor(x, what)
    if found.shape[1:] != shape or found.ndim != len(shape) + 1:
        raise UsageError(f"{what} has shape {tuple(found.shape)}: must be (samples, {', '.join(map(str, shape))})")
    if not len(found):
        raise UsageError(f"{what} holds no samples: must hold at least one")
    images = len(shape) == 3
    if images and found.dtype == torch.uint8:
        return found
    if found.dtype == torch.bool or (images and not found.is_floating_point()):
        rule = "uint8, or floats in [0, 1]" if images else "floats"
        raise UsageError(f"{what} is of {found.dtype}: must be {rule}")
    found = found.float()
    if not found.isfinite().all():
        raise UsageError(f"{what} has values that are NaN or infinite: must be finite")
    if images and not (found.amin() >= 0 and found.amax() <= 1):
        raise UsageError(f"{what} has pixels outside [0, 1]: give uint8, or floats divided by 255")
    return found


def as_tensor(x: Any, what: str) -> Tensor:
    """Numbers of an array, a tensor or nested lists as a tensor; read-only memory is copied."""
    if isinstance(x, list | tuple) and x and all(isinstance(each, Tensor) for each in x):
        if len({each.shape for each in x}) > 1:
            raise UsageError(f"{what} holds tensors of several shapes: must be of one shape")
        x = torch.stack(list(x))
    if isinstance(x, Tensor):
        if x.is_complex() or x.is_quantized:
            raise UsageError(f"{what} is of {x.dtype}: must be uint8, or floats")
        if x.is_meta:
            raise UsageError(f"{what} is on the device meta, without values: must be on cpu, cuda or mps")
        return x.detach().to_dense() if x.layout != torch.strided else x.detach()
    try:
        array = np.asarray(x)
    except Exception as error:  # objects of other libraries raise anything in __array__
        raise UsageError(f"{what} is no array ({' '.join(str(error).split())}): must be numbers of one shape") from None
    if array.dtype.kind not in "biuf":
        name = type(x).__name__ if not array.ndim else f"an array of {array.dtype}"
        raise UsageError(f"{what} is {name}: must be an array or tensor of numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def whole(value: Any, what: str, least: int, most: int) -> int:
    """Whole number within these limits; fractions, booleans and text are refused, not converted."""
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{what} = {brief(value)}: must be a whole number")
    if not least <= number <= most:
        raise UsageError(f"{what} = {number}: must be within {least} to {most}")
    return number


def check_seed(seed: Any) -> int:
    """Seed that all generators of random numbers accept."""
    return whole(seed, "seed", 0, MOST_SEED)


def as_path(value: Any, what: str) -> Path:
    """Path from text or a path object."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise UsageError(f"{what} = {brief(value)}: must be a path")
    return Path(value)


def brief(value: Any) -> str:
    """Value of any kind as short text for a message; text that reads like another kind of value is in quotes."""
    if isinstance(value, str) and not _is_like_a_value(value.strip()):
        words = value
    else:
        try:
            words = repr(value)
        except ValueError:  # a whole number with more digits than Python writes
            words = type(value).__name__
    words = " ".join(words.split())
    return words if len(words) <= 60 else f"{words[:60]} …"


def _is_like_a_value(text: str) -> bool:
    """Whether text is empty, a number, or a constant of Python."""
    try:
        float(text)
    except ValueError:
        return text in ("", "True", "False", "None")
    return True
