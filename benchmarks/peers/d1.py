"""d1's DiffuGRPOTrainer (arXiv 2504.12216) from its own file. Runs in the environment of `make peers`, without lfpo.

Its model is transformers' Llama with attention in both directions, which is LLaDA's architecture. Changes to what is
published: a mask's seed is made an int, and `epsilon`, which another release of trl sets, is set here.
"""

import contextlib
import importlib
import sys
import time
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from trl import GRPOConfig

from benchmarks.peers.turn import prompts, report, rewards, settings, wait


def bidirectional(module: Any, query: Any, key: Any, value: Any, mask: Any, **settings: Any) -> Any:
    return sdpa_attention_forward(module, query, key, value, None, **{**settings, "is_causal": False})


class Turns(TrainerCallback):
    """An iteration, a rollout and `num_iterations` optimiser steps, at each turn. `generate` is timed as the rollout,
    everything else is update."""

    def __init__(self) -> None:
        self.started = self.rollout = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % args.num_iterations == 0:
            self.started, self.rollout = wait(), 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % args.num_iterations == 0:
            report(self.rollout, time.perf_counter() - self.started - self.rollout)


def make_trainer(module: Any, asked: Any) -> Any:
    turns, folder = Turns(), asked.folder

    class Timed(module.DiffuGRPOTrainer):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            found = super().generate(*args, **kwargs)
            turns.rollout += time.perf_counter() - started
            return found

    seed = module.set_seed
    module.set_seed = lambda value: seed(int(value))
    ALL_ATTENTION_FUNCTIONS["sdpa"] = bidirectional
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="sdpa")
    rollouts = asked.prompts * asked.generations
    args = GRPOConfig(
        output_dir=str(folder / "d1"),
        per_device_train_batch_size=rollouts,
        num_generations=asked.generations,
        num_iterations=asked.passes,
        max_steps=asked.passes * asked.turns,
        max_prompt_length=256,
        max_completion_length=asked.tokens,
        temperature=0.9,
        beta=0.04 if asked.lora else 0.0,
        learning_rate=1e-5,
        max_grad_norm=1.0,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    own = {"generation_batch_size": rollouts, "block_length": asked.block, "diffusion_steps": asked.steps}
    own |= {"cfg_scale": 0.0, "remasking": "low_confidence", "p_mask_prompt": 0.3, "random_masking": True}
    for name, value in {**own, "mask_id": tokenizer.mask_token_id, "epsilon": 0.2}.items():
        setattr(args, name, value)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear") if asked.lora else None
    data = Dataset.from_list(prompts(asked))
    trainer = Timed(model, [rewards], args, data, processing_class=tokenizer, peft_config=lora)
    trainer.epsilon = args.epsilon
    trainer.add_callback(turns)
    return trainer


def main() -> None:
    asked = settings()
    sys.path.insert(0, str(asked.trainer.parent))
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the turns
        make_trainer(importlib.import_module(asked.trainer.stem), asked).train()


if __name__ == "__main__":
    main()
