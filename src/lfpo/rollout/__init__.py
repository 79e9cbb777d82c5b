"""From prompts to scored rollouts: the sampler's settings, the denoising loop, trajectories."""
