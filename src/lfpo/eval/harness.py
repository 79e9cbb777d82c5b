"""The model "lfpo" of lm-evaluation-harness.

    lfpo lm-eval --model_args pretrained=GSAI-ML/LLaDA-8B-Base,dtype=bfloat16 --tasks hellaswag

Prompts and metrics are the harness's; decoding and its noise are those of `lfpo eval`. Under torchrun each rank holds a
model and takes its share of the requests.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar, get_args

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lfpo.base import distributed
from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.eval import Dtype
from lfpo.config.json import Json
from lfpo.config.sampler import SamplerConfig
from lfpo.core import collectives, devices
from lfpo.core.completions import decode_completions
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Request
from lfpo.core.rng import key
from lfpo.eval.likelihood import Pair, first_token, likelihood_bounds, text_pair
from lfpo.eval.terminal import open_console, progress
from lfpo.models import load_model, load_tokenizer
from lfpo.rollout.sampling import as_it_is

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_LENGTH = 256  # tokens of a completion if neither task nor arguments give it: the harness's default
CHUNK = 256  # requests between two updates of the progress bar


@register_model("lfpo")
class LfpoLM(LM):
    """pretrained: checkpoint folder, hub id, or "embedded". dtype: float32 or bfloat16. seed: keys all noise.

    mc_num: noised copies of each likelihood. cfg_scale: guidance, for likelihoods and generation.
    check_greedy: whether to test if greedy decoding gives the continuation, at one forward a token. Accuracy of
        multiple choice does not need it, LAMBADA's does.
    rollout_tokens: rows x length in one forward, in place of batch_size.
    Every field of the sampler is an argument too (steps, block_length, threshold, ...). Arguments override a task's
    generation_kwargs (max_gen_toks is gen_length; temperature counts unless do_sample is false).
    Raises UserError for unknown or wrong arguments.
    """

    def __init__(
        self,
        pretrained: str = "embedded",
        dtype: str = "float32",
        seed: int = 0,
        mc_num: int = 128,
        check_greedy: bool = True,
        rollout_tokens: int = 16384,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **sampler: Any,
    ):
        super().__init__()
        if batch_size not in (None, 1, "1", "auto") or max_batch_size is not None:
            raise UserError("lm-eval: rows are packed by tokens; leave batch_size out and give rollout_tokens")
        if dtype not in get_args(Dtype):
            raise UserError(f"lm-eval: dtype {dtype!r} must be one of {', '.join(get_args(Dtype))}")
        self.cfg_scale = build(SamplerConfig, sampler, "lm-eval: model arguments").cfg_scale
        self.mc_num = int(mc_num)
        if self.mc_num < 1:
            raise UserError(f"lm-eval: mc_num {mc_num} must be at least 1")
        distributed.start()
        # "cuda" is the harness's default, with or without a GPU.
        own = device is None or device in ("cuda", "cuda:0")
        self._device = devices.device() if own else torch.device(str(device))
        self.model = load_model(pretrained, dtype=getattr(torch, dtype), device=self._device)
        self.tokenizer = load_tokenizer(pretrained)
        self.engine = as_it_is(self.model, int(rollout_tokens))
        self.pretrained, self.seed, self.sampler = pretrained, int(seed), sampler
        self.check_greedy, self.rollout_tokens = bool(check_greedy), int(rollout_tokens)
        self.console = open_console(quiet=collectives.rank() != 0)

    @property
    def tokenizer_name(self) -> str:
        return self.pretrained.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's text, which the harness records."""
        return self.tokenizer.chat_template or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if self.tokenizer.chat_template is None:
            raise UserError(f"{self.pretrained}: its tokenizer has no chat template; leave out --apply_chat_template")
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Completions up to the first stop text; noise is keyed by (seed, document, repetition), as in `lfpo eval`."""
        seen: Counter[tuple[object, ...]] = Counter()
        generations = []
        for request in requests:
            context, options = request.args
            document = (request.task_name, request.doc_id, context)
            number = key(self.seed, "eval", 0 if request.doc_id is None else request.doc_id, seen[document])
            seen[document] += 1
            generations.append((context, *self._sampler(dict(options)), number))
        return self._cached("generate_until", requests, self._shared("generate", generations, self._generate))

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The likelihood bound of each continuation, and whether greedy decoding gives it (False if not checked)."""
        texts = [request.args for request in requests]
        pairs = [text_pair(before, after, self.tokenizer, self.model, self.seed) for before, after in texts]
        return self._cached("loglikelihood", requests, self._shared("likelihoods", pairs, self._bounds))

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The likelihood bound of each text, as the sum over windows if it is longer than the model's context."""
        prefix = first_token(self.tokenizer, self.model)
        pairs, counts = [], []
        for request in requests:
            (text,) = request.args
            tokens = self.tokenizer.encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(tokens, prefix, self.model.max_length - 1, 1)
            parts = [make_disjoint_window(window) for window in windows]
            pairs += [Pair(list(a), list(b), key(self.seed, "rolling", text, i)) for i, (a, b) in enumerate(parts)]
            counts.append(len(parts))
        bounds = iter(self._shared("likelihoods", pairs, self._logp))
        return self._cached("loglikelihood_rolling", requests, [sum(islice(bounds, count)) for count in counts])

    def _cached(self, method: str, requests: list[Any], results: list[R]) -> list[R]:
        """`results`, after handing them to the harness's cache."""
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial(method, request.args, result)
        return results

    def _sampler(self, options: Json) -> tuple[SamplerConfig, tuple[str, ...]]:
        """Sampler and stop texts of a request."""
        until = options.pop("until", None) or []
        if options.pop("do_sample", None) is False:
            options.pop("temperature", None)
        values = {"gen_length": options.pop("max_gen_toks", DEFAULT_LENGTH), **options, **self.sampler}
        where = "lm-eval: sampler"
        sampler = build(SamplerConfig, values, where).fitted(where, DEFAULT_LENGTH, self.model.block_length)
        return sampler, (until,) if isinstance(until, str) else tuple(until)

    def _shared(self, what: str, items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """work(items), where each rank does its share, a chunk at a time; all ranks return all results in order."""
        own_items = collectives.share(len(items))
        done: list[R] = []
        with progress(what, len(own_items), "requests", self.console) as state:
            self.forwarded = self.engine.forwarded = state.forward
            for start in range(0, len(own_items), CHUNK):
                part = [items[i] for i in own_items[start : start + CHUNK]]
                done += work(part)
                state.advance(len(part))
        return [result for part in collectives.gather(done) for result in part]

    def _generate(self, generations: Sequence[tuple[str, SamplerConfig, tuple[str, ...], int]]) -> list[str]:
        texts = [""] * len(generations)
        for sampler in dict.fromkeys(item[1] for item in generations):
            index = [i for i, item in enumerate(generations) if item[1] == sampler]
            rows = [{"prompt": generations[i][0]} for i in index]
            prompts = encode_rows(rows, self.tokenizer, self.model, sampler.gen_length or 0)
            trajectory = self.engine.sample(Request(prompts, [generations[i][3] for i in index], sampler))
            completions = decode_completions(self.tokenizer, trajectory.tokens, self.model.eos_id)
            for i, text in zip(index, completions, strict=True):
                for stop in generations[i][2]:
                    text = text.split(stop, 1)[0] if stop else text
                texts[i] = text
        return texts

    def _logp(self, pairs: Sequence[Pair]) -> list[float]:
        options: Json = {"mc_num": self.mc_num, "cfg_scale": self.cfg_scale, "tokens": self.rollout_tokens}
        return likelihood_bounds(self.model, pairs, forwarded=self.forwarded, **options)

    def _bounds(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        greedy = self._greedy(pairs) if self.check_greedy else [False] * len(pairs)
        return list(zip(self._logp(pairs), greedy, strict=True))

    def _greedy(self, pairs: Sequence[Pair]) -> list[bool]:
        """Whether greedy decoding, the most confident token at each step, gives each answer."""
        equal = [False] * len(pairs)
        for length in sorted({len(pair.answer) for pair in pairs}):
            index = [i for i, pair in enumerate(pairs) if len(pair.answer) == length]
            sampler = SamplerConfig(gen_length=length, cfg_scale=self.cfg_scale)
            trajectory = self.engine.sample(Request([pairs[i].prompt for i in index], [0] * len(index), sampler))
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
