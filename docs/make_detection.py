"""The part of a setting's page about joint detection."""

from make_tables import Record, joined, record, short
from uqgan.paper.detection_table import WORDS, confusion_markdown, markdown, rows_of_methods
from uqgan.paper.reproduction import Reproduction
from uqgan.paper.results import names_of

DETECTION = """## Joint detection

Is a picture classified rightly (TP), wrongly (FP), or of no known class (OoD)? Gradient-boosted trees tell it from a
method's uncertainty scores, with its class probabilities or without. They are fitted on validation samples, the three
kinds weighing the same and every OoD set as well. Accuracy on each kind of test samples, in percent."""


def detection(found: Reproduction) -> str:
    """Joint detection of the runs in the tables, and the paper's, with what is missing; other runs are left out."""
    task, kept = found.task, record(f"{found.task}/detection.json")
    there = {(one.method, one.seed): one.record["raw_sha256"] for row in found.rows for one in row.results}
    rows = [one for one in (kept or {}).get("runs", []) if there.get((one["method"], one["seed"])) == one["raw_sha256"]]
    methods = rows_of_methods(task, rows)
    if not methods:
        return ""
    missing = [row.method for row in methods if not row.records]
    words = [f"Not run yet: {', '.join(missing)}." if missing else ""]
    lacking = names_of(tuple(name for name in found.lacking if rows))
    words += [f"Ours without {lacking}, which the paper's fit and test have: no verdict." if lacking else ""]
    words += [made_by(kept) if rows else ""]
    shares = [
        f"Taken for what, {row.title} ({WORDS['scores_and_probs']}), mean over the seeds, in percent:\n\n"
        + confusion_markdown(row.records, "scores_and_probs")
        for row in methods
        if row.records and row.method.startswith("uqgan")
    ]
    return joined(DETECTION, " ".join(filter(None, words)), markdown(task, methods), *shares).strip()


def made_by(kept: Record) -> str:
    """Model, command, device and commit of joint detection."""
    model = kept["model"]
    what = f"{model['name']}, {model['trees']} trees of depth {model['depth']}"
    versions = f"scikit-learn {kept['versions']['scikit-learn']}"
    return f"{what}; {versions}; `{kept['command']}`; {kept['device']}; commit {short(kept['commit'])}."
