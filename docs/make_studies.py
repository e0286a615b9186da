"""The page of the paper's studies, and its curves."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from make_tables import ROOT, joined, records, short
from uqgan.paper.findings import CLOSE, findings
from uqgan.paper.results import set_title
from uqgan.paper.studies import STUDIES, Curve
from uqgan.paper.study_plots import sizes_in_words, study_figure
from uqgan.report.plots import saved

IMAGES = ROOT / "docs" / "images" / "studies"
STAND_INS = {
    "digits": "The embedded digits on a CPU: they show how the study runs, and say nothing of the paper's sets. "
    "With so few samples, neighbouring values of a curve differ by nearly as much as its best and the others.",
    "cifar100": "A stand-in for the paper's Tiny ImageNet.",
}
"""What is to be said of tasks that the paper did not study."""
INTRODUCTION = f"""# Studies

The paper varies one setting at a time. Each of its studies is one command, whose runs are cells of a grid: they run
side by side, and go on after Ctrl-C or a kill:

```
uqgan study lambda-cl --task mnist          # 0, 1, 2, 4 … 128
uqgan study lambda-real --task mnist        # 0, 0.1 … 1
uqgan study lambda-reg --task mnist         # 0, 1, 2, 4 … 128
uqgan study latent-dim --task mnist         # 4, 8 … 512
uqgan study regulariser --task mnist        # angle, cosine, l1, l2, linf
uqgan study n-classes --task cifar100       # the first 10, 20 … 50 classes known, all others OoD
uqgan study lambda-real --task cifar10 --values 0,0.2,0.4,0.6,0.8,1 --seeds 0-2 --workers 4 --max-minutes 60
```

On `mnist` and `cifar10` the other settings are those that the paper kept fixed; its λ_reg = 14 of the first study,
which is no value of its own grid, is taken as 16. On other tasks they are the task's. Any of them can be changed:
`--uqgan.lambda-cl 2`. A run whose settings another study or `uqgan grid --validation` has trained is not trained
again.

Only validation samples are looked at, known and OoD, also for `n-classes`, where the paper shows test sets. Their
numbers differ much from set to set, so where OoD sets stand together each of them weighs the same, and all of them as
much as the known samples: then neither AUROC nor AUPR depends on how many there are. The numbers are printed. The
table, and the curves as SVG, PNG and JSON, are in `OUTPUT/studies`.

`regulariser` compares the log-angle loss (Eq. 10) with what the paper names as tried beside it: the cosine of the
angle, and the distance of two generated codes by the 1-, 2- or maximum norm, of which the negative logarithm is
minimised, at the same λ_reg. `--uqgan.regulariser` chooses one for any training.

## Sweeps

```
uqgan sweep --task mnist --uqgan.lambda-real 0.3,0.5,0.7 --uqgan.lambda-reg 8,32 --seeds 0-1
uqgan sweep --task mnist --uqgan.lambda-real 0.1:0.9 --uqgan.lambda-reg 1:128:log --trials 30 --report
```

The first tries all combinations. The second draws 30 from ranges by a tree-structured Parzen estimator (`pip install
'uqgan[sweep]'`), which learns from the trials before. Settings are chosen by one score (`--by auroc`) of validation
samples, weighed as above. Test sets stay unseen, unless `--report` asks for them: then, once all is chosen, the
chosen settings are trained anew with seeds that the choice has not seen, and those runs are tested.

## Curves

Made by `make results` from the JSON files of studies in `results/studies/`. OoD sets weigh the same. Left
axis: filled marks, right axis: hollow ones. A difference up to {100 * CLOSE:g} percentage points counts as none: it
neither agrees with the paper nor speaks against it."""
NONE_YET = "None has been recorded yet."


@cache
def curves() -> dict[str, Curve]:
    """All recorded curves, by the names of their files."""
    return {name: Curve.of_json(tree) for name, tree in records("studies").items()}


def images() -> dict[Path, bytes]:
    """The curves as files."""
    return {IMAGES / f"{name}.svg": saved(partial(study_figure, curve), "svg") for name, curve in curves().items()}


def studies() -> str:
    """The page."""
    parts = [words for name in STUDIES for words in sections(name)]
    return joined(INTRODUCTION, *(parts or [NONE_YET]))


def sections(study: str) -> Iterator[str]:
    """A section for each task that a study was run on."""
    for name, curve in curves().items():
        if curve.study == study:
            title = f"{STUDIES[study].title} on {set_title(curve.task)}"
            picture = f"![{title}](images/studies/{name}.svg)"
            yield joined(
                f"### {title}", STAND_INS.get(curve.task, ""), picture, verdicts(curve), conditions(curve)
            ).strip()


def verdicts(curve: Curve) -> str:
    """What the paper found, and whether the curve agrees."""
    lines = []
    for found in findings(curve):
        words = found.verdict.capitalize()
        lines.append(f"- Paper: {found.words}. {f'**{words}**' if found.agrees is False else words}: {found.evidence}.")
    return "\n".join(lines)


def conditions(curve: Curve) -> str:
    """How the curve was made, and from how many samples."""
    seeds = f"{'seed' if len(curve.seeds) == 1 else 'seeds'} {', '.join(map(str, curve.seeds))}"
    fixed = ", ".join(f"{key} = {value}" for key, value in curve.settings.items())
    commits = ", ".join(short(commit) for commit in curve.facts["commit"])
    minutes = sum(point.seconds for point in curve.points) / 60
    facts = [f"`{curve.facts['command']}`", seeds, *([f"fixed: {fixed}"] if fixed else [])]
    facts += [f"{', '.join(curve.facts['device'])}, commit {commits}, {minutes:.0f} min of training in all"]
    return f"{'; '.join(facts)}. Validation samples: {'; '.join(sizes_in_words(curve))}."
