"""What `lfpo sample` and `lfpo eval` check before torch is loaded."""

from collections.abc import Sequence

from lfpo.config.models import check_model_name
from lfpo.config.sampler import SamplerConfig, check_length
from lfpo.prompts.tasks import get_task


def check_inputs(command: str, model: str, tasks: Sequence[str], sampler: SamplerConfig) -> None:
    """Raise UserError for a model folder or a task that does not exist, or a sampler that does not go with a task's
    length, before torch is loaded, which takes seconds."""
    check_model_name(model)
    for name in tasks:
        task = get_task(name)
        check_length(sampler, task.gen_length, model, f"lfpo {command}: task {task.name!r}: sampler")
