"""The checks by name, most valuable first."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpu import agreement, attention, fsdp, loss, memory, rollouts, small
from gpu.rows import Machine, Row


@dataclass(frozen=True)
class Check:
    """question: what it answers. seconds: what it should take at most on an H200; it is ended after twice that."""

    question: str
    seconds: float
    run: Callable[[Machine], Iterable[Row]]


CHECKS: dict[str, Check] = {
    "device": Check("which device, and how fast are its products and copies", 40, agreement.device),
    "rollouts-agree": Check("does every sampler give the CPU's tokens in float32", 60, agreement.rollouts_agree),
    "losses-agree": Check(
        "does every objective give the CPU's loss and gradient in float32", 120, agreement.losses_agree
    ),
    "attention": Check("which kernel runs in each case, and what does a new shape cost", 60, attention.kernels),
    "blocks": Check("does FlexAttention give the states and gradients of the dense mask", 90, attention.blocks),
    "loss": Check("time and error of the rectified loss at 8B size", 60, loss.rectified),
    "loss-kernel": Check("is the loss's Triton kernel right, and faster than what it replaces", 60, loss.kernel),
    "rollout": Check("how much of the device do rollouts use", 120, rollouts.utilisation),
    "waits": Check("how often does a rollout wait for the device", 60, rollouts.waits),
    "fsdp": Check("does FSDP with one rank train and resume as without it", 120, fsdp.one_rank),
    "rollout-8b": Check("speed of 32 layers, compiled and not, with LoRA, with a cache", 300, rollouts.full_size),
    "small": Check("what compiled layers and CUDA graphs save a model of 135 M parameters", 120, small.launches),
    "real": Check("the first three arms of the comparison on a real model", 400, small.comparison),
    "memory-lora": Check("two iterations with LoRA, memory against the plan", 150, memory.lora),
    "memory-4-bit": Check("two iterations with a 4-bit base, memory against the plan", 150, memory.four_bit),
    "memory-full": Check("two iterations of all weights, 8-bit moments, memory against the plan", 240, memory.full),
}
