"""Figures as SVG text and images as PNG.

Only Matplotlib's object interface is used: no pyplot, no backend. Names chosen by users appear in the page's legends,
never in a figure, so that no font needs to have their characters.
"""

import io
import re
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Literal, ParamSpec
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from uqgan.metrics import Reliability
from uqgan.tiles import tile

P = ParamSpec("P")
Frame = tuple[float, float, float, float]
"""Left, right, bottom and top of a rectangle in the plane."""
Pictures = dict[str, str]
"""Data URIs of images, by name."""

HEAT = LinearSegmentedColormap.from_list("uqgan", ["#ffffff", "#ff903b"])
"""The paper's colours: white is certain, orange uncertain."""
GAP = LinearSegmentedColormap.from_list("uqgan-gap", ["#d8d8e0", "#ff903b", "#8c2f00"])
CLASS_COLOURS = (
    "#332288", "#44aa99", "#aa4499", "#999933", "#88ccee", "#882255", "#117733", "#cc6677", "#ddcc77",
    "#777777",
)  # fmt: skip
"""Paul Tol's muted scheme and a grey: safe for colour-blind readers, and without the orange of the heat maps."""
GROUP_COLOURS = ("#332288", "#cc3377", "#e07020", "#44aa99", "#88aadd", "#999933", "#aa4499", "#117733")
"""Colours of correct predictions, wrong ones, then each OoD set."""
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (6, 1, 1, 1)))
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "uqgan",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
}
DPI = 130
CELLS = 120
"""Width and height of a heat map in cells."""
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Points:
    """Real samples (crosses) and generated ones (triangles), with their classes."""

    real: Tensor
    real_y: Tensor
    generated: Tensor | None = None
    generated_y: Tensor | None = None


def colour_of(k: int, colours: Sequence[str] = CLASS_COLOURS) -> str:
    """Colour of class k; they repeat after the last."""
    return colours[k % len(colours)]


def as_svg(draw: Callable[P, Figure]) -> Callable[P, str]:
    """Turn a function that draws a figure into one that returns SVG; a lock protects Matplotlib's global settings."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        text = saved(partial(draw, *args, **kwargs), "svg").decode()
        svg = re.sub(r"(?<=data:image/png;base64,)[^\"]+", _quantised, text)
        return re.sub(r"\n\s*", "\n", svg)

    return drawn


def saved(draw: Callable[[], Figure], form: Literal["svg", "png"]) -> bytes:
    """Figure as bytes of a file; equal figures have equal bytes."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type") if form == "svg" else ("Software",))
    out = io.BytesIO()
    with _LOCK, mpl.rc_context(STYLE):
        draw().savefig(out, format=form, dpi=DPI, metadata=nothing)
    return out.getvalue()


def frame_around(x: Tensor, margin: float) -> Frame:
    """Bounding box of points in the plane, enlarged on each side by `margin` times its size."""
    low, high = x.amin(0), x.amax(0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    return float(low[0]), float(high[0]), float(low[1]), float(high[1])


def cells_of(frame: Frame) -> Tensor:
    """Points at which a heat map is evaluated, row by row from the bottom: (CELLS², 2)."""
    x, y = torch.linspace(frame[0], frame[1], CELLS), torch.linspace(frame[2], frame[3], CELLS)
    return torch.cartesian_prod(y, x).flip(1)


@as_svg
def heat_map(values: Tensor, frame: Frame, unit: str, top: float, points: Points) -> Figure:
    """Heat map of values at `cells_of(frame)`, white at 0 and orange at `top`, with samples on it."""
    figure, axes = _plane(frame)
    image = draw_heat(axes, values, frame, top, points)
    figure.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.05, 1)), label=unit)
    return figure


def draw_heat(axes: Axes, values: Tensor, frame: Frame, top: float, points: Points) -> AxesImage:
    """The map of `heat_map` in axes that are there."""
    image = _raster(axes, np.asarray(values).reshape(CELLS, CELLS), frame, cmap=HEAT, vmin=0, vmax=top)
    _scatter(axes, points)
    return image


@as_svg
def density_map(generated: Tensor, y: Tensor, n_classes: int, frame: Frame, points: Points) -> Figure:
    """Kernel density of the generated examples per class, each in the colour of its class."""
    figure, axes = _plane(frame)
    draw_density(axes, generated, y, n_classes, frame, points)
    return figure


def draw_density(axes: Axes, generated: Tensor, y: Tensor, n_classes: int, frame: Frame, points: Points) -> None:
    """The map of `density_map` in axes that are there."""
    paint = np.ones((CELLS, CELLS, 3))
    for k in range(n_classes):
        density = _density(generated[y == k], cells_of(frame)).reshape(CELLS, CELLS, 1).numpy()
        paint = paint - 0.6 * density * (1 - np.array(to_rgb(colour_of(k))))
    _raster(axes, paint.clip(0, 1), frame)
    _scatter(axes, points)


@as_svg
def gap_map(x: Tensor, gap: Tensor, frame: Frame) -> Figure:
    """Scatter plot of samples, coloured by the error of their class probabilities."""
    figure, axes = _plane(frame)
    order = gap.argsort(stable=True)  # largest errors on top
    dots = axes.scatter(
        x[order, 0].numpy(), x[order, 1].numpy(), s=3, c=gap[order].numpy(), cmap=GAP, vmin=0, zorder=0, linewidths=0
    )
    figure.colorbar(dots, cax=axes.inset_axes((1.03, 0, 0.05, 1)), label="largest |p̂ - p|", ticks=MaxNLocator(4))
    return figure


@as_svg
def reliability_diagram(found: Reliability) -> Figure:
    """Reliability diagram: accuracy over confidence; below, the number of samples per bin."""
    figure = Figure((3.6, 2.9), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    bins = len(found.counts)
    centres = (np.arange(bins) + 0.5) / bins
    above.plot([0, 1], [0, 1], "--", color="#888888", lw=0.8)
    above.bar(centres, np.nan_to_num(found.accuracy), 0.92 / bins, color="#332288", alpha=0.75, lw=0)
    above.plot(found.confidence, found.accuracy, "o", color="#e07020", ms=3)
    above.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    below.bar(centres, found.counts, 0.92 / bins, color="#777777", lw=0)
    for centre, count in zip(centres, found.counts, strict=True):
        if count:
            below.annotate(f"{count}", (centre, count), (0, 1), textcoords="offset points", ha="center", fontsize=5.5)
    below.margins(y=0.3)
    below.set(xlabel="confidence (largest class probability)", ylabel="samples")
    return figure


@as_svg
def histograms(groups: Sequence[Tensor], unit: str, top: float) -> Figure:
    """Histograms of the groups over the same 30 bins, in `GROUP_COLOURS`; the range is at least 0 to `top`."""
    figure = Figure((3.6, 2.3), layout="constrained")
    axes = figure.subplots()
    edges = np.linspace(0, max([top, *(float(group.max()) for group in groups if len(group))]), 31)
    for k, group in enumerate(groups):
        if not len(group):
            continue
        share = np.histogram(group.numpy(), edges)[0] / len(group)
        axes.stairs(share, edges, fill=True, color=colour_of(k, GROUP_COLOURS), alpha=0.12)
        axes.stairs(share, edges, color=colour_of(k, GROUP_COLOURS), lw=1.3, ls=DASHES[k % len(DASHES)])
    axes.set_yscale("function", functions=(np.sqrt, np.square))  # rare values stay visible next to the peak
    axes.set_yticks([0, 0.01, 0.05, 0.2, 0.5, 1], ["0", "1 %", "5 %", "20 %", "50 %", "100 %"])
    axes.set(xlabel=unit, ylabel="share of the group", xlim=(edges[0], edges[-1]), ylim=(0, 1))
    axes.grid(axis="y", alpha=0.25, lw=0.5)
    return figure


def png(images: Tensor) -> bytes:
    """PNG of images (N, channels, height, width), uint8 or in [0, 1], in a row with white lines between them."""
    return tile([images])


def data_uri(picture: str | bytes) -> str:
    """Data URI of an SVG or PNG: inside one, an SVG's ids and styles cannot clash with the page's."""
    if isinstance(picture, bytes):
        return "data:image/png;base64," + b64encode(picture).decode()
    return "data:image/svg+xml;charset=utf-8," + quote(picture, safe="/:;=+,()'*!@$&?~ ")


def _quantised(raster: re.Match[str]) -> str:
    """Image inside an SVG, reduced to 256 colours: half of the bytes, no visible change."""
    picture = Image.open(io.BytesIO(b64decode(raster[0]))).convert("RGBA")
    opaque = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    out = io.BytesIO()
    opaque.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return b64encode(out.getvalue()).decode()


def _plane(frame: Frame) -> tuple[Figure, Axes]:
    ratio = (frame[3] - frame[2]) / max(frame[1] - frame[0], 1e-9)
    figure = Figure((3.6, min(max(2.9 * ratio, 1.5), 3.3) + 0.35), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=frame[:2], ylim=frame[2:], aspect="equal")
    axes.spines[:].set_visible(True)
    axes.tick_params(labelsize=7, length=2)
    axes.set_rasterization_zorder(1)  # everything below is rasterised into one small image inside the SVG
    return figure, axes


def _raster(axes: Axes, values: "np.typing.NDArray[Any]", frame: Frame, **look: Any) -> AxesImage:
    return axes.imshow(values, extent=frame, origin="lower", interpolation="bilinear", aspect="equal", zorder=0, **look)


def _scatter(axes: Axes, points: Points) -> None:
    """Generated samples below real ones; sizes as in the paper's figures."""
    if points.generated is not None and points.generated_y is not None:
        x, y = points.generated.T.numpy()
        axes.scatter(x, y, 11, _colours(points.generated_y), marker="^", alpha=0.5, linewidths=0, zorder=0.4)
    x, y = points.real.T.numpy()
    axes.scatter(x, y, 7, _colours(points.real_y), marker="x", linewidths=0.7, zorder=0.5)


def _colours(labels: Tensor) -> list[str]:
    return [colour_of(k) for k in labels.tolist()]


def _density(x: Tensor, at: Tensor) -> Tensor:
    """Gaussian kernel density by Scott's rule, scaled to a maximum of 1; 0 without points."""
    if not len(x):
        return torch.zeros(len(at))
    cell = 2 * (at[-1] - at[0]) / CELLS
    width = torch.maximum(x.std(0, correction=0) * len(x) ** (-1 / 6), cell)  # coinciding points stay visible
    density = (-torch.cdist(at / width, x / width).square() / 2).clamp(min=-60).exp().mean(1)  # denormals are slow
    return density / density.max().clamp(min=1e-30)
