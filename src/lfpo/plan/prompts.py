"""What a plan must know of a recipe's prompts: how many rows there are, and how long the longest prompt is."""

import math

from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.train import LFPOConfig
from lfpo.core.encoding import encode_prompt
from lfpo.models.loading import SHIPPED, load_tokenizer
from lfpo.plan.model import model_config, model_shape
from lfpo.prompts.dataset import read_rows
from lfpo.prompts.sources import default_length
from lfpo.prompts.tasks import DataTask, get_task


def training_rows(args: LFPOConfig) -> int:
    """Distinct training rows of a recipe, 0 where a task makes them without end. With filter_overlong_prompts those
    that fit, if the model is a folder with its tokenizer."""
    task = None if args.task is None else get_task(args.task)
    rows = [record.values for record in read_rows(args, "train")] if task is None else task.train_rows()
    tokenizer = _tokenizer(args) if args.filter_overlong_prompts else None
    if tokenizer is None:
        return len(rows)
    most = room_for_prompt(args)
    return sum(len(encode_prompt(tokenizer, row["prompt"])) <= most for row in rows)


def longest_prompt(args: LFPOConfig) -> int | None:
    """Tokens of the longest prompt in `data_file`, or of the first iteration's that a task makes; with
    filter_overlong_prompts of the longest that fits. None for others, and where the model is not a folder or has no
    tokenizer: weights and data are not downloaded for a plan."""
    task = None if args.task is None else get_task(args.task)
    if isinstance(task, DataTask) or (task is None and args.data_file is None) or (found := _tokenizer(args)) is None:
        return None
    if task is None:
        lengths = [len(encode_prompt(found, record["prompt"], record.where)) for record in read_rows(args, "train")]
    else:
        rows = (task.row("train", i, args.seed) for i in range(args.prompts_per_iteration))
        lengths = [len(encode_prompt(found, row["prompt"])) for row in rows]
    most = room_for_prompt(args) if args.filter_overlong_prompts else math.inf
    return max((length for length in lengths if length <= most), default=None)


def room_for_prompt(args: LFPOConfig) -> int:
    """Tokens of the longest prompt that fits the model's context beside a completion."""
    model = model_shape(model_config(args.model))[1]
    sampler = args.sampler.fitted("sampler", default_length(args.task), model.block_length)
    return model.max_length - sampler.gen_length


def _tokenizer(args: LFPOConfig) -> object:
    """The tokenizer of the model's folder; None without one: a folder with config.json only is enough for a plan."""
    folder = SHIPPED.get(args.model, user_path(args.model))
    if not any(folder.glob("*.json")):
        return None
    try:
        return load_tokenizer(folder)
    except UserError:
        return None
