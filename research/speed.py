"""The rewards of the study of speed: right answers, and beside them few forwards. A reward function's path names one of
these."""

from lfpo.prompts.tasks import get_task
from lfpo.rewards.terms import tokens_per_forward

sudoku_right = get_task("sudoku").reward_functions[0]
countdown_right = get_task("countdown").reward_functions[0]
# 1 where one forward reveals the whole answer, 1 / n where n forwards do.
sudoku_fast = tokens_per_forward(16, sudoku_right)
countdown_fast = tokens_per_forward(8, countdown_right)
