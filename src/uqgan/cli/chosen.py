"""Options that are lists: tasks, methods, seeds, and values of settings."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from pydantic import create_model

from uqgan.config import Config, Settings, suggest
from uqgan.errors import UsageError

MOST_SEEDS = 1000


def chosen_methods(text: str) -> list[str]:
    """Names in a list joined by commas; none for all."""
    from uqgan.methods import METHODS

    if text == "all":
        return []
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            close = suggest(name, list(METHODS)) or f" (known: all, {', '.join(METHODS)})"
            raise UsageError(f"--methods = {name}: no such method{close}")
    return names


def chosen_seeds(text: str) -> list[int]:
    """Seeds from text such as 0-4 or 0,2; none for all."""
    chosen: set[int] = set()
    for part in text.split(",") if text else []:
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--seeds = {text}: must look like 0-4 or 0,2")
        ends = int(first), int(last or first)
        if ends[1] < ends[0] or ends[1] - ends[0] >= MOST_SEEDS:
            raise UsageError(f"--seeds = {text}: the smaller number comes first, and at most {MOST_SEEDS} are taken")
        chosen.update(range(ends[0], ends[1] + 1))
    return sorted(chosen)


def chosen_tasks(text: str) -> list[str]:
    """Names or paths in a list joined by commas; `digits+0,2-4` is one of them."""
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if names and "+" in names[-1] and part.replace("-", "").replace(".", "").isdecimal():
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names:
        raise UsageError("--tasks: names none (see uqgan tasks)")
    return names


def in_lists(settings: type[Settings]) -> type[Settings]:
    """Class with the same settings, each a text of values joined by commas."""
    fields: dict[str, Any] = {}
    for name, info in settings.model_fields.items():
        section = in_lists(type(info.default)) if isinstance(info.default, Settings) else None
        fields[name] = (section | None if section else str | None, None)
    made = create_model(f"{settings.__name__}Lists", __base__=Settings, **fields)
    for name, info in settings.model_fields.items():
        made.model_fields[name].description = info.description
    return made


ConfigLists = in_lists(Config)
"""Values of settings to combine."""


def variants(settings: Settings | None) -> list[dict[str, Any]]:
    """All combinations of the given values, by dotted names."""
    given = changes(settings)
    values = [[value.strip() for value in text.split(",")] for text in given.values()]
    return [dict(zip(given, chosen, strict=True)) for chosen in product(*values)]


def changes(settings: Settings | None) -> dict[str, Any]:
    """Given settings by dotted names."""
    return dotted(settings.model_dump(exclude_unset=True)) if settings else {}


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tree of settings as dotted names."""
    rows: dict[str, Any] = {}
    for name, value in tree.items():
        rows |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return rows
