"""Models whose noise is uniform over the vocabulary, on canvases of tokens that are revised: DiffusionGemma.

family.py: config.json, key names. stack.py: its layers. model.py: what differs from models that fill in masks.
noise.py: noised states of training. sampler.py, trajectory.py: rollouts. plan.py: what `lfpo plan` counts.
"""
