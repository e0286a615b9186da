"""Where ours are below the paper or not in its order, and why; figures in the reasons are taken from results/."""

from statistics import mean

from make_tables import record, table
from uqgan import paper
from uqgan.methods import METHODS
from uqgan.paper.layouts import NAMED, column_title, title_of
from uqgan.paper.reproduction import Cell, Column, Reproduction, Row, bare

FIRST = "uqgan-mc"
"""Method that is ahead of all others without outliers in the paper."""
ORDER = "order"
"""Key of the reason why it is not, beside those of methods."""
NO_CAUSE = "not looked into"
LEAST = 0.05
"""Least standard deviation, in percentage points, by which distances are compared."""
WORSE = """## Below the paper

What ours miss by more than 2 of the paper's standard deviations, the farthest first, and why, as far as it was looked
into."""


class Figures(dict[str, float]):
    """Percentages by name, for texts.

    `{METHOD METRIC}` is the mean over our seeds, with `SET` that of an OoD set or of `all`, with `seed N` that of a
    seed, with `paper` the printed value.
    """

    def __init__(self, found: Reproduction) -> None:
        super().__init__()
        self.found = found

    def __missing__(self, name: str) -> float:
        method, metric, *rest = name.split()
        printed, sets = "paper" in rest, rest[:1] if rest and rest[0] not in ("paper", "seed") else []
        chosen = int(rest[-1]) if "seed" in rest else None
        names = self.found.sets if sets == ["all"] else tuple(sets)
        column = Column(metric, names)
        if printed:
            task, _, other = method.rpartition("/")
            value = column.theirs(task or self.found.task, other)
            assert value, f"{{{name}}}: the paper has no such value"
            return value.mean
        row = next(row for row in self.found.rows if row.method == method)
        values = [column.ours(result) for result in row.results if chosen in (None, result.seed)]
        known = [value for value in values if value is not None]
        assert known, f"{{{name}}}: there is no such value"
        return mean(known)


def cause(found: Reproduction, name: str) -> str:
    """The reason that was found, with its figures; empty if there is none."""
    text = (record("causes.json") or {}).get(found.task, {}).get(name, "")
    return str(text).format_map(Figures(found))


def below(found: Reproduction) -> str:
    """Rows that miss the paper's values, with the columns and the cause."""
    rows = []
    for row, columns in found.worse():
        farthest = sorted(columns, key=lambda column: -deviations(row.cells[column]))[:NAMED]
        missed = [
            f"{column_title(found, column)} {row.cells[column].ours} ({row.cells[column].paper})" for column in farthest
        ]
        missed += [f"{len(columns) - NAMED} more"] if len(columns) > NAMED else []
        rows.append([title_of(row), "; ".join(missed), cause(found, row.method) or NO_CAUSE])
    return f"{WORSE}\n\n{table(['method', 'ours (paper)', 'cause'], rows, 3)}" if rows else ""


def deviations(cell: Cell) -> float:
    """Distance from the paper's value, in its standard deviations; next to none counts as LEAST."""
    assert cell.paper
    assert cell.difference is not None
    return abs(cell.difference) / max(cell.paper.std, LEAST)


def order(found: Reproduction) -> str:
    """Whether the paper's first is ours, too, on AUROC and FPR95 of all sets; of the methods that see no outliers."""
    rows = [row for row in found.rows if row.results and row.printed and not METHODS[row.method].sees_ood]
    first = next((row for row in rows if row.method == FIRST), None)
    if not first or len(rows) < 2 or not found.sets:
        return ""
    columns = [Column(metric, found.sets) for metric in paper.AVERAGED]
    said = {column_title(found, column): standing(first, rows, column) for column in columns}
    words = [
        f"{first.title} is {state} on {' and '.join(name for name in said if said[name] == state)}."
        for state in dict.fromkeys(said.values())
    ]
    return " ".join([*words, cause(found, ORDER)]).strip()


def standing(first: Row, rows: list[Row], column: Column) -> str:
    """A row among others in one column, in words."""
    sign = 1 if column.metric in paper.LOWER_IS_BETTER else -1
    values = {row.method: ours for row in rows if (ours := row.cells[bare(column)].ours)}
    ahead = [row for row in rows if sign * values[row.method].mean < sign * values[first.method].mean]
    if not ahead:
        return f"ahead of all {len(rows) - 1} other rows of ours without outliers"
    names = ", ".join(f"{row.title} ({values[row.method]})" for row in ahead)
    tied = ", though within reach of it," if first.cells[bare(column)].best else ""
    return f"behind {names}{tied} with {values[first.method]}"
