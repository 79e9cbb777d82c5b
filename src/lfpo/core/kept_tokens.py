"""Top-k and nucleus sampling."""

import torch


def kept_tokens(scores_TV: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """The tokens that top-k and nucleus sampling keep at each position, [T, V] bool.

    scores_TV: logits over temperature, -inf for tokens that are never drawn.
    top_k: keep the k most probable tokens, and all that are as probable as the k-th.
    top_p: keep the most probable tokens until their probabilities sum to top_p, the one that crosses it included.
    With both, a token must pass both.
    """
    keep = scores_TV > -torch.inf
    if top_k is not None and top_k < scores_TV.shape[1]:
        keep &= scores_TV >= scores_TV.topk(top_k, dim=-1).values[:, -1:]
    if top_p is not None and top_p < 1:
        ordered, index = scores_TV.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        keep &= torch.zeros_like(keep).scatter_(1, index, before < top_p)
    return keep
