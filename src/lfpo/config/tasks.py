"""Names of tasks, and where each is (lfpo.prompts.tasks.get_task looks them up)."""

from typing import Annotated

from lfpo.config.checks import OneOf

# Procedural tasks: their problems are generated. The embedded model is trained on them.
TASKS: dict[str, str] = {
    "sudoku": "lfpo.prompts.tasks.sudoku:TASK",
    "countdown": "lfpo.prompts.tasks.countdown:TASK",
    "words": "lfpo.prompts.tasks.words:TASK",
    "expression": "lfpo.prompts.tasks.expression:TASK",
    "choice": "lfpo.prompts.tasks.choice:TASK",
}

# The same task in several lengths, for comparisons. The recipes successor-pretrain and successor make its base model.
LENGTHS: dict[str, str] = {
    f"successor{length}": f"lfpo.prompts.tasks.successor:LENGTH_{length}" for length in (16, 32, 64, 128)
}

# Generated too, for other models: stories for pretrained ones (`make real`), sudoku6 for embedded-causal.
OTHERS: dict[str, str] = {
    "stories": "lfpo.prompts.tasks.stories:TASK",
    "sudoku6": "lfpo.prompts.tasks.sudoku6:TASK",
}

# Data sets: read from files or the Hugging Face hub.
BENCHMARKS: dict[str, str] = {
    "gsm8k": "lfpo.prompts.tasks.math:GSM8K",
    "math": "lfpo.prompts.tasks.math:MATH",
    "math500": "lfpo.prompts.tasks.math:MATH500",
    "d1_countdown": "lfpo.prompts.tasks.d1:COUNTDOWN",
    "d1_sudoku": "lfpo.prompts.tasks.d1:SUDOKU",
    "hellaswag": "lfpo.prompts.tasks.multiple_choice:HELLASWAG",
    "winogrande": "lfpo.prompts.tasks.multiple_choice:WINOGRANDE",
    "piqa": "lfpo.prompts.tasks.multiple_choice:PIQA",
    "gpqa": "lfpo.prompts.tasks.multiple_choice:GPQA",
    "acecode": "lfpo.prompts.tasks.code_task:ACECODE",
    "humaneval": "lfpo.prompts.tasks.code_task:HUMANEVAL",
    "humaneval_plus": "lfpo.prompts.tasks.code_task:HUMANEVAL_PLUS",
    "mbpp": "lfpo.prompts.tasks.code_task:MBPP",
    "mbpp_plus": "lfpo.prompts.tasks.code_task:MBPP_PLUS",
    "bigcodebench": "lfpo.prompts.tasks.bigcodebench:TASK",
    "bigcodebench_hard": "lfpo.prompts.tasks.bigcodebench:HARD_TASK",
    "bigcodebench_instruct": "lfpo.prompts.tasks.bigcodebench:INSTRUCT",
    "bigcodebench_hard_instruct": "lfpo.prompts.tasks.bigcodebench:HARD_INSTRUCT",
}

# A name may be followed by a benchmark's files (gsm8k@FOLDER); others are reasoning_gym:NAME and dotted paths.
TaskName = Annotated[str, OneOf((*TASKS, *LENGTHS, *OTHERS, *BENCHMARKS), "[.:@]")]
