"""The data of a comparison's page, from the results.json that `lfpo compare` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.files import read_json

TERA = 1e12


def comparison_data(folder: Path) -> dict[str, Any]:
    """The data of a comparison's page. Raises UserError when results.json lacks what lfpo compare writes."""
    results = read_json(folder / "results.json")
    missing = {"tables", "bases", "cells", "environment", "versions"} - results.keys()
    if missing:
        raise UserError(f"{folder / 'results.json'}: lacks {', '.join(sorted(missing))}; give a folder of lfpo compare")
    cells = results["cells"]
    recipes = list(dict.fromkeys(c["recipe"] for c in cells))
    sampler = cells[0]["sampler"] if cells else ""
    seeds = len({c["seed"] for c in cells})
    config = folder / "config.yaml"
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return {
        "kind": "comparison",
        "name": folder.resolve().name,
        "title": "Comparison of objectives",
        "summary": f"{', '.join(recipes)} · {len({c['objective'] for c in cells})} objectives · {seeds} seeds",
        "sampler": sampler,
        "recipes": [_recipe(results, name, sampler) for name in recipes],
        "tables": results["tables"],
        "environment": f"{results['environment']}; {versions}",
        "config": config.read_text(encoding="utf-8") if config.exists() else "",
    }


def _recipe(results: dict[str, Any], name: str, sampler: str) -> dict[str, Any]:
    groups = by_objective(results, name)
    base = results["bases"].get(name)
    return {
        "name": name,
        "problems": len(next(iter(groups.values()))[0]["eval"][sampler]["correct"]) if groups else 0,
        "curve_problems": results["cells"][0].get("curve_problems"),
        "base": _objective("base", [base], sampler) if base else None,
        "objectives": [_objective(label, cells, sampler) for label, cells in groups.items()],
    }


def _objective(label: str, cells: list[dict[str, Any]], sampler: str) -> dict[str, Any]:
    """Means over an objective's seeds. final: accuracy and NFE of the table's evaluation, by sampler, and of the points
    of the frontier."""
    evals = {name: [c["eval"][name] for c in cells] for name in cells[0]["eval"]}
    return {
        "label": label,
        "curve": mean_curve([c["curve"] for c in cells], sampler),
        "straightness": mean_rows([c["straightness"] for c in cells]),
        "final": {
            name: {
                "accuracy": sum(e["accuracy"] for e in seeds) / len(seeds),
                "nfe": sum(sum(e["nfe"]) / len(e["nfe"]) for e in seeds) / len(seeds),
            }
            for name, seeds in evals.items()
        }
        | frontier([c.get("frontier", []) for c in cells]),
    }


def frontier(points: list[list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Mean accuracy and NFE over seeds at each threshold of their frontiers, which results of earlier versions lack."""
    return {
        f"threshold {at[0]['threshold']:g}": {k: sum(p[k] for p in at) / len(at) for k in ("accuracy", "nfe")}
        for at in zip(*points, strict=True)
    }


def by_objective(results: dict[str, Any], recipe: str) -> dict[str, list[dict[str, Any]]]:
    """A recipe's cells by objective, in the order they were listed."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        if cell["recipe"] == recipe:
            groups.setdefault(cell["objective"], []).append(cell)
    return groups


def mean_curve(curves: list[list[dict[str, float]]], sampler: str) -> dict[str, list[float]]:
    """Seconds, TFLOPs and accuracy at each evaluation, means over seeds; low and high: accuracy of the worst and the
    best seed."""
    values = [list(at) for at in zip(*([p[sampler] for p in c] for c in curves), strict=False)]
    return {
        "low": [min(at) for at in values],
        "high": [max(at) for at in values],
        "seconds": mean_rows([[p["seconds"] for p in c] for c in curves], 2),
        "tflops": mean_rows([[p["flops"] / TERA for p in c] for c in curves]),
        "accuracy": mean_rows([[p[sampler] for p in c] for c in curves]),
    }


def mean_rows(rows: list[list[float]], digits: int = 4) -> list[float]:
    """Means over rows, up to the length of the shortest row."""
    return [round(sum(values) / len(values), digits) for values in zip(*rows, strict=False)]
