"""What `lfpo sample` and `lfpo eval` check before torch is loaded."""

from lfpo.config.data import ProblemConfig
from lfpo.config.models import check_model_name
from lfpo.config.sampler import SamplerConfig, check_length
from lfpo.prompts.problems import check_problems
from lfpo.prompts.tasks import get_task


def check_inputs(command: str, model: str, problems: ProblemConfig, sampler: SamplerConfig) -> None:
    """Raise UserError for a model folder, a task, a file or a function that does not exist, or a sampler that does not
    go with a task's length, before torch is loaded, which takes seconds."""
    check_model_name(model)
    check_problems(problems, splits=("eval",))
    if problems.task is not None:
        task = get_task(problems.task)
        check_length(sampler, task.gen_length, model, f"lfpo {command}: task {task.name!r}: sampler")
