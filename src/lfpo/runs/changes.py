"""What resumes have changed in a run's configuration, as run.json keeps it, and what can be compared since.

A change is {"after": iterations done, "before": {dotted key: value up to there}}; run.json lists them, oldest first.
"""

from collections.abc import Sequence

from lfpo.config.build import flattened
from lfpo.config.json import Json

# Keys beside those of its sampler that say what an evaluation measures.
MEASURED = {"eval_size", "eval_file", "dataset_config", "dataset_test_split", "columns", "map_row", "environment"}
MEASURED |= {"max_turns", "reward_funcs", "reward_weights"}


def changes_of(info: Json) -> list[Json]:
    """The changes in the contents of run.json; [] where an older version wrote it."""
    found = info.get("changes")
    found = [change for change in found if isinstance(change, dict)] if isinstance(found, list) else []
    return [c for c in found if type(c.get("after")) is int and isinstance(c.get("before"), dict)]


def with_change(changes: Sequence[Json], before: Json, now: Json, step: int, ignored: Sequence[str]) -> list[Json]:
    """The changes of a run that goes on after `step` iterations. before, now: its last and its new configuration. Those
    of iterations that were dropped are undone."""
    kept = [change for change in changes if change["after"] < step]
    old, new = settings_at(changes, before, step), flattened(now)
    # A key that this version does not have any more is no change.
    known = {key: value for key, value in old.items() if key.split(".")[0] in now and key not in ignored}
    different = {key: value for key, value in known.items() if new.get(key, ...) != value}
    return [*kept, {"after": step, "before": different}] if different and step else kept


def settings_at(changes: Sequence[Json], config: Json, step: int) -> Json:
    """The configuration of iteration `step`, with dotted keys. config: that of the last iteration."""
    settings = flattened(config)
    for change in reversed(changes):
        settings |= change["before"] if change["after"] >= step else {}
    return settings


def measured_since(changes: Sequence[Json], sampler: str) -> int:
    """The last iteration whose evaluation under an eval sampler measured something else than later ones; -1 without."""
    own = f"eval_samplers.{sampler}."
    found = (c["after"] for c in changes if any(_measured(key, own) for key in c["before"]))
    return max(found, default=-1)


def _measured(key: str, samplers: str) -> bool:
    return key.split(".")[0] in MEASURED or key.startswith(samplers)


def comparable(metrics: Sequence[Json], changes: Sequence[Json]) -> list[Json]:
    """The metrics, without the evaluations that measured something else than later ones of the same name."""

    def kept(key: str, step: int) -> bool:
        return not key.startswith("eval/") or step > measured_since(changes, key.split("/")[1])

    return [{key: value for key, value in row.items() if kept(key, row["step"])} for row in metrics]


def told(change: Json) -> str:
    """A sentence on a change."""
    keys = sorted({".".join(key.split(".")[:2]) for key in change["before"]})
    sentence = f"After iteration {change['after']} the run was resumed with another {', '.join(keys)}"
    compared = any(_measured(key, "eval_samplers.") for key in change["before"])
    return f"{sentence}; evaluations up to there are not compared with later ones" if compared else sentence
