"""A setting of the paper beside our runs: for each method and column the printed value, ours, and the verdict."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from uqgan import paper
from uqgan.data.tasks import is_near
from uqgan.methods import METHODS
from uqgan.paper import BETTER, KNOWN, RANKED, WITHIN, WORSE, Value
from uqgan.paper.results import Found, Result, set_title
from uqgan.paper.ties import RESAMPLES, Contender, tied

MISSING, INCOMPARABLE = "missing", "not comparable"
STATES = (WITHIN, BETTER, WORSE, INCOMPARABLE, MISSING)
"""Possible outcomes for a printed value."""


@dataclass(frozen=True)
class Column:
    """A metric of the known classes, or of OoD sets together as ranked by a score."""

    metric: str
    sets: tuple[str, ...] = ()
    score: str = "sets"
    title: str = ""

    def ours(self, result: Result) -> float | None:
        return result.ood(self.metric, self.sets, self.score) if self.sets else result.known(self.metric)

    def interval(self, result: Result) -> tuple[float, float] | None:
        """95 % interval over the run's test samples."""
        return result.interval(self.metric, self.sets, self.score)

    def theirs(self, task: str, method: str) -> Value | None:
        if not self.sets:
            return paper.known_value(task, method, self.metric)
        return paper.ood_value(task, method, self.metric, self.sets) if self.score == "sets" else None


@dataclass(frozen=True)
class Block:
    """Columns of one table."""

    title: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Ours:
    """Our values over the seeds, in percent."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def std(self) -> float | None:
        """None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


@dataclass(frozen=True)
class Cell:
    """A value of the paper and the corresponding one of ours, each possibly missing."""

    metric: str
    paper: Value | None
    ours: Ours | None
    best: bool = False
    """Whether ours is the best of our methods without outliers, or tied with it."""

    @property
    def verdict(self) -> str:
        return paper.verdict(self.ours.mean, self.paper, self.metric) if self.ours and self.paper else ""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in percent."""
        return self.ours.mean - self.paper.mean if self.ours and self.paper else None


@dataclass(frozen=True)
class Row:
    """Row of a method."""

    task: str
    method: str
    results: tuple[Result, ...]
    cells: dict[Column, Cell]

    @property
    def title(self) -> str:
        return METHODS[self.method].title

    @property
    def printed(self) -> bool:
        """Whether the paper has this row."""
        return self.method in paper.methods(self.task)

    @property
    def seeds(self) -> list[int]:
        return [result.seed for result in self.results]


@dataclass(frozen=True)
class Reproduction:
    """All tables of a task."""

    task: str
    sets: tuple[str, ...]
    """OoD sets of our tests."""
    lacking: tuple[str, ...]
    """OoD sets of the paper that are missing in our tests."""
    blocks: tuple[Block, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    """Methods without a run, and requested seeds without one."""
    notes: tuple[str, ...]
    ties: tuple[str, ...] = ()
    """Criterion for ties with the best."""

    @property
    def compared(self) -> tuple[Row, ...]:
        """Rows with values from both us and the paper."""
        return tuple(row for row in self.rows if row.results and row.printed)

    @property
    def oracles(self) -> list[tuple[Row, Row, tuple[str, ...]]]:
        """Rows of oracles, each with that of its method without outliers, and the sets with no higher AUROC."""
        pairs = []
        for oracle in (row for row in self.rows if self.sets and row.results and METHODS[row.method].sees_ood):
            method = METHODS[oracle.method]
            for plain in (row for row in self.rows if row.results and row.method != oracle.method):
                alike = replace(method, title=plain.title, sees_ood=False, settings="")
                if METHODS[plain.method] == alike:
                    columns = [Column("auroc", (name,)) for name in self.sets]
                    behind = [column.sets[0] for column in columns if _mean(oracle, column) <= _mean(plain, column)]
                    pairs.append((oracle, plain, tuple(behind)))
        return pairs

    def counts(self) -> dict[str, int]:
        """Number of printed values of these methods by verdict, and of those without a value of ours."""
        found: Counter[str] = Counter()
        for row in self.rows:
            if not row.printed:
                continue
            printed = len(KNOWN) + len(RANKED) * (1 + len(paper.sizes(self.task)))
            cells = [row.cells[column] for column in self._printed()]
            found.update(cell.verdict or MISSING for cell in cells)
            found[INCOMPARABLE] += printed - len(cells)
        return {state: found[state] for state in STATES}

    def _printed(self) -> list[Column]:
        """Columns in which the paper has a value that can be compared with ours."""
        every = [Column(metric) for metric in KNOWN]
        together = [self.sets] if len(self.sets) > 1 else []
        for names in [*together, *((name,) for name in self.sets)]:
            metrics = paper.AVERAGED if names == self.sets and self.lacking else RANKED
            every += [Column(metric, names) for metric in metrics]
        return [column for column in self.rows[0].cells if column in every] if self.rows else []

    def worse(self) -> list[tuple[Row, list[Column]]]:
        """Rows with values worse than the paper's band, with their columns."""
        found = [(row, [c for c in self._printed() if row.cells[c].verdict == WORSE]) for row in self.rows]
        return [(row, columns) for row, columns in found if columns]


def bare(column: Column) -> Column:
    """Column without its title, the key of a row's cells."""
    return replace(column, title="")


def reproduce(
    task: str, found: Found, methods: Collection[str] = (), seeds: Collection[int] = (), resamples: int = RESAMPLES
) -> Reproduction:
    """Comparison for all methods of the paper, or the named ones, and for others with results.

    Ties with the best are found by that many resamples of the raw scores, if they exist.
    """
    printed = paper.methods(task)
    chosen = [name for name in METHODS if name in methods or (not methods and (name in printed or found.of(name)))]
    results = {name: tuple(found.of(name)) for name in chosen}
    gone: dict[str, list[int]] = {}
    for name, seed in missing_runs(found, chosen, seeds):
        gone.setdefault(name, []).append(seed)
    missing = [f"{name} (seed {', '.join(map(str, gone[name]))})" if results[name] else name for name in gone]
    sets = shared_sets(task, [result for group in results.values() for result in group])
    lacking = tuple(name for name in paper.sizes(task) if name not in sets)
    table = blocks(task, sets, lacking)
    columns = [bare(column) for block in table for column in block.columns]
    rows, how = mark_best(
        [Row(task, name, group, cells(task, name, group, columns)) for name, group in results.items()], resamples
    )
    return Reproduction(task, sets, lacking, table, tuple(rows), tuple(missing), tuple(found.notes), how)


def missing_runs(found: Found, methods: Collection[str], seeds: Collection[int]) -> list[tuple[str, int]]:
    """Method and seed of each requested run that is missing; without seeds, one run of each method is requested."""
    there = {name: {result.seed for result in found.of(name)} for name in methods}
    return [
        (name, seed) for name in methods for seed in (seeds or ([] if there[name] else [0])) if seed not in there[name]
    ]


def shared_sets(task: str, results: Sequence[Result]) -> tuple[str, ...]:
    """OoD sets common to all results, in the paper's order; without results, the paper's."""
    order = list(paper.sizes(task))
    if not results:
        return tuple(order)
    shared = [name for name in results[0].sets if all(name in result.sets for result in results)]
    return tuple(sorted(shared, key=lambda name: order.index(name) if name in order else len(order)))


def blocks(task: str, sets: tuple[str, ...], lacking: tuple[str, ...]) -> tuple[Block, ...]:
    """Tables of a task: the paper's main one, near and far sets, each set, and both scores side by side."""
    without = f" without {', '.join(map(set_title, lacking))}" if lacking else ""
    known = [Column(metric, title=paper.TITLES[metric]) for metric in KNOWN]
    together = [Column(metric, sets, title=f"{paper.TITLES[metric]} all") for metric in RANKED if sets]
    found = [Block(f"Known classes, and all OoD sets{without}", (*known, *together))]
    for name in sets if len(sets) > 1 else ():
        found.append(Block(set_title(name), tuple(Column(m, (name,), title=paper.TITLES[m]) for m in RANKED)))
    near = tuple(name for name in sets if is_near(task, name))
    far = tuple(name for name in sets if name not in near)
    groups = {"near": near, "far": far} if near and far and (len(far) == 1 or paper.sizes(task)) else {}
    scores = {"sets": "Eq. 4", "foreignness": "foreignness"}
    both = [
        Column(metric, names, score, f"{paper.TITLES[metric]} {group}, {words}")
        for metric in paper.AVERAGED
        for group, names in {**groups, "all": sets}.items()
        for score, words in scores.items()
        if names
    ]
    return (*found, Block("Near and far, and both scores", tuple(both))) if both else tuple(found)


def cells(task: str, method: str, results: Sequence[Result], columns: Sequence[Column]) -> dict[Column, Cell]:
    """Cells of a row; runs in which a value is undefined (S/F without an error) are left out of the mean."""
    row = {}
    for column in columns:
        values = tuple(value for result in results if (value := column.ours(result)) is not None)
        row[column] = Cell(column.metric, column.theirs(task, method), Ours(values) if values else None)
    return row


def mark_best(rows: list[Row], resamples: int) -> tuple[list[Row], tuple[str, ...]]:
    """Rows with the best of ours marked in each column, among methods without outliers; and the criterion for ties."""
    marked, how = {row.method: dict(row.cells) for row in rows}, set[str]()
    for column in rows[0].cells if rows else ():
        sign = -1 if column.metric in paper.LOWER_IS_BETTER else 1
        means = {
            row.method: sign * ours.mean
            for row in rows
            if (ours := row.cells[column].ours) and not METHODS[row.method].sees_ood
        }
        if len(means) < 2:
            continue
        best = max(means, key=lambda name: means[name])
        contenders = {
            row.method: Contender(row.results, ours.values) for row in rows if (ours := row.cells[column].ours)
        }
        for name in means:
            same = name == best
            if not same:
                pair = contenders[best], contenders[name]
                same, by = tied(*pair, column.metric, column.sets, column.score, resamples)
                how.add(by)
            marked[name][column] = replace(marked[name][column], best=same)
    return [replace(row, cells=marked[row.method]) for row in rows], tuple(sorted(how))


def _mean(row: Row, column: Column) -> float:
    """Mean of a metric over our seeds."""
    return mean(value for result in row.results if (value := column.ours(result)) is not None)
