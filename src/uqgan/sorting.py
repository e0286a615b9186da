"""Copies of pictures in a folder per decision, and per label for accepted ones."""

import filecmp
import shutil
from collections import Counter
from pathlib import Path

from uqgan.errors import UsageError
from uqgan.files import disk_failure


class Folders:
    """ROOT/accept/LABEL/, ROOT/ambiguous/ and ROOT/unknown/. No file is replaced, and originals are kept."""

    def __init__(self, root: Path, sources: list[Path]) -> None:
        for source in sources:
            if root.resolve().is_relative_to(source.resolve()):
                raise UsageError(f"copy-to = {root}: lies in {source}, which is read (choose a folder outside of it)")
        self.root = root
        self._taken: Counter[Path] = Counter()

    def copy(self, file: str, word: str, label: str) -> None:
        """Copy a picture; if another one has its name it gets a number, and an identical one is not copied again."""
        original = Path(file)
        folder = self.root / word / folder_name(label) if word == "accept" else self.root / word
        wanted = folder / original.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target = wanted
            while True:
                self._taken[wanted] += 1
                k = self._taken[wanted]
                target = wanted if k == 1 else folder / f"{wanted.stem}-{k}{wanted.suffix}"
                if not target.exists():
                    break
                if filecmp.cmp(original, target, shallow=False):
                    return
            unfinished = folder / f".{target.name}.part"
            shutil.copy2(original, unfinished)
            unfinished.replace(target)
        except OSError as error:
            raise disk_failure(wanted, error) from error


def folder_name(label: str) -> str:
    """Name of a class as the name of a folder."""
    name = "".join("_" if sign in '/\\:*?"<>|\0' else sign for sign in label).strip()
    return name if name.strip(".") else "_"
