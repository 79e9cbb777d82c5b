"""What the doubled layout [noised; clean] saves where the prompt stands in it once and not twice.

    python -m benchmarks.doubled --prompt 512 --completion 512

Forward and backward pass of one batch of views of a random model with blocks of 32, over its own blocks and over a
causal context: tokens of a row, and seconds, the median of several passes in turn. Both layouts give the same logits.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from lfpo.base.measure import timed
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.structure import Structure
from lfpo.models import init_model
from lfpo.models.layouts import LAYOUTS

SIZE: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8}
SIZE |= {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "init_std": 0.05}
IDS = {"mask_token_id": 100, "eos_token_id": 2, "pad_token_id": 2}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--completion", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    print("| context | tokens, prompt once | prompt twice | seconds, once | twice | share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, layout in (("blocks", "sdar-1.7b"), ("causal", "nemotron-labs-diffusion-3b")):
        model = init_model({**LAYOUTS[layout], **SIZE, **IDS, "block_size": 32}, seed=0, device=args.device)
        model.autocast = args.device == "cuda"
        once, twice = measured(model, args.prompt, args.completion, args.rows, args.repeats)
        cells = [name, once[0], twice[0], *(f"{value:.2f}" for value in (once[1], twice[1], once[1] / twice[1]))]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def measured(
    model: MaskedDiffusionLM, prompt: int, completion: int, rows: int, repeats: int
) -> list[tuple[int, float]]:
    """Tokens of a row and median seconds with the prompt once, and twice: with the whole row noised."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(200, 4096, (rows, prompt + completion), generator=generator)
    noised = ids.clone()
    noised[:, prompt:].masked_fill_(torch.rand(rows, completion, generator=generator) < 0.5, model.mask_id)
    ids, noised = ids.to(model.device), noised.to(model.device)
    prompts, tokens = torch.full((rows,), prompt, device=model.device), list[int]()

    def run() -> None:
        found, clean = noised_hidden(
            model, noised, ids, torch.ones_like(ids), prompts, structure=training_structure(model)
        )
        tokens.append(found.shape[1] + clean.shape[1])
        (found[:, -completion:].float().square().mean() + clean.float().square().mean()).backward()

    def whole() -> None:
        with mock.patch.object(Structure, "first_noised", lambda structure, prompt_B: torch.zeros_like(prompt_B)):
            run()

    cases: list[Callable[[], None]] = [run, whole]
    seconds = [[timed(case, model.device)[1] for case in cases] for _ in range(repeats + 1)][1:]  # the first warms up
    return [(tokens[i], statistics.median(times)) for i, times in enumerate(zip(*seconds, strict=True))]


if __name__ == "__main__":
    main()
