"""Commands that list methods, tasks, and the machine's abilities."""

from rich.console import Console

from uqgan.cli.app import Json, Voice, app, print_json, show_rows
from uqgan.errors import count


@app.command
def methods(*, as_json: Json = False, voice: Voice = Voice()) -> None:
    """List the methods: what they return, cost and need, and their references.

    Parameters
    ----------
    as_json
        Print JSON.
    """
    from uqgan.methods import METHODS
    from uqgan.methods.facts import costs, facts_of

    rows = [facts_of(name) for name in METHODS]
    if as_json:
        print_json(rows)
        return
    returned = [{key: row[key] for key in ("name", "aleatoric", "epistemic")} for row in rows]
    paid = [{key: f"× {row['cost'][key]:g}" for key in ("training", "prediction")} for row in rows]
    show_rows([known | cost for known, cost in zip(returned, paid, strict=True)], as_json)
    page = Console(highlight=False)
    page.print(
        "\np̂: class probabilities, their mean over passes and members. Eq. 4: probability of being out of all classes. "
        f"×: times the cost of max-softmax, measured on {costs()['measured_on']}.\n",
        markup=False,
    )
    needs = {True: "needed", False: "no"}
    show_rows(
        [
            {key: row[key] for key in ("name", "title")}
            | {"outliers": needs[row["needs_outliers"]]}
            | {"reference": row["reference"]}
            for row in rows
        ],
        as_json,
    )


@app.command
def tasks(*, as_json: Json = False, voice: Voice = Voice()) -> None:
    """List the tasks.

    Parameters
    ----------
    as_json
        Print JSON.
    """
    from uqgan.data.tasks import TASKS

    show_rows([{"name": name, "title": outline.title} for name, outline in TASKS.items()], as_json)


@app.command
def doctor(*, as_json: Json = False, voice: Voice = Voice()) -> None:
    """Report versions, devices, and optional packages of this machine.

    Parameters
    ----------
    as_json
        Print JSON.
    """
    import importlib.util
    import os

    import torch

    from uqgan.acceleration import choose_device
    from uqgan.environment import describe, versions

    rows = [{"what": name, "found": version} for name, version in versions().items()]
    rows += [
        {"what": "device", "found": describe(choose_device())},
        {"what": "cores", "found": f"{os.cpu_count()} ({count(torch.get_num_threads(), 'thread')} in use)"},
    ]
    uses = {
        "huggingface_hub": "pip install 'uqgan[hf]', for uqgan data fetch",
        "ray": "pip install 'uqgan[cluster]', for --ray",
        "optuna": "pip install 'uqgan[sweep]', for uqgan sweep --trials",
        "tensorboard": "pip install tensorboard, for curves during training",
    }
    rows += [
        {"what": name, "found": "installed" if importlib.util.find_spec(name) else f"not installed ({use})"}
        for name, use in uses.items()
    ]
    show_rows(rows, as_json)
