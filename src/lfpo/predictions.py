"""What the policies say at the target positions of one pass, computed when an objective asks for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from .decoding import kept_tokens
from .models import MaskedDiffusionLM
from .ops.rectified import printed_loss, rectified_loss
from .sampler import SamplerConfig
from .views import Views

CURRENT, OLD, BASE = "current", "old", "base"


class Predictions:
    """Predictions at the T targets of some views, row by row.

    policies: "current" (theta, the only one that receives gradients), "old" (theta_old, which sampled the rollouts) and
        "base" (where training started; the peers' reference model). Each runs at most once, when first needed.
    labels_T: the clean tokens. view_T, column_T: the view and the column each target stands in.
    """

    def __init__(self, views: Views, policies: Mapping[str, MaskedDiffusionLM], *, autocast: bool = False):
        self.views = views
        self.policies = policies
        self.autocast = autocast
        self.view_T, self.column_T = views.target.nonzero().unbind(-1)
        self.labels_T = views.labels[views.target]
        self.weight_T = views.weight[views.target]
        self._logits: dict[str, torch.Tensor] = {}

    @property
    def used(self) -> list[str]:
        """The policies that were run."""
        return list(self._logits)

    def of_rollouts(self, value_B: torch.Tensor) -> torch.Tensor:
        """A number for each rollout, spread to its targets [T]."""
        return value_B.to(self.labels_T.device)[self.views.row][self.view_T]

    def logits(self, policy: str = CURRENT) -> torch.Tensor:
        """Logits [T, V]. The body may run in bfloat16; the head does not, because rounding its output would swallow the
        small differences between policies that the objectives live on."""
        if policy not in self._logits:
            model = self.policies[policy]
            with torch.set_grad_enabled(policy == CURRENT and torch.is_grad_enabled()):
                with torch.autocast(model.device.type, torch.bfloat16, enabled=self.autocast):
                    hidden_TD = model.hidden(self.views.input_ids, self.views.attention_mask)[self.views.target]
                self._logits[policy] = model.head(hidden_TD.to(model.dtype))
        return self._logits[policy]

    def logp(self, policy: str = CURRENT, sampler: SamplerConfig | None = None) -> torch.Tensor:
        """Log-probability of each target's token [T]: the model's own, or as a sampler draws.

        sampler: takes its temperature, and restricts every policy to the tokens that top-k and top-p of theta_old keep.
        """
        scores = self.logits(policy)
        if sampler is not None:
            keep = kept_tokens(self._drawable() / sampler.temperature, sampler.top_k, sampler.top_p)
            # The token was drawn, so it was kept; rounding must not say otherwise.
            keep = keep.scatter(1, self.labels_T[:, None], True)
            scores = (scores / sampler.temperature).masked_fill(~keep, -torch.inf)
        return -F.cross_entropy(scores, self.labels_T, reduction="none")

    def _drawable(self) -> torch.Tensor:
        """Logits of theta_old without the mask token, which the sampler never draws."""
        logits = self.logits(OLD)
        mask = torch.arange(logits.shape[1], device=logits.device) == self.views.mask_id
        return logits.masked_fill(mask, -torch.inf)

    def rectified(
        self, r_T: torch.Tensor, *, beta: float, positive_weight: float = 1.0, negative_weight: float = 1.0
    ) -> torch.Tensor:
        """LFPO's loss at each target [T]; see ops.rectified.rectified_loss."""
        return rectified_loss(
            self.logits(),
            self.logits(OLD),
            self.labels_T,
            r_T.to(self.logits().dtype),
            beta=beta,
            positive_weight=positive_weight,
            negative_weight=negative_weight,
        )

    def printed(
        self, r_T: torch.Tensor, *, beta: float, through: bool, positive_weight: float, negative_weight: float
    ) -> torch.Tensor:
        """The loss of Eq. 10 to the letter [T]; see ops.rectified.printed_loss."""
        return printed_loss(
            self.logits(),
            self.logits(OLD),
            r_T.to(self.logits().dtype),
            beta=beta,
            through=through,
            positive_weight=positive_weight,
            negative_weight=negative_weight,
        )
