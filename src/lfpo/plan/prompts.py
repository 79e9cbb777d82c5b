"""What a plan must know of a recipe's prompts: how many rows there are, and how long the longest prompt is."""

import math
from collections.abc import Sequence

from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.train import LFPOConfig
from lfpo.core.encoding import encode_prompt
from lfpo.models.loading import SHIPPED, load_tokenizer
from lfpo.plan.model import model_config, model_shape
from lfpo.prompts.sources import PromptSource, make_source
from lfpo.prompts.tasks import DataTask, Row, get_task


def training_rows(args: LFPOConfig) -> int:
    """Distinct training rows of a recipe, 0 where a task makes them without end. With filter_overlong_prompts those
    that fit, if the model is a folder with its tokenizer."""
    source = _source(args)
    tokenizer = _tokenizer(args) if args.filter_overlong_prompts else None
    return len(source.rows) if tokenizer is None else len(_lengths(args, source, tokenizer, source.rows))


def longest_prompt(args: LFPOConfig) -> int | None:
    """Tokens of the longest prompt in `data_file`, or of the first iteration's that a task makes; with
    filter_overlong_prompts of the longest that fits. None for others, and where the model is not a folder or has no
    tokenizer: weights and data are not downloaded for a plan."""
    elsewhere = args.data_file is None if args.task is None else isinstance(get_task(args.task), DataTask)
    if elsewhere or (tokenizer := _tokenizer(args)) is None:
        return None
    source = _source(args)
    rows = source.rows or [source.train_row(i) for i in range(args.prompts_per_iteration)]
    return max(_lengths(args, source, tokenizer, rows), default=None)


def room_for_prompt(args: LFPOConfig) -> int:
    """Tokens of the longest prompt that fits the model's context beside a completion."""
    model = model_shape(model_config(args.model))[1]
    default = (PromptSource if args.task is None else get_task(args.task)).gen_length
    return model.max_length - args.sampler.fitted("sampler", default, model.block_length).gen_length


def _source(args: LFPOConfig) -> PromptSource:
    return make_source(args, seed=args.seed, n_eval=0, splits=["train"], environment=args.environment)


def _lengths(args: LFPOConfig, source: PromptSource, tokenizer: object, rows: Sequence[Row]) -> list[int]:
    """Tokens of the prompts of training rows; with filter_overlong_prompts of those that fit."""
    lengths = [len(encode_prompt(tokenizer, row["prompt"], source.place("train", i))) for i, row in enumerate(rows)]
    most = room_for_prompt(args) if args.filter_overlong_prompts else math.inf
    return [length for length in lengths if length <= most]


def _tokenizer(args: LFPOConfig) -> object:
    """The tokenizer of the model's folder; None without one: a folder with config.json only is enough for a plan."""
    folder = SHIPPED.get(args.model, user_path(args.model))
    if not any(folder.glob("*.json")):
        return None
    try:
        return load_tokenizer(folder)
    except UserError:
        return None
