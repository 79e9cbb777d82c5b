"""MATH-500 (Lightman et al., arXiv 2305.20050; MIT): 500 problems of MATH's test split. Trains on MATH."""

from __future__ import annotations

import dataclasses

from lfpo.prompts.tasks import math
from lfpo.prompts.tasks.hub import HubSplit

TASK = dataclasses.replace(
    math.TASK,
    name="math500",
    hub=(("train", math.TRAIN), ("test", HubSplit("HuggingFaceH4/MATH-500", "test"))),
)
