"""What transformers' callbacks are given beside state and control: arguments, the model's configuration, loaders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from lfpo.config.build import to_dict
from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.train.trainer import Trainer


class Arguments:
    """The run's configuration as callbacks read it: its own keys, then what follows from them for transformers'
    TrainingArguments, then these arguments' defaults. A value that is set is set in the configuration."""

    def __init__(self, config: Any, values: Json):
        self.__dict__.update(_config=config, _values=values)

    def __getattr__(self, name: str) -> Any:
        from transformers import TrainingArguments

        if name in self._values:
            return self._values[name]
        if hasattr(self._config, name):
            return getattr(self._config, name)
        for field in dataclasses.fields(TrainingArguments):
            if field.name == name:
                made = field.default_factory
                return field.default if made is dataclasses.MISSING else made()
        if not name.startswith("_") and (attribute := getattr(TrainingArguments, name, None)) is not None:
            return attribute.__get__(self) if hasattr(attribute, "__get__") else attribute  # a property or a method
        raise AttributeError(f"neither the run's configuration nor transformers.TrainingArguments has {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._values:
            self._values[name] = value
        else:
            setattr(self._config, name, value)

    def to_dict(self) -> Json:
        plain = {name: value for name, value in self._values.items() if isinstance(value, str | int | float | None)}
        return {**to_dict(self._config), **plain}

    def to_sanitized_dict(self) -> Json:
        return {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in self.to_dict().items()}

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)


class ModelConfig(Json):
    """A model's config.json with the methods that transformers' integrations call."""

    def to_dict(self) -> Json:
        return dict(self)

    def to_json_string(self) -> str:
        return json.dumps(self, indent=2, default=str)


class Schedule:
    """The `lr_scheduler` of callbacks, to read: the run sets the rate itself, before each optimiser step."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> Json:
        return {}


def metric_name(config: object) -> str | None:
    """The name of metric_for_best_model as transformers' callbacks look it up: `eval_NAME`."""
    name = getattr(config, "metric_for_best_model", None)
    return None if name is None else f"eval_{name.removeprefix('eval_').removeprefix('eval/')}"


def values_of(trainer: Trainer, metric: str | None) -> Json:
    """Values of transformers' TrainingArguments that follow from a run's configuration."""
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy

    config, greater = trainer.args, getattr(trainer.args, "greater_is_better", None)
    first, world = collectives.rank() == 0, collectives.world()
    source = getattr(trainer, "source", None)
    evaluates = trainer.evaluates_after(trainer.total_steps) and (source is None or len(source.eval_rows) > 0)
    return {
        "logging_strategy": IntervalStrategy.STEPS,
        "logging_steps": getattr(config, "logging_steps", 1),
        "logging_first_step": True,
        "eval_strategy": IntervalStrategy.STEPS if evaluates else IntervalStrategy.NO,
        "eval_on_start": trainer.evaluates_after(0),
        "eval_delay": 0,
        "save_strategy": SaveStrategy.STEPS,
        "metric_for_best_model": metric,
        "greater_is_better": not (metric or "").endswith("loss") if greater is None else greater,
        "load_best_model_at_end": False,
        "run_name": Path(config.output_dir).name,
        "per_device_train_batch_size": -(-trainer.length.batch * getattr(config, "num_generations", 1) // world),
        "world_size": world,
        "process_index": collectives.rank(),
        "local_process_index": collectives.rank(),
        "n_gpu": min(1, torch.cuda.device_count()),
        "device": collectives.device(),
        "should_log": first,
        "should_save": first,
    }


def loaders(trainer: Trainer) -> Json:
    """The data loaders that callbacks are given, to look at: of the training rows, None where prompts are made without
    end, and of this rank's held-out rows, one for each eval sampler and row."""
    source = getattr(trainer, "source", None)
    if source is None:
        return {"train_dataloader": None, "eval_dataloader": None}
    samplers = getattr(trainer, "eval_samplers", ())
    held_out: Any = [source.eval_rows[i] for i in collectives.share(len(source.eval_rows))] * len(samplers)
    training = DataLoader(source.rows, trainer.length.batch, collate_fn=list) if source.rows else None
    return {
        "train_dataloader": training,
        "eval_dataloader": DataLoader(held_out, 1, collate_fn=list) if held_out else None,
    }
