"""Tables of a setting as Markdown, CSV, LaTeX and HTML: paper, ours and the difference for each method."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

from uqgan import paper
from uqgan.methods import METHODS
from uqgan.paper import BETTER, WORSE
from uqgan.paper.reproduction import INCOMPARABLE, MISSING, Block, Cell, Column, Reproduction, Row, bare
from uqgan.paper.results import Result, names_of, set_title

MARKS = {BETTER: " ▲", WORSE: " ▼"}
VERDICTS = " ▲ better, ▼ worse than the paper by more than 2 of its standard deviations."
NOTHING, SEES = "–", " (sees outliers)"
NAMED = 4
"""Limit of columns listed in which a method is worse; further ones are counted."""
WIDEST = 8
"""Limit of columns of a LaTeX table."""
RUNS = "Runs, with 95 % intervals over their test samples"
CSV_COLUMNS = (
    "setting", "method", "metric", "sets", "score", "paper", "paper_std", "ours", "ours_std", "n", "seeds",
    "difference", "verdict", "best", "values", "lows", "highs",
)  # fmt: skip
PAPER, OURS, DIFFERENCE = "paper", "ours", "difference"


@dataclass(frozen=True)
class Text:
    """Text and emphasis of a cell."""

    words: str
    verdict: str = ""
    best: bool = False


@dataclass(frozen=True)
class Line:
    """Line of a table: values of a method from the paper, ours, or their difference."""

    method: str
    """Title of the method on its first line, otherwise empty."""
    who: str
    seeds: str
    cells: tuple[Text, ...]


def lines(found: Reproduction, block: Block) -> list[Line]:
    """Lines of one table, without methods that have no values in it."""
    made = []
    for row in found.rows:
        cells = [row.cells[bare(column)] for column in block.columns]
        first = title_of(row)
        for who, texts in values_of(cells).items():
            made.append(Line(first, who, str(len(row.results)) if who == OURS else "", texts))
            first = ""
    return made


def values_of(cells: list[Cell]) -> dict[str, tuple[Text, ...]]:
    """Lines of a row with at least one value."""
    texts = {
        PAPER: [Text(str(cell.paper) if cell.paper else NOTHING) for cell in cells],
        OURS: [Text(str(cell.ours) if cell.ours else NOTHING, cell.verdict, cell.best) for cell in cells],
        DIFFERENCE: [Text(signed(cell.difference) + MARKS.get(cell.verdict, ""), cell.verdict) for cell in cells],
    }
    return {who: tuple(row) for who, row in texts.items() if any(text.words != NOTHING for text in row)}


def signed(difference: float | None) -> str:
    """Difference with its sign, without one if it rounds to 0."""
    return NOTHING if difference is None else f"{difference:+.2f}".replace("+0.00", "0.00").replace("-0.00", "0.00")


def title_of(row: Row) -> str:
    """Title of a method, with a mark for what distinguishes it from the other rows."""
    if METHODS[row.method].sees_ood:
        return row.title + SEES
    return row.title if row.printed or not paper.methods(row.task) else f"{row.title} (ours)"


def counted(found: Reproduction) -> str:
    """Sentence with the number of reached values of the paper."""
    counts = found.counts()
    words = {BETTER: "better than that", WORSE: "worse"}
    compared = sum(counts[state] for state in counts if state not in (MISSING, INCOMPARABLE))
    reached = ", ".join(f"{counts[state]} {words[state]}" for state in words)
    rest = [f"{counts[MISSING]} have no run of ours"] if counts[MISSING] else []
    rest += [f"{counts[INCOMPARABLE]} need {names_of(found.lacking)}"] if counts[INCOMPARABLE] else []
    start = (
        f"Of {sum(counts.values())} printed values {compared} are compared: {counts[paper.WITHIN]} of ours are within "
    )
    return f"{start}± 2 of the paper's standard deviations, {reached}" + "".join(f"; {each}" for each in rest) + "."


def column_title(found: Reproduction, column: Column) -> str:
    """Name of a column outside its table."""
    name = paper.TITLES[column.metric]
    if not column.sets:
        return name
    return f"{name} all" if column.sets == found.sets else f"{name} {names_of(column.sets)}"


def explanations(found: Reproduction) -> list[str]:
    """Sentences below the tables."""
    said = ["Percent; mean ± standard deviation, ours over the seeds."]
    if found.ties:
        best = "the best of ours without outliers, and what cannot be told from it"
        said[0] += f" Bold: {best} by {', or by '.join(found.ties)}."
    if found.compared:
        said[0] += VERDICTS
    if found.lacking and found.compared:
        said.append(
            f"Ours are without {names_of(found.lacking)}. The paper's AUROC and FPR95 of several sets are worked out "
            "from its values per set, weighted by their sizes, with the deviation of independent sets; AUPR cannot be."
        )
    if any(METHODS[row.method].sees_ood and row.results for row in found.rows):
        said.append(
            f"Oracles of ours trained with other pictures of the sets they are tested on: {names_of(found.sets)}."
        )
        if paper.methods(found.task):
            of_theirs = f", and {names_of(found.lacking)}" if found.lacking else ""
            said[-1] += f" These training sets are smaller than the authors', who have whole ones{of_theirs}."
    for oracle, plain, behind in found.oracles:
        where = f"all but {names_of(behind)}" if 0 < len(behind) < len(found.sets) else "none" if behind else "all"
        said.append(f"The AUROC of {oracle.title} is higher than that of {plain.title} on {where} of these sets.")
    if paper.methods(found.task) and not all(row.printed for row in found.rows):
        said.append("Rows marked (ours) are not in the paper.")
    return said


def markdown_table(found: Reproduction, block: Block) -> str:
    """Table as Markdown, without its heading."""
    compared = bool(paper.methods(found.task))
    head = ["method", *(["from"] if compared else []), "seeds"]
    rows = [[*head, *(column.title for column in block.columns)]]
    rows.append(["---"] * (len(head) - 1) + ["--:"] * (1 + len(block.columns)))
    for line in lines(found, block):
        cells = [f"**{text.words}**" if text.best else text.words for text in line.cells]
        rows.append([line.method, *([line.who] if compared else []), line.seeds, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def to_markdown(found: Reproduction) -> str:
    parts = [f"# {set_title(found.task)}", *sentences(found)]
    for block in found.blocks:
        parts += [f"## {block.title}", markdown_table(found, block)]
    if runs := runs_table(found):
        parts += [f"## {RUNS}", runs]
    return "\n\n".join(parts) + "\n"


def runs_table(found: Reproduction) -> str:
    """Markdown table of all runs with the first table's columns and their intervals; empty without runs."""
    columns = found.blocks[0].columns
    rows = [["method", "seed", *(column.title for column in columns)], ["---", "--:", *("--:" for _ in columns)]]
    for row in found.rows:
        for result in row.results:
            cells = [with_interval(bare(column), result) for column in columns]
            rows.append([title_of(row), str(result.seed), *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) if len(rows) > 2 else ""


def with_interval(column: Column, result: Result) -> str:
    value, ends = column.ours(result), column.interval(result)
    if value is None:
        return NOTHING
    return f"{value:.2f}" + (f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else "")


def sentences(found: Reproduction) -> list[str]:
    """Sentences on the number of values reached, missing and worse ones, and the explanations."""
    said = [counted(found)] if paper.methods(found.task) else []
    said += [f"Missing: {', '.join(found.missing)}."] if found.missing else []
    worse = []
    for row, columns in found.worse():
        names = [column_title(found, column) for column in columns[:NAMED]]
        rest = [f"{len(columns) - NAMED} more"] if len(columns) > NAMED else []
        worse.append(f"{row.title} ({', '.join(names + rest)})")
    said += [f"Worse than the paper: {'; '.join(worse)}."] if worse else []
    return said + explanations(found)


def to_csv(found: Reproduction) -> str:
    """CSV with one line per value, in percent; names of pooled sets are joined by +.

    `values` are those of the runs in the order of their seeds, `lows` and `highs` their 95 % intervals; - is none.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for row in found.rows:
        for column, cell in row.cells.items():
            theirs = (cell.paper.mean, cell.paper.std) if cell.paper else (None, None)
            mine = (cell.ours.mean, cell.ours.std, len(cell.ours.values)) if cell.ours else (None, None, 0)
            numbers = [f"{each:.4f}" if isinstance(each, float) else each for each in (*theirs, *mine)]
            difference = None if cell.difference is None else f"{cell.difference:+.4f}"
            score = {"sets": "epistemic"}.get(column.score, column.score) if column.sets else ""
            place = (found.task, row.method, column.metric, " + ".join(column.sets), score)
            seeds = " ".join(map(str, row.seeds))
            runs = [(column.ours(result), *(column.interval(result) or (None, None))) for result in row.results]
            each = [" ".join("-" if one is None else f"{one:.4f}" for one in ones) for ones in zip(*runs, strict=True)]
            table.writerow([*place, *numbers, seeds, difference, cell.verdict, int(cell.best), *each])
    return out.getvalue()


def to_latex(found: Reproduction) -> str:
    """Tables in the paper's layout, mean (standard deviation) with the best of ours in bold; needs booktabs."""
    comments = [r"needs \usepackage{booktabs}", *(each.replace(VERDICTS, "") for each in sentences(found))]
    parts = [latex_table(found, part) for block in found.blocks for part in split(block)]
    return "\n\n".join(["\n".join(f"% {each}" for each in comments), *parts]) + "\n"


def split(block: Block) -> list[Block]:
    """Tables that fit on a page: one with many columns is split by their metric."""
    if len(block.columns) <= WIDEST:
        return [block]
    metrics = dict.fromkeys(column.metric for column in block.columns)
    parts = {metric: tuple(column for column in block.columns if column.metric == metric) for metric in metrics}
    return [Block(f"{block.title}, {paper.TITLES[metric]}", columns) for metric, columns in parts.items()]


def latex_table(found: Reproduction, block: Block) -> str:
    """Table with groups of columns, and with rules between our own methods, the baselines and the oracles."""
    sections = []
    for kind in range(3):
        rows = tuple(row for row in found.rows if kind_of(row) == kind)
        shown = [latex_line(line) for line in lines(replace(found, rows=rows), block) if line.who != DIFFERENCE]
        sections += ["\n".join(shown)] if shown else []
    title = latex_text(f"{set_title(found.task)}: {block.title}")
    name = re.sub("[^a-z0-9]+", "-", f"{found.task} {block.title.partition(' without')[0]}".lower())
    head = [r"\begin{table}[t]", r"\centering\scriptsize\setlength{\tabcolsep}{2pt}"]
    head += [rf"\caption{{{title}. Percent (standard deviation); ours (seeds).}}", rf"\label{{tab:{name}}}"]
    head += [rf"\begin{{tabular}}{{ll{'c' * len(block.columns)}}}", r"\toprule", *latex_head(block), r"\midrule"]
    return "\n".join([*head, "\n\\midrule\n".join(sections), r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def kind_of(row: Row) -> int:
    """Place of a method in the paper's tables: its own methods, baselines, oracles."""
    return 2 if METHODS[row.method].sees_ood else int(not row.method.startswith("uqgan"))


def latex_head(block: Block) -> list[str]:
    """Groups of columns, the rules below them, and the columns with arrows to the better side."""
    titles, groups = [], []
    for column in block.columns:
        metric = paper.TITLES[column.metric]
        group, comma, score = column.title.partition(", ")  # "AUROC near, Eq. 4"
        known = "Out-of-Distribution" if column.sets else "In-Distribution"
        arrow = r"$\downarrow$" if column.metric in paper.LOWER_IS_BETTER else r"$\uparrow$"
        titles.append(f"{score if comma else metric[0].upper() + metric[1:]} {arrow}")
        groups.append(group if comma else known)
    spans, rules, first = [], [], 3
    for group, alike in groupby(groups):
        n = len(list(alike))
        spans.append(rf"\multicolumn{{{n}}}{{c}}{{{group}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + n - 1}}}")
        first += n
    return [" & ".join(["", "", *spans]) + r" \\", " ".join(rules), " & ".join(["Method", "", *titles]) + r" \\"]


def latex_line(line: Line) -> str:
    cells = []
    for text in line.cells:
        mean, plus_minus, std = text.words.replace(NOTHING, "--").partition(" ± ")
        words = rf"{mean}\,({std})" if plus_minus else mean
        cells.append(rf"\textbf{{{words}}}" if text.best else words)
    who = f"{line.who} ({line.seeds})" if line.seeds else line.who
    return " & ".join([latex_text(line.method.removesuffix(SEES)), who, *cells]) + r" \\"


def latex_text(words: str) -> str:
    for sign in "&%_#":
        words = words.replace(sign, f"\\{sign}")
    return words


def to_html(found: Reproduction) -> str:
    """Self-contained HTML page; our values outside the paper's ± 2 standard deviations are coloured."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("uqgan"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    tables = [(block, lines(found, block)) for block in found.blocks]
    template = pages.get_template("reproduction.html.jinja")
    title = f"{set_title(found.task)} beside the paper"
    return template.render(title=title, sentences=sentences(found), tables=tables)


FORMATS: dict[str, Callable[[Reproduction], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
    "html": to_html,
}
