"""The rows in flight: what is known of rollouts that are being sampled."""

from dataclasses import dataclass

import torch


@dataclass
class ActiveRows:
    """The A rows in flight: entered and not yet removed. All fields are per row, on the model's device.

    Finished rows (`done`) no longer change; they stay until the loop looks for them.

    row [A] int64: index in the caller's list. seed [A] int64.
    prompt_ids, prompt_mask [A, P] int64, left-padded.
    tokens [A, C] int64, reveal_step [A, C] int64, confidence, entropy [A, C] float32: see Trajectory, except that
        unrevealed positions hold the mask token.
    clock [A] int64: scheduled steps spent. block [A] int64: index of the active block. block_step [A] int64: steps of
        the active block spent.
    offset [A] int64: prompt tokens in the row's first block, 0 unless the model attends block by block. blocks [A]
        int64: blocks of the row.
    storing [A] bool: whether the row's next forward stores what stands before the active block and reveals nothing in
        it, or over a causal context its first token (`first_token`).
    nfe [A] int64: forwards so far. queries [A] int64: tokens that went through them.
    done [A] bool: whether the row is finished.
    """

    row: torch.Tensor
    seed: torch.Tensor
    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    tokens: torch.Tensor
    reveal_step: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    clock: torch.Tensor
    block: torch.Tensor
    block_step: torch.Tensor
    offset: torch.Tensor
    blocks: torch.Tensor
    storing: torch.Tensor
    nfe: torch.Tensor
    queries: torch.Tensor
    done: torch.Tensor
