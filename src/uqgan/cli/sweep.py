"""The command sweep: search for settings."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.console import Console

from uqgan.cli.app import Json, Voice, Whole, app, print_json, show_rows
from uqgan.cli.chosen import ConfigLists, changes, chosen_seeds
from uqgan.cli.running import Place, check_outcome, command_of, outcome, percent, run_cells, show_outcome
from uqgan.cli.work import Pictures

if TYPE_CHECKING:
    from uqgan.grid.cells import Cell
    from uqgan.sweeps import Space, Tried

FOLDER = "sweeps"
"""Subfolder for the results of sweeps."""
AT_ONCE = 4
"""Number of trials drawn together, if the number of workers is not given."""
Varied = Annotated[
    ConfigLists | None,  # type: ignore[valid-type]
    Parameter(name="*", group=Group("Settings (values joined by commas; with --trials also ranges)")),
]


@app.command
def sweep(
    *,
    task: str,
    method: str = "uqgan",
    seeds: str = "0",
    by: str = "auroc",
    trials: Annotated[Whole | None, Parameter(validator=Number(gte=1))] = None,
    report: bool = False,
    place: Place = Place(),
    pictures: Pictures = Pictures(),
    settings: Varied = None,
    as_json: Json = False,
    voice: Voice = Voice(),
) -> None:
    """Search for settings by validation scores, known and OoD: all combinations, or trials that learn from others.

    Test sets are not used, unless --report requests it after the settings are chosen, for runs with other seeds
    than those of the search. The same command continues after Ctrl-C or a kill. Results are in
    OUTPUT/sweeps.

    Parameters
    ----------
    task
        One of `uqgan tasks`, or user-supplied pictures.
    method
        One of `uqgan methods`.
    seeds
        Seeds such as 0-4 or 0,2; settings are chosen by the mean of their scores.
    by
        accuracy, auroc_sf, ece, auroc, aupr_in, aupr_out or fpr95_id_positive; OoD sets have equal weights.
    trials
        Number of combinations to try, drawn by a tree-structured Parzen estimator (TPE) from values or from ranges such
        as 0.1:0.9 or 1:128:log; needs optuna.
    report
        Train the chosen settings again with as many other seeds, and test these runs.
    as_json
        Print the results as JSON.
    """
    from uqgan.api import check_sections
    from uqgan.sweeps import best, check_metric, space_of

    check_sections(method, {})
    given = changes(settings)
    space, numbers = space_of(given, task, method), chosen_seeds(seeds or "0")
    search = Search(task, method, space, numbers, check_metric(by), trials, place, pictures, voice)
    tried = search.all_combinations() if trials is None else search.by_trials(trials)
    chosen = best(tried, by)
    cells = list(dict.fromkeys(cell for one in tried for cell in one.cells))
    whole = all(row["state"] != "unfinished" for row in outcome(cells, place.output))
    tested = search.report(chosen) if report and chosen and whole else []
    options = {"task": task, "method": method, "seeds": seeds, "by": by, "trials": trials or "", **given}
    found = search.written(tried, chosen, tested, command_of("sweep --report" if report else "sweep", options))
    if as_json:
        print_json(found)
    else:
        show(tried, chosen, by, tested)
    check_outcome(outcome([*cells, *search.cells_of_report(chosen if tested else None)], place.output))


@dataclass
class Search:
    """A search of one method on one task."""

    task: str
    method: str
    space: "Space"
    """Values of settings to choose from, of fixed settings a single one."""
    seeds: list[int]
    by: str
    trials: int | None
    place: Place
    pictures: Pictures
    voice: Voice
    began: float = field(default_factory=time.monotonic)

    @property
    def file(self) -> Path:
        """File of the results, named by the settings that vary; a digest keeps searches apart that differ otherwise."""
        from uqgan.grid.cells import LONGEST_NAME, title_of
        from uqgan.sweeps import Range

        varied = [name for name, values in self.space.items() if isinstance(values, Range) or len(values) > 1]
        names = "+".join(name.rpartition(".")[2] for name in varied)[:LONGEST_NAME]
        question = repr((self.task, self.space, self.seeds, self.by, self.trials))
        parts = (title_of(self.task), self.method, names, sha256(question.encode()).hexdigest()[:8])
        return self.place.output / FOLDER / f"{'-'.join(filter(None, parts))}.json"

    def all_combinations(self) -> list["Tried"]:
        """Try every combination of the values."""
        from uqgan.sweeps import combinations

        return self.tried(list(combinations(self.space)))

    def by_trials(self, n: int) -> list["Tried"]:
        """Try n combinations, a few at a time, drawn by the scores of earlier ones."""
        from uqgan.sweeps import Trials, gain

        trials = Trials(self.space)
        found: list[Tried] = []
        while len(found) < n:
            asked = trials.ask(min(self.place.size or AT_ONCE, n - len(found)))
            few = self.tried([settings for _, settings in asked])
            found += few
            if any(row["state"] == "unfinished" for one in few for row in outcome(one.cells, self.place.output)):
                break
            for (trial, _), one in zip(asked, few, strict=True):
                trials.tell(trial, gain(one, self.by) if one.scores.get(self.by) is not None else None)
        return found

    def tried(self, variants: Sequence[dict[str, Any]]) -> list["Tried"]:
        """Run these settings with all seeds, and return their validation scores."""
        from uqgan.sweeps import judged

        cells = [self.cells(settings, self.seeds, validation=True) for settings in variants]
        self.run([cell for each in cells for cell in each])
        return [judged(settings, each, self.place.output) for settings, each in zip(variants, cells, strict=True)]

    def report(self, chosen: "Tried") -> list[dict[str, Any]]:
        """Train the chosen settings with seeds that the search did not use, and test them."""
        cells = self.cells_of_report(chosen)
        self.run(cells)
        return outcome(cells, self.place.output)

    def cells_of_report(self, chosen: "Tried | None") -> list["Cell"]:
        first = max(self.seeds) + 1
        seeds = list(range(first, first + len(self.seeds)))
        return self.cells(chosen.settings, seeds, validation=False) if chosen else []

    def cells(self, settings: dict[str, Any], seeds: Sequence[int], validation: bool) -> list["Cell"]:
        from uqgan.grid.cells import plan_cells

        return plan_cells([self.task], [self.method], seeds, [settings], validation)

    def run(self, cells: Sequence["Cell"]) -> None:
        """Run cells within the remaining time."""
        minutes = self.place.max_minutes
        left = None if minutes is None else max(1e-9, minutes - (time.monotonic() - self.began) / 60)
        run_cells(list(dict.fromkeys(cells)), replace(self.place, max_minutes=left), self.pictures, self.voice)

    def written(
        self, tried: Sequence["Tried"], chosen: "Tried | None", tested: Sequence[dict[str, Any]], command: str
    ) -> dict[str, Any]:
        """Write the results, and what they depend on, as JSON."""
        from uqgan.environment import shared_by
        from uqgan.files import write_json

        cells = [cell for one in tried for cell in one.cells] + self.cells_of_report(chosen if tested else None)
        files = [self.place.output / cell.name / cell.result for cell in dict.fromkeys(cells)]
        records = [json.loads(file.read_bytes()) for file in files if file.exists()]
        found = {
            "task": self.task,
            "method": self.method,
            "seeds": self.seeds,
            "by": self.by,
            "samples": "validation",
            "tried": [{"settings": one.settings, "scores": one.scores or None} for one in tried],
            "chosen": chosen.settings if chosen else None,
            "tested": list(tested),
            "facts": shared_by(records, command),
        }
        write_json(self.file, found)
        self.voice.say(f"wrote {self.file}")
        return found


def show(tried: Sequence["Tried"], chosen: "Tried | None", by: str, tested: Sequence[dict[str, Any]]) -> None:
    """Print all settings with their validation scores, the chosen one, and its test scores if requested."""
    from uqgan.paper import TITLES

    rows = []
    columns = {name: {str(each.settings[name]) for each in tried} for name in tried[0].settings}
    for each in tried:
        differing = {name: value for name, value in each.settings.items() if len(columns[name]) > 1}
        settings = {name.rpartition(".")[2]: str(value) for name, value in differing.items()}
        scores = {title: percent(each.scores.get(metric)) for metric, title in TITLES.items()}
        rows.append(settings | scores | {"": "chosen" if each is chosen else "" if each.scores else "not done"})
    show_rows(rows, as_json=False, whole=True)
    if not chosen:
        return
    out = Console(highlight=False)
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.settings.items())
    best = percent(chosen.scores[by])
    out.print(f"chosen by {TITLES[by]} {best} on validation samples: {words}", markup=False, soft_wrap=True)
    if tested:
        out.print("test samples, other seeds:", markup=False)
        show_outcome(tested)
