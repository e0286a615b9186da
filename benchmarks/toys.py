"""Test of the shields on the toys: figures for three seeds each, compared with bounds; JSON under results/toys/.

    python benchmarks/toys.py [--workers 2] [--seeds 0 1 2] [--only moons grid-3] [--device cuda]

Without the regulariser (λ_R = 0) the overlapping Gaussians are left open: that run stands beside the default.
"""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

import uqgan
from uqgan.data.toy import TOYS, Gaussians
from uqgan.files import write_json

RESULTS = Path(__file__).parent.parent / "results" / "toys"
FAR = 4.0  # standard deviations


def grid(low: tuple[float, float], high: tuple[float, float], n: int = 141) -> Tensor:
    x, y = (torch.linspace(a, b, n) for a, b in zip(low, high, strict=True))
    return torch.cartesian_prod(x, y)


def measure_overlap(run: uqgan.Run) -> dict[str, float]:
    points = grid((-7, -7), (7, 7))
    far = points[TOYS["gaussians-overlap"].distance(points) > FAR]
    corners = torch.tensor([[7.0, 0.0], [-7.0, 0.0], [0.0, 7.0], [0.0, -7.0]])
    origin, edges = run.predict(torch.zeros(1, 2)), run.predict(torch.tensor([[3.5, 0.0], [-3.5, 0.0]]))
    fresh = TOYS["gaussians-overlap"].sample(50_000, torch.Generator().manual_seed(12345))
    truth = TOYS["gaussians-overlap"].posterior(fresh.x)
    known = run.predict(fresh.x)
    return {
        "share of far points with epistemic >= 0.9": share(run.predict(far).epistemic >= 0.9),
        "epistemic at (±7, 0) and (0, ±7), least": float(run.predict(corners).epistemic.min()),
        "epistemic of known samples, median": float(known.epistemic.median()),
        "aleatoric at the origin": float(origin.aleatoric),
        "epistemic at the origin": float(origin.epistemic),
        "foreignness at the origin": float(origin.foreignness),
        "aleatoric at (±3.5, 0), most": float(edges.aleatoric.max()),
        "|p̂(y|x) - p(y|x)|, mean": float((known.probs - truth).abs().mean()),
    }


def measure_moons(run: uqgan.Run) -> dict[str, float]:
    gap = run.predict(torch.tensor([[0.5, 0.25]]))
    points = grid((-2.5, -2.0), (3.5, 2.5))
    outside = points[TOYS[run.task.name].distance(points) > 1.5 * FAR]
    return {
        "epistemic in the gap": float(gap.epistemic),
        "aleatoric in the gap": float(gap.aleatoric),
        "share of points well outside with epistemic >= 0.95": share(run.predict(outside).epistemic >= 0.95),
        "epistemic of known samples, median": float(run.predict(run.task.test.x).epistemic.median()),
    }


def measure_grid(run: uqgan.Run) -> dict[str, float]:
    toy = TOYS[run.task.name]
    assert isinstance(toy, Gaussians)
    fresh = toy.sample(50_000, torch.Generator().manual_seed(12345))
    island = torch.cdist(fresh.x, torch.tensor(toy.means)).argmin(1)
    known = run.predict(fresh.x).epistemic
    middle = torch.tensor([(2.0 * i, 2.0 * j) for i in range(5) for j in range(5) if i % 2 or j % 2])
    gap = run.predict(middle)
    points = grid((-5, -5), (13, 13))
    outside = points[toy.distance(points) > 5.0]
    return {
        "epistemic on an island, median, most": max(float(known[island == k].median()) for k in range(9)),
        "max(aleatoric, epistemic) in a gap, least": float(torch.maximum(gap.aleatoric, gap.epistemic).min()),
        "share of points outside with epistemic >= 0.9": share(run.predict(outside).epistemic >= 0.9),
    }


def share(flags: Tensor) -> float:
    return float(flags.double().mean())


Bounds = dict[str, tuple[str, float]]
AT_LEAST, AT_MOST = "at least", "at most"
OVERLAP: Bounds = {
    "share of far points with epistemic >= 0.9": (AT_LEAST, 0.99),
    "epistemic at (±7, 0) and (0, ±7), least": (AT_LEAST, 0.9),
    "epistemic of known samples, median": (AT_MOST, 0.1),
    "aleatoric at the origin": (AT_LEAST, 0.6),
    "epistemic at the origin": (AT_MOST, 0.6),
    "foreignness at the origin": (AT_MOST, 0.2),
    "aleatoric at (±3.5, 0), most": (AT_MOST, 0.1),
    "|p̂(y|x) - p(y|x)|, mean": (AT_MOST, 0.015),
}
QUIET: Bounds = {
    "epistemic in the gap": (AT_LEAST, 0.6),
    "share of points well outside with epistemic >= 0.95": (AT_LEAST, 0.99),
}
NOISY: Bounds = {
    "epistemic in the gap": (AT_MOST, 0.6),
    "aleatoric in the gap": (AT_LEAST, 0.6),
    "share of points well outside with epistemic >= 0.95": (AT_LEAST, 0.99),
}
GRID: Bounds = {
    "epistemic on an island, median, most": (AT_MOST, 0.15),
    "max(aleatoric, epistemic) in a gap, least": (AT_LEAST, 0.6),
    "share of points outside with epistemic >= 0.9": (AT_LEAST, 0.99),
}
Case = tuple[str, dict[str, Any], Callable[[uqgan.Run], dict[str, float]], Bounds]
CASES: dict[str, Case] = {
    "gaussians-overlap": ("gaussians-overlap", {}, measure_overlap, OVERLAP),
    "gaussians-overlap-without-regulariser": ("gaussians-overlap", {"lambda_reg": 0.0}, measure_overlap, {}),
    "moons": ("moons", {}, measure_moons, QUIET),
    "moons-noisy": ("moons-noisy", {}, measure_moons, NOISY),
    "grid-3": ("grid-3", {}, measure_grid, GRID),
    "grid-9": ("grid-9", {}, measure_grid, {}),
}


def work(job: tuple[str, int, str]) -> tuple[str, int, dict[str, float], dict[str, Any]]:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    case, seed, device = job
    task, settings, measure, _ = CASES[case]
    run = uqgan.fit("uqgan", task, seed=seed, device=device, quiet=True, **settings)
    facts = run.record.about | {"settings": run.record.plan.config.model_dump()["uqgan"]}
    return case, seed, measure(run), facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    jobs = [(case, seed, arguments.device) for case in arguments.only for seed in arguments.seeds]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        done = list(pool.map(work, jobs))
    for case in arguments.only:
        rows = [row for row in done if row[0] == case]
        figures = {name: [row[2][name] for row in rows] for name in rows[0][2]}
        facts = {key: rows[0][3][key] for key in ("settings", "device", "threads", "versions", "commit")}
        seconds = [row[3]["seconds"] for row in rows]
        seeds = " ".join(map(str, arguments.seeds))
        command = f"python benchmarks/toys.py --only {case} --seeds {seeds} --device {arguments.device}"
        record = {"case": case, "command": command, "seeds": arguments.seeds, "figures": figures, "seconds": seconds}
        write_json(arguments.results / f"{case}.json", record | facts)
        show(case, figures)


def show(case: str, figures: dict[str, list[float]]) -> None:
    print(f"\n{case}")
    for name, values in figures.items():
        kind, bound = CASES[case][3].get(name, ("", 0.0))
        met = all(v >= bound if kind == AT_LEAST else v <= bound for v in values)
        verdict = f"{kind} {bound}: {'yes' if met else 'NO'}" if kind else ""
        print(f"  {name:52} {'  '.join(f'{v:.4f}' for v in values)}   {verdict}")


if __name__ == "__main__":
    main()
