"""The data of a page, as one JSON object. `lfpo watch` sends it again whenever the run has changed."""

from dataclasses import asdict

from lfpo.config.build import load_yaml, yaml_text
from lfpo.config.errors import UserError
from lfpo.config.files import read_json
from lfpo.config.json import Json
from lfpo.config.sampler import SamplerConfig
from lfpo.eval.estimates import over_problems, students_interval
from lfpo.report.charts import POLICY, SIGNAL, reward_parts
from lfpo.report.completions import evaluation_samples, rollout_sample, rollouts_to_play, verdicts
from lfpo.runs.directory import Run, data_of
from lfpo.runs.results import evaluations, measure_of

Metrics = Json  # a line of metrics.jsonl, or one evaluation in it

COMPARED = ("title", "summary", "measure", "table", "curves", "environment", "config")
TIMES = ("rollout", "reward", "update", "eval")  # the first three are training


def page_data(run: Run) -> Json:
    """The data of the page of a run, or of a comparison, which `lfpo compare` writes as results.json."""
    path = run.dir / "results.json"
    if not path.exists():
        return run_data(run)
    results = read_json(path)
    found = {"measure": "accuracy"} | {key: results[key] for key in COMPARED if key in results}
    return {"kind": "comparison", "name": run.dir.resolve().name, **found}


def run_data(run: Run) -> Json:
    """The data of a run's page. Raises UserError when the folder holds no run with at least one line of metrics."""
    metrics = run.read_metrics()
    if not metrics or not (run.dir / "config.yaml").exists():
        missing = "config.yaml" if metrics else "metrics.jsonl with at least one line"
        raise UserError(f"{run.dir}: no {missing}; give a folder written by lfpo train")
    info, config = run_info(run), load_yaml(run.dir / "config.yaml")
    last, total = metrics[-1]["step"], info["iterations"]
    samples, samples_note = evaluation_samples(run.dir, config, last)
    rollouts = rollout_sample(run.dir, config, last)
    held_out = bool(samples["problems"])
    if not held_out:
        samples = rollouts_to_play(rollouts["groups"])
        samples_note = "this run kept no evaluation, so these are training rollouts" if samples["problems"] else ""
    values, spent, pairs = columns(metrics), times(metrics), evaluation_pairs(metrics)
    compared = {int(pair[end]["step"]) for pair in pairs for end in ("first", "last")}  # the same for most samplers
    verdicts_at = {step: verdicts(run.dir, step) for step in compared}
    return {
        "kind": "run",
        "name": run.dir.resolve().name,
        "title": f"{config['objective']['name']} on {data_of(config) or 'a data set'}",
        "model": config["model"],
        "step": last,
        "max_steps": total,
        "finished": last >= total,
        "seconds": _latest(metrics, "time/total"),
        "rate": rate(metrics),
        "left": time_left(metrics, config, total),
        "learning_rate": config["learning_rate"] or info.get("learning_rate"),
        "seed": config["seed"],
        "environment": info["environment"],
        "versions": info["versions"],
        "notes": [note for note in run.read_notes() if note["step"] <= last],
        "metrics": values,
        "charts": {
            "signal": [asdict(c) for c in (reward_parts(values), *SIGNAL)],
            "policy": [asdict(c) for c in POLICY],
        },
        "evaluations": [{**pair, "change": paired_change(verdicts_at, **pair)} for pair in pairs],
        "times": spent,
        "percents": percents(spent),
        "samplers": {n: _settings(s) for n, s in {"rollouts": config["sampler"], **config["eval_samplers"]}.items()},
        "config": yaml_text(config),
        "samples": samples,
        "held_out": held_out,
        "samples_note": samples_note,
        **rollouts,
    }


def rate(metrics: list[Metrics]) -> float | None:
    """Seconds of an iteration, without evaluations: the mean over the last ten."""
    spent = [sum(m.get(f"time/{part}") or 0.0 for part in TIMES[:3]) for m in metrics if "time/rollout" in m][-10:]
    return round(sum(spent) / len(spent), 2) if spent else None


def time_left(metrics: list[Metrics], config: Json, total: int) -> float | None:
    """Seconds until the last iteration, with the evaluations on the way; None before the first and after the last."""
    done, seconds = metrics[-1]["step"], rate(metrics)
    if seconds is None or done >= total:
        return None
    every = config["eval_steps"] or total
    evaluations = total // every - done // every + bool(total % every) if config["eval_steps"] else 0
    return round(seconds * (total - done) + evaluations * _latest(metrics, "time/eval"), 1)


def run_info(run: Run) -> Json:
    """What run.json says of a run. Raises UserError for one of another command, which has no page."""
    info = read_json(run.dir / "run.json")
    if info.get("kind") != "train":
        raise UserError(f"{run.dir}: holds a run of `lfpo {info.get('kind')}`; a report needs one of lfpo train")
    return info


def evaluation_pairs(metrics: list[Metrics]) -> list[Json]:
    """name, first and last evaluation of each eval sampler of a run."""
    by_sampler: dict[str, list[Metrics]] = {}
    for line in metrics:
        for name, values in evaluations(line).items():
            by_sampler.setdefault(name, []).append({"step": line["step"], **values})
    return [{"name": name, "first": rows[0], "last": rows[-1]} for name, rows in sorted(by_sampler.items())]


def paired_change(
    verdicts_at: dict[int, dict[str, dict[int, bool | float | None]]], name: str, first: Metrics, last: Metrics
) -> Metrics | None:
    """Score of the last evaluation minus that of the first, over the problems that both judged, with its 95 % interval
    over problems (of verdicts by a bootstrap, of rewards Student's t), and how many problems it gained and lost. None
    unless both kept verdicts or rewards, and of the same problems.

    verdicts_at: of `verdicts`, by the number of iterations before the evaluation.
    """
    before, after = (verdicts_at[int(e["step"])].get(name, {}) for e in (first, last))
    judged = [i for i in before if before[i] is not None and after.get(i) is not None]
    if first["step"] == last["step"] or not judged or before.keys() != after.keys():
        return None
    gains = [float(after[i] or 0) - float(before[i] or 0) for i in judged]
    estimate = over_problems(gains) if measure_of(last) == "accuracy" else students_interval(gains)
    if estimate.low != estimate.low:  # of a single problem
        return None
    return {**asdict(estimate), "gained": sum(g > 0 for g in gains), "lost": sum(g < 0 for g in gains)}


def times(metrics: list[Metrics]) -> dict[str, float]:
    """Seconds of each part of the run. `rest` is what training took besides (saving, loading, the display)."""
    seconds = {name: sum(m.get(f"time/{name}") or 0.0 for m in metrics) for name in TIMES}
    training = seconds["rollout"] + seconds["reward"] + seconds["update"]
    return {**seconds, "rest": max(0.0, _latest(metrics, "time/total") - training)}


def percents(seconds: dict[str, float]) -> dict[str, int]:
    """Whole percents that sum to 100, by largest remainders; empty where all is zero."""
    total = sum(seconds.values())
    if not total:
        return {}
    exact = {name: 100 * s / total for name, s in seconds.items()}
    floors = {name: int(x) for name, x in exact.items()}
    by_remainder = sorted(exact, key=lambda name: floors[name] - exact[name])
    return floors | {name: floors[name] + 1 for name in by_remainder[: 100 - sum(floors.values())]}


def columns(metrics: list[Metrics]) -> dict[str, list[float | None]]:
    """The values of metrics.jsonl by key, with five significant digits; None where a line has no number."""
    names = dict.fromkeys(k for m in metrics for k in m)
    return {name: [_short(m.get(name)) for m in metrics] for name in names}


def _short(value: float | None) -> float | None:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _latest(metrics: list[Metrics], key: str) -> float:
    return next((m[key] for m in reversed(metrics) if m.get(key) is not None), 0.0)


def _settings(sampler: Json) -> Json:
    """A sampler's temperature, its rule for choosing positions, and every setting that is not the default."""
    plain = vars(SamplerConfig())
    names = ["temperature", "alg" if sampler.get("alg") else "remasking"]
    names += [k for k, v in sampler.items() if k not in names and v != plain.get(k)]
    return {k: sampler[k] for k in names if k in sampler}
