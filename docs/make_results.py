"""Write the pages of results and the tables of README.md from the files under results/: `make results`."""

from functools import cache
from pathlib import Path

import make_tables
from make_practice import practice, toys
from make_scale import scale
from make_settings import page, readme_tables, summary, tasks
from make_speed import costs, speed
from make_studies import images, studies
from make_tables import ROOT, joined, used

__all__ = ["images", "pages", "practice", "readme", "results", "studies", "toys", "used"]

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
INTRODUCTION = """# Results

Made by `make results` from the files under `results/`, which hold every score with its settings, versions, device,
command and commit; a test fails when a page is not what they give. Percent, mean ± standard deviation over the
seeds. "Ours" is this program, "paper" the printed value. ▲ better, ▼ worse than the paper by more than 2 of its
standard deviations. Bold: the best of all methods of ours that see no outliers, and those whose mean ± standard
deviation (of a single run: 95 % interval) overlaps with its. S/F: success against failure. OoD sets are ranked by Eq.
4; FPR95 takes the known classes as positive. A record without a commit of its own has that of its first appearance.
[Every look at a test set](test-set-looks.md) is logged. `uqgan reproduce cifar10` trains what is missing and makes such
tables of all runs, on the terminal or as Markdown, CSV, LaTeX and HTML."""


def results() -> str:
    """The overview of all settings."""
    return joined(INTRODUCTION, *map(summary, tasks()), costs(), speed())


@cache
def pages() -> dict[Path, str]:
    """All pages that are made from results/, by their places."""
    docs = ROOT / "docs"
    made = {docs / "results.md": results(), docs / "toys.md": toys(), docs / "practice.md": practice()}
    made[docs / "studies.md"] = studies()
    made[docs / "scale.md"] = scale((docs / "scale.md").read_text())
    return made | {docs / "results" / f"{task}.md": page(task) for task in tasks()}


def readme(text: str) -> str:
    """README.md with its tables made anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{readme_tables()}\n{END}{rest.split(END)[1]}"


def main() -> None:
    for file, text in pages().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    for file, picture in images().items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(picture)
    (make_tables.ROOT / "README.md").write_text(readme((ROOT / "README.md").read_text()))


if __name__ == "__main__":
    main()
