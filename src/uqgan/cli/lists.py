"""Commands that list what there is: methods, tasks, doctor."""

from uqgan.cli.app import Json, Voice, app, show_rows
from uqgan.errors import count


@app.command
def methods(*, as_json: Json = False, voice: Voice = Voice()) -> None:
    """List the methods.

    Parameters
    ----------
    as_json
        Print JSON.
    """
    from uqgan.methods import METHODS

    rows = [
        {"name": name, "title": m.title, "recipe": m.section, "reading": m.reading.__name__, "passes": m.passes}
        for name, m in METHODS.items()
    ]
    show_rows(rows, as_json)


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
    """Say what this machine has: versions, devices, optional packages.

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
    extras = {
        "tensorboard": "tensorboard",
        "huggingface_hub": "hf",
        "ray": "cluster",
        "fastapi": "serve",
        "onnx": "onnx",
    }
    rows += [
        {"what": name, "found": "installed" if importlib.util.find_spec(name) else f"not installed ({extra})"}
        for name, extra in extras.items()
    ]
    show_rows(rows, as_json)
