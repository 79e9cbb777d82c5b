"""One cell of a comparison, in a process of its own: train or resume, evaluate, then write result.json."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lfpo.base.environment import use_threads
from lfpo.config.build import build, load_yaml
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, write_json
from lfpo.config.json import Json
from lfpo.config.sampler import Sampler, SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.config.version import VERSION
from lfpo.core.model import CURRENT
from lfpo.eval.evaluate import evaluate
from lfpo.eval.terminal import open_console, progress
from lfpo.models import MaskedDiffusionLM
from lfpo.models.policies import load_policies
from lfpo.prompts.sources import PromptSource, default_length, make_source
from lfpo.rollout.sampling import as_it_is
from lfpo.runs.directory import Run


def main(folder: Path) -> None:
    """Run the cell described by `folder/config.yaml` and `folder/cell.json`: whether it trains, the name of the eval
    sampler of its curve, thresholds, and the held-out problems, as indices, that the trained model is measured on."""
    started = time.process_time()
    cell = read_json(folder / "cell.json")
    config = build(LFPOConfig, load_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
    if cell["train"]:
        from lfpo.train.rl import LFPOTrainer

        trainer = LFPOTrainer(args=config)
        trainer.train(resume=(Path(config.output_dir) / "config.yaml").exists())
        model, tokenizer = trainer.model, trainer.tokenizer
        metrics = Run(Path(config.output_dir)).read_metrics()
    else:
        use_threads(config.threads)
        # In the precision of the trained models beside it.
        policies, tokenizer = load_policies(config, None, None, needs_base=False, needs_old=False)
        model, metrics = policies[CURRENT], []
    source = held_out(config, cell["problems"])
    result = {
        **cell,
        "problems": len(source.eval_rows),
        "measure": source.measure,
        "version": VERSION,
        "forwards": completion_length(config, cell["sampler"]),
        "curve": curve(metrics, cell["sampler"], source.measure),
        "frontier": frontier(model, tokenizer, config, cell),
        "flops": max((m.get("flops", 0.0) for m in metrics), default=0.0),
        **last_of(metrics, {"same_ending": "completions/frac_same_ending", "entropy": "entropy/rollout"}),
        "seconds": round(time.process_time() - started, 1),
    }
    write_json(folder / "result.json", result)


def held_out(config: LFPOConfig, problems: Sequence[int]) -> PromptSource:
    """What a cell is measured on: these held-out rows, of which a data set may have fewer."""
    source = make_source(config, seed=config.seed, n_eval=1 + max(problems), splits=["eval"])
    return replace(source, eval_rows=[source.eval_rows[i] for i in problems if i < len(source.eval_rows)])


def completion_length(config: LFPOConfig, curve: str) -> int:
    """The completion length of the eval sampler `curve` in tokens, as training takes it."""
    return config.eval_samplers[curve].gen_length or config.sampler.gen_length or default_length(config.task)


def frontier_samplers(
    config: LFPOConfig, curve: str, thresholds: Sequence[float], block_length: int | None
) -> list[Sampler]:
    """The samplers of a frontier, with their lengths filled in: greedy at each threshold, with length, blocks and early
    stop of the eval sampler `curve`; without thresholds, that sampler as it is. block_length: the model's. Raises
    UserError for what does not go together."""
    like, where = config.eval_samplers[curve], f"lfpo compare: eval_samplers.{curve}"
    settings = {name: getattr(like, name) for name in ("block_length", "early_stop", "early_stop_threshold")}
    chosen = [build(SamplerConfig, {"threshold": t, **settings}, f"{where} at threshold {t:g}") for t in thresholds]
    length = completion_length(config, curve)
    return [sampler.fitted(where, length, block_length) for sampler in chosen or [like]]


def frontier(model: MaskedDiffusionLM, tokenizer: object, config: LFPOConfig, cell: Json) -> list[dict[str, float]]:
    """Accuracy or mean reward, and forwards a completion, on held-out problems, decoded by each of
    `frontier_samplers`. Raises UserError when a verdict is missing."""
    source, engine = held_out(config, cell["problems"]), as_it_is(model, config.rollout_tokens)
    points, console = [], open_console(quiet=False)
    samplers = frontier_samplers(config, cell["sampler"], cell["thresholds"], model.block_length)
    for at, sampler in zip([{"threshold": t} for t in cell["thresholds"]] or [{}], samplers, strict=True):
        label = f"threshold {at['threshold']:g}" if at else cell["sampler"]
        with progress(label, len(source.eval_rows), "completions", console) as state:
            engine.forwarded = state.forward
            result = evaluate(
                *(engine, model, tokenizer, source.eval_rows, source.judge, sampler),
                seed=config.seed,
                finished=lambda answers: state.advance(len(answers)),
            )
        for name, why in result.failed.items():
            raise UserError(f"{source.name!r}: {name!r} failed: {why}")
        # A reward of None says that a function does not apply; a verdict that is missing is a lack of this machine.
        if result.mean is None or (result.not_judged and source.verify is not None):
            raise UserError(
                f"{source.name!r}: {result.not_judged} of {len(result.values)} completions cannot be judged on this "
                "machine, and a comparison needs all of them; `lfpo doctor` says what is missing"
            )
        points.append({**at, source.measure: result.mean, "nfe": round(result.mean_nfe, 4)})
        console.print(f"{label}: {source.measure} {result.mean:.3f}, {result.mean_nfe:.1f} forwards", highlight=False)
    return points


def last_of(metrics: list[Json], names: dict[str, str]) -> dict[str, float]:
    """The last iteration's value of each metric that it has. names: key in the result -> metric."""
    return {key: metrics[-1][name] for key, name in names.items() if metrics and name in metrics[-1]}


def curve(metrics: list[Json], sampler: str, measure: str) -> list[dict[str, float]]:
    """Each evaluation during training, with the FLOPs up to that step. measure: "accuracy" or "reward"."""
    points, flops = [], 0.0
    for m in metrics:
        flops = m.get("flops", flops)
        if (value := m.get(f"eval/{sampler}/{measure}")) is not None:
            at = {"step": m["step"], "flops": flops}
            points.append({**at, measure: value, "nfe": m[f"eval/{sampler}/nfe"]})
    return points


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
