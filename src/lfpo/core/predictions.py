"""Predictions of the policies at the targets of one pass, each computed when an objective asks for it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from lfpo.core.fused import in_chunks, logp_of_labels
from lfpo.core.model import CURRENT, MaskedDiffusionLM
from lfpo.core.views import Views


@contextlib.contextmanager
def one_pass(policies: Iterable[MaskedDiffusionLM]) -> Iterator[dict[str, torch.Tensor]]:
    """A pass of an update: forwards, and a backward or none. Yields what the first policy measures of it, as
    lfpo.core.measures has it; filled while the pass runs."""
    models = [policy for policy in policies if isinstance(policy, MaskedDiffusionLM)]  # tests have other classes
    measuring = models[0].measure_pass if models else None
    try:
        with contextlib.nullcontext({}) if measuring is None else measuring() as measures:
            yield measures
    finally:
        for model in models:
            if model.after_pass is not None:
                model.after_pass()


class Predictions:
    """Predictions at the T targets of some views, row by row.

    policies: "current" (theta, the only one that receives gradients), "old" (theta_old, which sampled the rollouts) and
        "base" (the policy before training). Each runs at most once, when first needed. Where the current model stands
        under a second name, too, its hidden states serve both.
    labels_T: the tokens that are scored. view_T, column_T: the view and the column each target stands in. weight_T: its
        weight.
    """

    def __init__(self, views: Views, policies: Mapping[str, MaskedDiffusionLM]):
        self.views = views
        self.policies = policies
        self.view_T, self.column_T = views.target.nonzero().unbind(-1)
        self.labels_T = views.labels[views.target]
        self.weight_T = views.weight[views.target]
        self._hidden: dict[str, torch.Tensor] = {}
        self._conditioned_by: tuple[torch.Tensor | None] | None = None
        self.ran: list[tuple[str, Views]] = []  # policies that took a forward, and of what
        self.used: list[str] = []  # policies whose hidden states the loss has read

    def at_targets(self, value_B: torch.Tensor) -> torch.Tensor:
        """Each target's value [T] of those of the rollouts [B], on the policies' device."""
        return value_B[self.views.row][self.view_T]

    def hidden(self, policy: str = CURRENT) -> torch.Tensor:
        """Hidden states [T, D] of the targets, in the weights' dtype; with gradients for the current policy only.

        The body may run in bfloat16. The head does not: rounded logits would hide the small differences between
        policies that the losses are made of.
        """
        if policy in self._hidden:
            return self._hidden[policy]
        model, views = self.policies[policy], self.views
        # Only with gradients enabled: without them hidden(CURRENT) would be kept without a graph, and the loss could
        # not be differentiated.
        if policy != CURRENT and model is self.policies.get(CURRENT) and torch.is_grad_enabled():
            self._hidden[policy] = self.hidden(CURRENT).detach()
            self.used.append(policy)
            return self._hidden[policy]
        with torch.set_grad_enabled(policy == CURRENT and torch.is_grad_enabled()):
            self._hidden[policy] = views.hidden_at_targets(model, self._signal())
        self.ran.append((policy, views))
        self.used.append(policy)
        return self._hidden[policy]

    def _signal(self) -> torch.Tensor | None:
        """What conditions the predictions of all policies alike (see Views.signal), made once."""
        if self._conditioned_by is None:
            signal, ran = self.views.signal(self.policies)
            self._conditioned_by = (signal,)
            self.ran += ran
        return self._conditioned_by[0]

    def logits(self, policy: str = CURRENT) -> torch.Tensor:
        """Logits [T, V] of all targets at once: for small vocabularies and tests."""
        with torch.set_grad_enabled(policy == CURRENT and torch.is_grad_enabled()):
            return self.policies[policy].head(self.hidden(policy))

    def logp(self, policy: str = CURRENT, *, temperature: float = 1.0) -> torch.Tensor:
        """Log-probability of each target's token [T] at a temperature."""
        return self.in_chunks(partial(logp_of_labels, self.policies[policy].head, temperature), policy, self.labels_T)

    def in_chunks(self, function: Callable[..., torch.Tensor], policy: str, *rows: torch.Tensor) -> torch.Tensor:
        """function(hidden, *rows) [T] of a policy's hidden states and other tensors [T, ...], for some targets at a
        time; with gradients for the current policy only."""
        hidden_TD = self.hidden(policy)
        with torch.set_grad_enabled(policy == CURRENT and torch.is_grad_enabled()):
            return in_chunks(function, [hidden_TD, *rows], self.policies[policy].vocab_size)
