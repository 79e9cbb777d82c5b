"""One cell of a comparison, in a process of its own: train or resume, evaluate, then write result.json."""

import json
import sys
import time
from pathlib import Path

import torch

from lfpo.base.environment import use_threads
from lfpo.config.build import build, load_yaml
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, replace_file
from lfpo.config.json import Json
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.config.version import VERSION
from lfpo.eval.evaluate import evaluate
from lfpo.eval.terminal import open_console, progress
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.autocast import autocasts
from lfpo.prompts.tasks import Row, get_task
from lfpo.rollout.sampling import as_it_is
from lfpo.runs.directory import Run


def main(folder: Path) -> None:
    """Run the cell described by `folder/config.yaml` and `folder/cell.json`: whether it trains, the name of the eval
    sampler of its curve, thresholds, and the test problems, as indices, that the trained model is measured on."""
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
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, tokenizer, metrics = load_model(config.model, device=device), load_tokenizer(config.model), []
        # In the precision of the trained models beside it.
        model.autocast = autocasts(config, device, model.backbone.config.hidden_size)
    result = {
        **cell,
        "problems": len(held_out(config, cell)),
        "version": VERSION,
        "forwards": get_task(config.task or "").gen_length,
        "curve": curve(metrics, cell["sampler"]),
        "frontier": frontier(model, tokenizer, config, cell),
        "flops": max((m.get("flops", 0.0) for m in metrics), default=0.0),
        **last_of(metrics, {"same_ending": "completions/frac_same_ending", "entropy": "entropy/rollout"}),
        "seconds": round(time.process_time() - started, 1),
    }
    replace_file(folder / "result.json", json.dumps(result) + "\n")


def held_out(config: LFPOConfig, cell: Json) -> list[Row]:
    """The test problems of a cell; a data set may have fewer than it names."""
    first = get_task(config.task or "").test_rows(1 + max(cell["problems"]))
    return [first[i] for i in cell["problems"] if i < len(first)]


def frontier(model: MaskedDiffusionLM, tokenizer: object, config: LFPOConfig, cell: Json) -> list[dict[str, float]]:
    """Accuracy and forwards a completion on held-out problems, decoded greedily at each threshold, in the blocks and
    with the early stop of the cell's eval sampler; without thresholds, by that sampler as it is. Raises UserError when
    a verdict is missing."""
    task, engine = get_task(config.task or ""), as_it_is(model, config.rollout_tokens)
    rows, points, like = held_out(config, cell), [], config.eval_samplers[cell["sampler"]]
    console = open_console(quiet=False)
    settings = {name: getattr(like, name) for name in ("block_length", "early_stop", "early_stop_threshold")}
    for at in [{"threshold": t} for t in cell["thresholds"]] or [dict[str, float]()]:
        chosen = SamplerConfig(**at, **settings) if at else like
        sampler = chosen.for_length(task.gen_length, model.block_length)
        label = f"threshold {at['threshold']:g}" if at else cell["sampler"]
        with progress(label, len(rows), "completions", console) as state:
            engine.forwarded = state.forward
            result = evaluate(
                *(engine, model, tokenizer, rows, task.correct_all, sampler),
                seed=config.seed,
                finished=lambda answers: state.advance(len(answers)),
            )
        if result.not_judged or result.accuracy is None:
            raise UserError(
                f"task {config.task!r}: {result.not_judged} of {len(result.correct)} completions cannot be judged on "
                "this machine, and a comparison needs all of them; `lfpo doctor` says what is missing"
            )
        points.append({**at, "accuracy": result.accuracy, "nfe": round(result.mean_nfe, 4)})
    return points


def last_of(metrics: list[Json], names: dict[str, str]) -> dict[str, float]:
    """The last iteration's value of each metric that it has. names: key in the result -> metric."""
    return {key: metrics[-1][name] for key, name in names.items() if metrics and name in metrics[-1]}


def curve(metrics: list[Json], sampler: str) -> list[dict[str, float]]:
    """Each evaluation during training, with the FLOPs up to that step."""
    points, flops = [], 0.0
    for m in metrics:
        flops = m.get("flops", flops)
        if (accuracy := m.get(f"eval/{sampler}/accuracy")) is not None:
            at = {"step": m["step"], "flops": flops}
            points.append({**at, "accuracy": accuracy, "nfe": m[f"eval/{sampler}/nfe"]})
    return points


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
