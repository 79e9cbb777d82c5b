"""Training: Algorithm 1 (`rl`), supervised training (`sft`), the optimiser, checkpoints, and what a run will need."""
