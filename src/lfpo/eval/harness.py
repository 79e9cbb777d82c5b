"""The model "lfpo" of lm-evaluation-harness.

    lfpo lm-eval --model_args pretrained=GSAI-ML/LLaDA-8B-Base,dtype=bfloat16 --tasks hellaswag

Prompts and metrics are the harness's; decoding and its noise are those of `lfpo eval`. Under torchrun each rank holds a
model and takes its share of the requests.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, TypeVar

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lfpo.base import distributed
from lfpo.config.build import build, read_value
from lfpo.config.errors import UserError
from lfpo.config.eval import LmEvalConfig
from lfpo.config.json import Json
from lfpo.config.sampler import Sampler, SamplerConfig
from lfpo.core import collectives
from lfpo.core.completions import decode_completions
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Request
from lfpo.core.messages import on_one_day
from lfpo.core.rng import key
from lfpo.eval.evaluate import finite
from lfpo.eval.likelihood import Pair, first_token, likelihood_bounds, text_pair
from lfpo.eval.terminal import open_console, progress
from lfpo.models import load_model, load_tokenizer
from lfpo.rollout.sampling import as_it_is

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_LENGTH = 256  # tokens of a completion if neither task nor arguments give it: the harness's default
CHUNK = 256  # requests between two updates of the progress bar
ARGUMENTS = "lm-eval: model arguments"


@register_model("lfpo")
class LfpoLM(LM):
    """arguments: the fields of LmEvalConfig and those of the sampler (steps, block_length, threshold, ...; cfg_scale is
    for likelihoods too), which override a task's generation_kwargs. Raises UserError for unknown or wrong ones.
    """

    def __init__(
        self,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **arguments: Any,
    ):
        super().__init__()
        if batch_size not in (None, 1, "1", "auto") or max_batch_size is not None:
            raise UserError("lm-eval: rows are packed by tokens; leave batch_size out and give rollout_tokens")
        own = {field.name for field in fields(LmEvalConfig)}
        self.sampler = {name: value for name, value in arguments.items() if name not in own}
        self.cfg_scale = build(SamplerConfig, self.sampler, ARGUMENTS).cfg_scale
        self.config = build(LmEvalConfig, {k: v for k, v in arguments.items() if k in own}, ARGUMENTS)
        distributed.start()
        name = self.config.pretrained
        # "cuda" is the harness's default, with or without a GPU.
        self._device = collectives.device() if device in (None, "cuda", "cuda:0") else torch.device(device)
        self.model = load_model(name, dtype=getattr(torch, self.config.dtype), device=self._device)
        self.tokenizer = load_tokenizer(name)
        self.engine = as_it_is(self.model, self.config.rollout_tokens)
        self.console = open_console(quiet=collectives.rank() != 0)

    @property
    def tokenizer_name(self) -> str:
        return self.config.pretrained.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's text, which the harness records."""
        return self.tokenizer.chat_template or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            chat_template=on_one_day(self.tokenizer),
        )

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Completions up to the first stop text; noise is keyed by (seed, document, repetition), as in `lfpo eval`."""
        seen: Counter[tuple[object, ...]] = Counter()
        generations = []
        for request in requests:
            context, options = request.args
            document = (request.task_name, request.doc_id, context)
            number = key(self.config.seed, "eval", 0 if request.doc_id is None else request.doc_id, seen[document])
            seen[document] += 1
            where = f"lm-eval: task {request.task_name!r}"
            place = where if request.doc_id is None else f"{where}: document {request.doc_id}"
            generations.append((context, *self._sampler(options, where), number, place))
        return self._cached("generate_until", requests, self._shared("generate", generations, self._generate))

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The likelihood bound of each continuation, and whether greedy decoding gives it (False if not checked)."""
        texts = [request.args for request in requests]
        pairs = [text_pair(before, after, self.tokenizer, self.model, self.config.seed) for before, after in texts]
        return self._cached("loglikelihood", requests, self._shared("likelihoods", pairs, self._bounds))

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The likelihood bound of each text, as the sum over windows if it is longer than the model's context."""
        prefix, seed = first_token(self.tokenizer, self.model), self.config.seed
        pairs, counts = [], []
        for request in requests:
            (text,) = request.args
            tokens = self.tokenizer.encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(tokens, prefix, self.model.max_length - 1, 1)
            parts = [make_disjoint_window(window) for window in windows]
            pairs += [Pair(list(a), list(b), key(seed, "rolling", text, i)) for i, (a, b) in enumerate(parts)]
            counts.append(len(parts))
        bounds = iter(self._shared("likelihoods", pairs, self._logp))
        return self._cached("loglikelihood_rolling", requests, [sum(islice(bounds, count)) for count in counts])

    def _cached(self, method: str, requests: list[Any], results: list[R]) -> list[R]:
        """`results`, after handing them to the harness's cache."""
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial(method, request.args, result)
        return results

    def _sampler(self, options: Json, where: str) -> tuple[Sampler, tuple[str, ...]]:
        """Sampler and stop texts of a request. Raises UserError, beginning with `where`, for options that it cannot
        follow."""
        given = f"{where}: generation_kwargs"
        # Some of the harness's tasks say that there is one beam.
        values = {k: v for k, v in options.items() if v is not None and (k, v) != ("num_beams", 1)}
        until = values.pop("until", [])
        stops = [until] if isinstance(until, str) else until
        if (drawn := values.pop("do_sample", None)) is not None:
            # As in transformers, whose temperature is 1 where none is given.
            drawn = read_value(drawn, bool, f"{given}: do_sample")
            values["temperature"] = values.get("temperature", 1.0) if drawn else 0.0
        names = SamplerConfig.ALIASES
        own = {names.get(name, name) for name in self.sampler}
        values = {k: v for k, v in values.items() if names.get(k, k) not in own}
        sampler = build(SamplerConfig, {**values, **self.sampler}, given)
        return sampler.fitted(where, DEFAULT_LENGTH, self.model.block_length), tuple(stops)

    def _shared(self, what: str, items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """work(items), where each rank does its share, a chunk at a time; all ranks return all results in order."""
        own_items = collectives.own_indices(len(items))
        done: list[R] = []
        with progress(what, len(own_items), "requests", self.console) as state:
            self.forwarded = self.engine.forwarded = state.forward
            for start in range(0, len(own_items), CHUNK):
                part = [items[i] for i in own_items[start : start + CHUNK]]
                done += work(part)
                state.advance(len(part))
        return [result for part in collectives.gather(done) for result in part]

    def _generate(self, generations: Sequence[tuple[str, Sampler, tuple[str, ...], int, str]]) -> list[str]:
        texts = [""] * len(generations)
        for sampler in dict.fromkeys(item[1] for item in generations):
            index = [i for i, item in enumerate(generations) if item[1] == sampler]
            rows = [{"prompt": generations[i][0]} for i in index]
            places = [generations[i][4] for i in index]
            prompts = encode_rows(rows, self.tokenizer, self.model, sampler.gen_length, places)
            request = Request(prompts, [generations[i][3] for i in index], sampler)
            trajectory = finite(self.engine.sample(request), self.model)
            completions = decode_completions(self.tokenizer, trajectory.tokens, self.model.eos_id)
            for i, text in zip(index, completions, strict=True):
                for stop in generations[i][2]:
                    text = text.split(stop, 1)[0] if stop else text
                texts[i] = text
        return texts

    def _logp(self, pairs: Sequence[Pair]) -> list[float]:
        limits: Json = {"mc_num": self.config.mc_num, "tokens": self.config.rollout_tokens}
        return likelihood_bounds(self.model, pairs, forwarded=self.forwarded, cfg_scale=self.cfg_scale, **limits)

    def _bounds(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        greedy = self._greedy(pairs) if self.config.check_greedy else [False] * len(pairs)
        return list(zip(self._logp(pairs), greedy, strict=True))

    def _greedy(self, pairs: Sequence[Pair]) -> list[bool]:
        """Whether greedy decoding, the most confident token at each step, gives each answer."""
        equal = [False] * len(pairs)
        for length in sorted({len(pair.answer) for pair in pairs}):
            index = [i for i, pair in enumerate(pairs) if len(pair.answer) == length]
            sampler = SamplerConfig(cfg_scale=self.cfg_scale).fitted("sampler", length, self.model.block_length)
            request = Request([pairs[i].prompt for i in index], [0] * len(index), sampler)
            trajectory = finite(self.engine.sample(request), self.model)
            for i, tokens in zip(index, trajectory.tokens.tolist(), strict=True):
                equal[i] = tokens[:length] == pairs[i].answer
        return equal


def main(arguments: list[str]) -> None:
    """Run lm-evaluation-harness's command line, with --model lfpo unless another is given."""
    from lm_eval.__main__ import cli_evaluate

    named = any(a in ("--model", "-M") or a.startswith("--model=") for a in arguments)
    if not named and not {"ls", "validate", "-h", "--help"} & set(arguments):
        arguments = [*arguments, "--model", "lfpo"]
    sys.argv = ["lfpo lm-eval", *arguments]
    with distributed.watched():
        cli_evaluate()
    distributed.stop()
