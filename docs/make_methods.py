"""Write what docs/methods/ and `uqgan methods` take from settings, methods and measurements: `make results`."""

import json
from typing import Any

from pydantic import BaseModel

from make_tables import ROOT, record
from uqgan.config import Config
from uqgan.methods import METHODS, Method
from uqgan.uncertainty import returned

PAGES = ROOT / "docs" / "methods"
COSTS = ROOT / "src" / "uqgan" / "methods" / "costs.json"
TASK, DEVICE = "digits", "cpu"
"""What the costs shown by `uqgan methods` are measured on."""


def costs() -> str:
    """Ratios to `max-softmax` for the package."""
    rows = [row for row in record("speed/costs.json") if (row["task"], row["device"][:3]) == (TASK, DEVICE)]
    threads = "one thread" if rows[0]["threads"] == 1 else f"{rows[0]['threads']} threads"
    ratios = {row["method"]: {key: rounded(row[f"{key}_ratio"]) for key in ("training", "prediction")} for row in rows}
    found = {"measured_on": f"{TASK}, {DEVICE.upper()}, {threads}", "methods": ratios}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def rounded(ratio: float) -> float:
    """One figure, and whole numbers from one half on: what differs less may not differ at all."""
    return float(f"{ratio:.1g}") if ratio < 0.5 or ratio > 9.5 else float(round(ratio))


def source(method: Method) -> str:
    return f"src/{str(getattr(method.recipe, '__name__', '')).replace('.', '/')}.py"


def facts(name: str) -> str:
    """What a method returns, needs and is trained by."""
    method = METHODS[name]
    aleatoric, epistemic = returned(method.reading)
    rows = {
        "aleatoric": aleatoric,
        "epistemic": epistemic,
        "needs outliers": "yes" if method.sees_ood else "no",
        **({"dropout rate": shown(method.dropout)} if method.dropout else {}),
        "passes per sample": str(method.passes * method.members),
        "networks": str(method.members),
        "recipe and reading": f"`{source(method)}`, `uncertainty.{method.reading.__name__}`",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())])


def settings(name: str) -> str:
    """A table for each section that a method reads."""
    parts = []
    for section in METHODS[name].sections:
        model: type[BaseModel] = Config.model_fields[section].annotation  # type: ignore[assignment]
        rows = [
            f"| `{section}.{key}` | {shown(field.default)} | {field.description} |"
            for key, field in model.model_fields.items()
        ]
        parts.append("\n".join(["| setting | default | what it is |", "|---|--:|---|", *rows]))
    return "\n\n".join(parts)


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def filled(name: str, text: str) -> str:
    """A method's page with its tables made anew."""
    for block, made in (("facts", facts(name)), ("settings", settings(name))):
        begin, end = f"<!-- {block}:begin -->", f"<!-- {block}:end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    COSTS.write_text(costs())
    for name in METHODS:
        page = PAGES / f"{name}.md"
        page.write_text(filled(name, page.read_text()))


if __name__ == "__main__":
    main()
