"""Names that users bring from TRL and that lfpo does not take, each with what to write here instead.

Only those that TRL's examples and its users' scripts set; docs/coming-from.md has more. The command line, YAML files
and Python all read these tables (lfpo.config.build.refusal).
"""

_LORA = "is a key of 'lora' here: lora={'r': ..., 'lora_alpha': ..., 'target_modules': ...}"
_EVAL_STEPS = "is eval_steps here (0: no evaluation)"
_LEAVE_OUT = "has no counterpart here; leave it out"

# Of all training commands.
SHARED: dict[str, str] = {
    "model_name_or_path": "is 'model' here: a folder, a hub id or 'embedded'",
    "torch_dtype": "is dtype here",
    "fp16": "is not supported: set bf16 on a GPU",
    "use_peft": "is not needed: give 'lora'",
    "lora_r": _LORA,
    "lora_alpha": _LORA,
    "lora_target_modules": _LORA,
    "lora_dropout": "has no counterpart here: with dropout two forwards of a policy would differ; leave it out",
    "load_in_8bit": "is load_in_4bit here",
    "gradient_checkpointing_kwargs": "is not needed: set gradient_checkpointing alone",
    "warmup_ratio": "is warmup_steps here, in optimiser steps",
    "resume_from_checkpoint": "is no key: --resume on the command line, or train(resume=True), goes on from the newest "
    "checkpoint",
    "load_best_model_at_end": "is not supported: the last weights are exported. Give callbacks the best metric with "
    "metric_for_best_model, and take a checkpoint's model from checkpoints/step-N/model",
    "eval_strategy": _EVAL_STEPS,
    "evaluation_strategy": _EVAL_STEPS,
    "save_strategy": "is save_steps here",
    "run_name": "is the last part of output_dir here",
    "deepspeed": "is fsdp here: fsdp=True under torchrun",
    "remove_unused_columns": _LEAVE_OUT,
    "attn_implementation": _LEAVE_OUT,
}


def _of_sampler(key: str) -> str:
    return f"is sampler.{key} here (in Python sampler=SamplerConfig({key}=...))"


def _of_objective(key: str) -> str:
    return f"is objective.{key} here (in Python objective={{'name': ..., {key!r}: ...}})"


_BATCH = "counts rollouts of a device: set prompts_per_iteration and num_generations, which count those of all ranks; "
_BATCH += "update_tokens bounds memory"
_ENGINE = "is for vLLM, which has no masked diffusion models: rollouts are sampled by lfpo; see 'engine' for where"

# Of `lfpo train`.
TRAINING: dict[str, str] = SHARED | {
    "max_completion_length": _of_sampler("gen_length"),
    "temperature": _of_sampler("temperature"),
    "top_p": _of_sampler("top_p"),
    "top_k": _of_sampler("top_k"),
    "num_iterations": _of_objective("num_iterations"),
    "epsilon": _of_objective("epsilon"),
    "epsilon_high": _of_objective("epsilon_high"),
    "beta": "is objective.beta here, for GRPO's variants; LFPO's beta is another quantity (see docs/objectives.md)",
    "loss_type": "is objective.name here (in Python objective={'name': ...})",
    "scale_rewards": "is objective.advantage here (zscore_sample, mean), and of LFPO objective.deviation",
    "per_device_train_batch_size": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "generation_batch_size": _BATCH,
    "steps_per_generation": "is optimizer_steps_per_iteration here: optimiser steps after each time of sampling",
    "max_prompt_length": "is filter_overlong_prompts here: prompts are never cut, but too long ones may be left out",
    "use_vllm": _ENGINE,
    "vllm_mode": _ENGINE,
    "vllm_gpu_memory_utilization": _ENGINE,
    "logging_steps": "is not needed: every iteration is logged in metrics.jsonl; leave it out",
}

_PUSH = "is not supported: `lfpo push RUN USER/NAME` uploads the trained model"

# Of `lfpo sft` and `lfpo dpo`.
EXAMPLES: dict[str, str] = SHARED | {
    "per_device_train_batch_size": "is batch_size here: examples of a step, over all ranks",
    "gradient_accumulation_steps": "is not needed: batch_size counts examples, and update_tokens bounds memory",
    "max_length": "is gen_length here: tokens of a completion",
    "max_seq_length": "is gen_length here: tokens of a completion",
    "packing": _LEAVE_OUT,
    "push_to_hub": _PUSH,
    "hub_model_id": _PUSH,
}

# Arguments of GRPOTrainer.
ARGUMENTS: dict[str, str] = {
    "processing_class": "is tokenizer here",
    "optimizers": "is not supported: set optim, learning_rate and lr_scheduler_type",
    "rollout_func": "is 'engine' here (see docs/engines.md)",
    "environment_factory": "is args.environment here: a class whose objects take turns with the model",
}

# Methods and attributes of GRPOTrainer.
METHODS: dict[str, str] = {
    "save_model": "(train() returns the folder of the trained model; or lfpo.models.save_model)",
    "push_to_hub": "(set push_to_hub, or `lfpo push RUN USER/NAME`)",
    "processing_class": "(it is tokenizer here)",
}
