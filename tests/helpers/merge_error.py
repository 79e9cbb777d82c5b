"""What merging a LoRA adapter into bfloat16 copies changes in a policy's predictions.

    python tests/merge_error.py                     # two layers of width 1,024, adapters of rank 128

Random weights, of a size that gives logits a standard deviation of 3. The adapter on all linear layers has the size of
`--share` of each matrix (root mean square). The body runs in float32, and in bfloat16 with the adapter apart (as in
updates) and merged (as in rollouts). Printed: the largest and the root mean square error of the logits against float32,
and the mean Kullback-Leibler divergence of a prediction from float32 and between the two, in nats.
"""

import argparse

import torch

from lfpo.config.models import LoraSettings
from lfpo.models import MaskedDiffusionLM, init_model
from lfpo.models.lora import attach
from lfpo.models.placement import sampling
from split_memory import config


def adapted(width: int, vocabulary: int, rank: int, share: float) -> MaskedDiffusionLM:
    """A model with an adapter whose products have `share` of the size of the matrices."""
    model = init_model(config(2, width, 3 * width, vocabulary), seed=0)
    attach(model, LoraSettings(r=rank, lora_alpha=rank // 2, target_modules="all-linear"))
    rng = torch.Generator().manual_seed(1)
    for name, factor in model.factors():
        if "lora_B" in name:
            layer = model.backbone.get_submodule(name.split(".lora_B")[0])
            factor.data.copy_(torch.randn(factor.shape, generator=rng))
            delta = layer.get_delta_weight("current").square().mean().sqrt()
            factor.data.mul_(share * layer.base_layer.weight.square().mean().sqrt() / delta)
    return model


@torch.no_grad()
def errors(model: MaskedDiffusionLM, tokens: int) -> dict[str, tuple[float, float, float]]:
    """Largest and RMS error of the logits and the mean divergence: of the adapter apart and merged against float32, and
    of merged against apart."""
    ids = torch.randint(model.vocab_size, (tokens // 64, 64), generator=torch.Generator().manual_seed(2))
    wide = model.hidden(ids)
    model.backbone.lm_head.weight.mul_(3 / model.head(wide).std())

    def logits() -> torch.Tensor:
        return model.head(model.hidden(ids)).flatten(0, 1).double()

    exact = logits()
    model.autocast = True
    apart = logits()
    with sampling(model, cast=True, move_to_device=False, merge=True):
        merged = logits()
    found = {}
    for name, a, b in (("apart", exact, apart), ("merged", exact, merged), ("merged, from apart", apart, merged)):
        kl = (a.softmax(-1) * (a.log_softmax(-1) - b.log_softmax(-1))).sum(-1).mean()
        found[name] = (float((a - b).abs().max()), float((a - b).square().mean().sqrt()), float(kl))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 1024), ("vocabulary", 8192), ("rank", 128), ("tokens", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, nargs="+", default=[0.01, 0.1])
    given = parser.parse_args()
    for share in given.share:
        for way, found in errors(adapted(given.width, given.vocabulary, given.rank, share), given.tokens).items():
            print(f"share {share:g}, {way:18}  max {found[0]:.3f}  rms {found[1]:.4f}  KL {found[2]:.2e}")


if __name__ == "__main__":
    main()
