"""The keys of `hints`."""

from dataclasses import dataclass, field

from lfpo.config.checks import Share, check_ranges


@dataclass(frozen=True)
class HintSettings:
    """Parts of a reference solution in the completions of prompts that no rollout solves (IGPO, arXiv 2509.10396)."""

    column: str | None = None
    """The rows' column with a solution as the model would write it. None: no hints."""

    share: list[float] = field(default_factory=lambda: [0.2, 0.6])
    """[least, most]: the share of a solution's pieces that a rollout is shown, drawn for each rollout."""

    piece: list[int] = field(default_factory=lambda: [5, 10])
    """[least, most]: the tokens of a piece, drawn for each piece."""

    replaced: Share = 0.5
    """The largest share of a group's rollouts that right hinted ones replace."""

    scored: Share = 0.2
    """The share of a rollout's hinted tokens that the loss scores, those with the highest entropy where the whole
    completion is masked. The paper leaves the others out, since they are not the policy's own."""

    min_reward: float = 1.0
    """The least reward of a right rollout. A group without one is sampled again, with hints."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, least, most in (("share", 0, 1), ("piece", 1, float("inf"))):
            pair = getattr(self, name)
            if not (len(pair) == 2 and least <= pair[0] <= pair[1] <= most):
                raise ValueError(f"{name} {pair} must be [least, most], from {least} to at most {most}")
