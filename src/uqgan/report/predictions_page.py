"""Self-contained HTML page with a gallery of pictures for each decision of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from uqgan.data.decode import decode
from uqgan.data.inputs import preprocessing_in_words
from uqgan.data.preprocessing import PixelFormat
from uqgan.data.tasks import is_user_data
from uqgan.decisions import NO_FOREIGNNESS, WORDS
from uqgan.files import write_text
from uqgan.report import plots
from uqgan.run import Run
from uqgan.scoring import Summary
from uqgan.tables import Row


def write_page(file: Path, run: Run, summary: Summary, pixel_format: PixelFormat, drift: str) -> None:
    """Write the page atomically, with its pictures read again and preprocessed."""
    pages = Environment(
        loader=PackageLoader("uqgan"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    galleries = {
        word: [_thumbnail(row, summary.columns, pixel_format) for row in summary.chosen(word)] for word in WORDS
    }
    task = run.record.plan.task
    page = pages.get_template("predictions.html.jinja").render(
        run=run,
        summary=summary,
        galleries=galleries,
        trained_on=Path(task).name if is_user_data(task) else task,
        seen=preprocessing_in_words(pixel_format),
        drift=drift,
        why="" if run.has_foreignness else NO_FOREIGNNESS,
    )
    write_text(file, page)


def _thumbnail(row: Row, columns: Sequence[str], pixel_format: PixelFormat) -> dict[str, Any]:
    pixels, broken = decode([row[0]], pixel_format)
    source = "" if broken else plots.data_uri(plots.png(torch.from_numpy(pixels)))
    return {"source": source, "name": _place(row[0])} | dict(zip(columns, row, strict=True))


def _place(file: str) -> str:
    """Name of a file with that of its folder, as pictures in different folders often have the same names."""
    return "/".join(Path(file).parts[-2:])
