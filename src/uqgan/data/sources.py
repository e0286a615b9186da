"""The paper's data sets: a table of them, and their Parquet files on this machine.

Files of a split are ROOT/NAME/SPLIT-*.parquet or ROOT/NAME/CONFIGURATION/SPLIT-*.parquet.
"""

import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from uqgan.data.parquet import count_rows
from uqgan.data.preprocessing import PixelFormat
from uqgan.errors import UsageError
from uqgan.files import cache_folder


@dataclass(frozen=True)
class Repository:
    """A data set: its repository on the hub, the names of its columns there, and how its pictures are stored."""

    hub: str | None
    """Repository id; None where no faithful copy is known."""
    config: str
    """Configuration, which is the folder of its files."""
    image: str = "image"
    """Column of pictures on the hub; in copies placed by hand it may be image."""
    label: str = "label"
    """Column of labels on the hub; in copies placed by hand it may be label."""
    train: tuple[str, ...] = ("train", "train_ood", "train_subset")
    """Splits to train with; later ones are used only for classes that are absent from the earlier ones."""
    test: tuple[str, ...] = ("test",)
    """Splits to test with; the first one found is used."""
    revision: str = "main"
    verified: bool = False
    """Whether files from the hub have been read with this row; otherwise it follows the documentation of the hub."""
    transposed: bool = False
    """Whether rows and columns of the pictures are exchanged."""
    inverted: bool = False
    """Whether the pictures are black on white."""
    size: int = 32
    """Pixels per side at which the set is shown on its own; a task may use another size."""
    channels: int = 3
    class_order: str = ""
    """File with the class names in the paper's order, in this package; empty if the set itself has this order."""

    @property
    def columns(self) -> tuple[str, str]:
        return self.image, self.label

    def pixel_format(self, size: int, channels: int) -> PixelFormat:
        return PixelFormat(size, channels, self.transposed, self.inverted)

    def official_classes(self) -> tuple[str, ...]:
        """Class names in the paper's order; empty if the set itself has this order."""
        file = resources.files("uqgan") / "data" / self.class_order
        return tuple(file.read_text().split()) if self.class_order else ()


REPOSITORIES: dict[str, Repository] = {
    "mnist": Repository("ylecun/mnist", "mnist", channels=1),
    "fashion-mnist": Repository("zalando-datasets/fashion_mnist", "fashion_mnist", channels=1),
    "cifar10": Repository("uoft-cs/cifar10", "plain_text", image="img"),
    "cifar100": Repository("uoft-cs/cifar100", "cifar100", image="img", label="fine_label"),
    "svhn": Repository("ufldl-stanford/svhn", "cropped_digits"),
    "omniglot": Repository("dpdl-benchmark/omniglot", "data", inverted=True, channels=1),
    "emnist-letters": Repository(
        "tanganke/emnist_letters",
        "emnist-letters",
        revision="4236c26fe034bc5b23851adc00067fa87b8ac16b",
        transposed=True,
        channels=1,
    ),
    "tiny-imagenet": Repository(
        "zh-plus/tiny-imagenet", "data", test=("val", "valid"), size=64, class_order="tiny_imagenet_classes.txt"
    ),
    # The hub has LSUN's test pictures only resized to 32 pixels without the paper's centre crop, which differ.
    "lsun": Repository(None, "data"),
}
"""All sets that the paper trains or tests on, by the name that tasks and commands use."""


def data_root(root: str | Path | None = None) -> Path:
    """Folder of the sets: the requested one, or UQGAN_DATA, or the one that `uqgan data fetch` fills; it must exist."""
    place = configured_root(root)
    if place != cache_folder() / "data" and not os.path.isdir(place):  # noqa: PTH112
        raise UsageError(f"{'--data-root' if root else 'UQGAN_DATA'} = {place}: no such folder")
    return place


def configured_root(root: str | Path | None = None) -> Path:
    """Folder of the sets, which need not exist."""
    return Path(root or os.environ.get("UQGAN_DATA") or cache_folder() / "data")


def folder_of(name: str, root: Path) -> Path:
    """Folder of a set."""
    return root / name.replace("-", "_")


def files_of(name: str, split: str, root: Path) -> list[Path]:
    """Files of a split, in order; empty if it is not on this machine."""
    folder = folder_of(name, root)
    for place in (folder, folder / REPOSITORIES[name].config):
        files = sorted(place.glob(f"{split}-*.parquet"))
        if files:
            parts = re.search(r"-of-(\d+)", files[0].name)
            if parts and int(parts[1]) != len(files):
                raise UsageError(f"{place}: has {len(files)} of the {int(parts[1])} files of {split} (fetch it again)")
            return files
    return []


def splits_of(name: str, part: str, root: Path) -> list[str]:
    """Splits on this machine that form `train` or `test`."""
    found = [split for split in getattr(REPOSITORIES[name], part) if files_of(name, split, root)]
    return found if part == "train" else found[:1]


def rows_of(name: str, split: str, root: Path) -> int:
    """Number of pictures in a split, without reading them."""
    return sum(count_rows(files_of(name, split, root)))


def how_to_get(name: str, root: Path) -> str:
    """Advice with both ways to get a set: to fetch it, and to place its files by hand."""
    repository = REPOSITORIES[name]
    files = f"{repository.train[0]}-*.parquet and {repository.test[0]}-*.parquet"
    by_hand = f"place {files} with columns {repository.image} and {repository.label} in {folder_of(name, root)}"
    return f"uqgan data fetch {name}, or {by_hand}" if repository.hub else by_hand
