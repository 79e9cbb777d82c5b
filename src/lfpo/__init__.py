"""lfpo: reinforcement learning with verifiable rewards for masked diffusion language models."""

__version__ = "0.1.0"
