"""The command calibrate, which changes the rule of a run's decisions."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from uqgan.cli.app import Json, Machine, Voice, app, print_json

if TYPE_CHECKING:
    from uqgan.run import Run


@app.command
def calibrate(
    run: Path,
    /,
    *,
    false_alarm: float = 0.05,
    coverage: float = 0.9,
    score: str = "epistemic",
    per_label: bool = False,
    sets: str = "lac",
    machine: Machine = Machine(),
    as_json: Json = False,
    voice: Voice = Voice(),
) -> None:
    """Change the rule by which a run decides: accept, ambiguous or unknown. Nothing is trained.

    Parameters
    ----------
    run
        Folder of a run.
    false_alarm
        Share of known pictures that may be flagged as strange.
    coverage
        Share of known pictures whose set of classes must contain the true one.
    score
        Score by which pictures are flagged: epistemic, foreignness or aleatoric.
    per_label
        Compare a picture only with calibration pictures of the same predicted label.
    sets
        lac: the smallest sets on average; aps: randomised ones, larger for ambiguous pictures.
    as_json
        Print JSON.
    """
    from uqgan.decisions import NO_FOREIGNNESS, Rule

    Rule(false_alarm, coverage, score, per_label, sets)  # refuse wrong values before the run is loaded
    loaded = machine.load(run)
    with voice.busy(f"calibrating {run}"):
        loaded.calibrate(false_alarm, coverage, score, per_label, sets)
        found = what_it_means(loaded)
    if as_json:
        print_json(found)
        return
    show_rule(found, "" if loaded.has_foreignness else NO_FOREIGNNESS)
    voice.say(f"saved in {run}")


def what_it_means(run: "Run") -> dict[str, Any]:
    """Rule of a run as numbers: thresholds, calibration samples, temperature and its effect."""
    from uqgan.decisions import lac_threshold, thresholds
    from uqgan.metrics import calibration_error

    known, rule = run.calibration, run.rule
    probs, right = known.prediction.probs, known.prediction.labels == known.y
    return {
        "rule": asdict(rule),
        "n": len(known.y),
        "thresholds": [
            {"label": None if label is None else run.class_names[label], "n": n, "above": above}
            for label, (n, above) in thresholds(known, rule).items()
        ],
        "lac_threshold": lac_threshold(known, rule.coverage),
        "temperature": known.temperature,
        "ece": calibration_error(probs.amax(1), right),
        "ece_tempered": calibration_error(known.temper(probs).amax(1), right),
    }


def show_rule(found: dict[str, Any], why: str) -> None:
    """Print the rule in words on standard output."""
    rule = found["rule"]
    alarm, coverage = (f"{100 * rule[key]:g} %" for key in ("false_alarm", "coverage"))
    before, after = (f"{100 * found[key]:.2f} %" for key in ("ece", "ece_tempered"))
    cut, temperature = found["lac_threshold"], found["temperature"]
    by_both = not why and rule["score"] != "foreignness"
    mixed = "; or flagged, with a usual foreignness, as a mixture of known classes has" if by_both else ""
    alone = f"; {why}" if why else ", and foreignness is unusual too" if by_both else ""
    lines = [f"{found['n']:,} known pictures, which neither training nor validation has seen, set the thresholds."]
    for row in found["thresholds"]:
        called = "" if row["label"] is None else f" as {row['label']}, by {row['n']:,} of them"
        lines.append(f"flagged{called}: {rule['score']} above {row['above']:.4g}")
    lines += [
        f"  At most {alarm} of known pictures{' of each predicted label' if rule['per_label'] else ''} are flagged.",
        f"accept: not flagged, and exactly one class has 1 - p at or below {cut:.3g}",
        f"ambiguous: not flagged, and no class or several have{mixed}",
        f"unknown: flagged{alone}",
        f"sets ({rule['sets'].upper()}): hold the true class of at least {coverage} of known pictures",
        "Both rates hold on average, over calibration pictures and new ones together: not for each class or picture.",
        "They are separate: of pictures that are not flagged, fewer may have the true class in their set.",
        "They hold for pictures from where these came from (in Python, run.drift tells whether a batch does).",
        f"temperature 1: no other measurably lowers the calibration error, {before} here"
        if temperature == 1
        else f"temperature {temperature:.3f}, fitted on validation pictures: calibration error {before} → {after} here "
        "(run.calibration.temper applies it; uqgan predict shows raw probabilities)",
    ]
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)
