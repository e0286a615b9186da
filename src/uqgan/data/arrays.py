"""Pictures given as arrays, tensors or Pillow images, with labels of any kind."""

import hashlib
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uqgan.data.preprocessing import PixelFormat, preprocessed
from uqgan.errors import UsageError, count
from uqgan.samples import as_tensor

IMAGE_NAMES, LABEL_NAMES = ("image", "img"), ("label", "fine_label")


def as_pictures(x: Any, what: str) -> Tensor:
    """Images as uint8 (N, channels, rows, columns); channels may also come last, or be absent where all is grey."""
    pictures = as_tensor(x, what).cpu()
    pictures = pictures[:, None] if pictures.ndim == 3 else pictures
    if pictures.ndim == 4 and pictures.shape[1] not in (1, 3) and pictures.shape[3] in (1, 3):
        pictures = pictures.permute(0, 3, 1, 2)
    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or not pictures.numel():
        raise UsageError(f"{what}: has shape {tuple(pictures.shape)}: must be (N, 1 or 3, rows, columns)")
    if pictures.dtype == torch.uint8:
        return pictures.contiguous()
    low, high = float(pictures.double().min()), float(pictures.double().max())
    if not pictures.is_floating_point() or not 0 <= low <= high <= 1:
        raise UsageError(f"{what}: {pictures.dtype} from {low:g} to {high:g}: must be uint8, or floats within [0, 1]")
    return (pictures * 255).round().to(torch.uint8).contiguous()


def resized(x: Tensor, pixel_format: PixelFormat) -> Tensor:
    """Images of this size and number of channels."""
    if x.shape[1:] == (pixel_format.channels, pixel_format.size, pixel_format.size):
        return x
    return torch.from_numpy(np.stack([preprocessed(picture_of(each), pixel_format) for each in x]))


def picture_of(item: Any) -> Any:
    """Pillow image of an array or a tensor; a Pillow image stays as it is."""
    from PIL import Image

    if isinstance(item, Image.Image):
        return item
    one = as_pictures(as_tensor(item, "image")[None], "image")[0].numpy()
    return Image.fromarray(one[0] if len(one) == 1 else one.transpose(1, 2, 0))


def arrays_in(file: Path) -> dict[str, Any]:
    """Arrays of a .npz file by name."""
    try:
        with file.open("rb") as opened:
            if not zipfile.is_zipfile(opened):
                raise UsageError(f"{file}: not a whole .npz file (numpy.savez writes such files)")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    except Exception as error:  # NumPy's, zipfile's and zlib's errors have no common kind
        why = "it holds Python objects, not numbers" if "allow_pickle" in str(error) else " ".join(str(error).split())
        raise UsageError(f"{file}: not a whole .npz file of arrays ({why})") from None
    strange = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise UsageError(f"{file}: {strange[0]} is no array (numpy.savez writes such files)")
    return arrays


def labels_of(y: Any, what: str) -> Any:
    """Labels as an array of numbers or words, which can be sorted."""
    try:
        labels = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    except Exception as error:  # whatever a foreign object raises when it is asked for an array
        raise UsageError(f"{what} is no array ({' '.join(str(error).split())}): must be labels") from None
    if labels.dtype.kind == "O" and labels.ndim == 1 and all(isinstance(each, str) for each in labels):
        labels = labels.astype(str)
    if labels.dtype.kind not in "biufU" or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
        raise UsageError(f"{what} holds labels that are no numbers or names: must be of one kind, none missing")
    return labels


def numbered(labels: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Labels of any kind as 0, 1, …, with the names they had."""
    names, y = np.unique(labels_of(labels, "y"), return_inverse=True)
    if len(names) < 2:
        raise UsageError(f"y: has {count(len(names), 'class')}: must have at least 2")
    return torch.from_numpy(y.astype(np.int64)), tuple(str(name) for name in names.tolist())


def as_pair(item: Any) -> tuple[Any, Any]:
    """Image and label of an item, which is a pair or a mapping."""
    if isinstance(item, Mapping):
        image, label = (next((item[key] for key in keys if key in item), None) for keys in (IMAGE_NAMES, LABEL_NAMES))
        if image is None or label is None:
            raise UsageError(f"items have {', '.join(map(str, item))}: must have image and label")
        return image, label
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise UsageError(f"items are of type {type(item).__name__}: must be (image, label)")
    return item[0], int(item[1]) if isinstance(item[1], Tensor) else item[1]


def pairs_in(names: Collection[str], file: Path) -> dict[str, tuple[str, str]]:
    """Names of the arrays of pictures and labels by level; half a pair is refused, and so are two training sets."""
    has = f"{file}: has {', '.join(names) or 'nothing'}"
    train = ("x", "y") if {"x", "y"} & set(names) else ("x_train", "y_train")
    if train == ("x", "y") and {"x_train", "y_train"} & set(names):
        raise UsageError(f"{has}: must have either x and y, or x_train and y_train")
    levels = {"train": train, "val": ("x_val", "y_val"), "test": ("x_test", "y_test")}
    pairs = {level: keys for level, keys in levels.items() if set(keys) & set(names)}
    for x, y in pairs.values():
        if not {x, y} <= set(names):
            there, lacking = (x, y) if x in names else (y, x)
            raise UsageError(f"{has}: {there} needs {lacking} (add it, or leave out {there})")
    if "train" not in pairs:
        raise UsageError(f"{has}: must have x and y, or x_train and y_train")
    return pairs


def digest_of(given: Mapping[str, tuple[Tensor, Any]], ood: Mapping[str, Tensor]) -> str:
    """Digest of user-supplied pictures and labels by level, and of OoD sets by name."""
    whole = hashlib.sha256()
    for level, (x, y) in given.items():
        whole.update(repr((level, tuple(x.shape), y.tolist())).encode())
        whole.update(x.numpy().data)
    for key, x in sorted(ood.items()):
        whole.update(repr((key, tuple(x.shape))).encode())
        whole.update(x.numpy().data)
    return whole.hexdigest()
