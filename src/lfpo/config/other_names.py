"""Names of TRL's and transformers' settings that lfpo does not take, each with what to write here instead.

The command line, YAML files and Python all read these tables (lfpo.config.build.refusal).
"""

SAMPLER, OBJECTIVE = "sampler=SamplerConfig({}=...)", "objective={{'name': ..., '{}': ...}}"


def _inside(key: str) -> str:
    """The hint for a name that is a key of the sampler's or the objective's settings."""
    group, _, name = key.partition(".")
    python = (SAMPLER if group == "sampler" else OBJECTIVE).format(name).replace("'name': ..., 'name'", "'name'")
    return f"is {key} here (in Python {python})"


_BATCH = "counts rollouts of a device: set prompts_per_iteration and num_generations, which count those of all ranks; "
_BATCH += "update_tokens bounds memory"
_ENGINE = "is for vLLM, which has no masked diffusion models: rollouts are sampled by lfpo; see 'engine' for where"
_REFERENCE = "is ema_decay here: theta_old follows theta after each iteration"
_LOGGED = "is not needed: every iteration is logged in metrics.jsonl; leave it out"
_RESUME = "is no key: --resume on the command line, or train(resume=True), goes on from the newest checkpoint"
_ADAPTER = "is a key of 'lora' here: lora={'r': ..., 'lora_alpha': ..., 'target_modules': ...}"
_BETA = "is objective.beta here, for GRPO's variants; LFPO's beta is another quantity (see docs/objectives.md)"
_PROMPTS = "is filter_overlong_prompts here: prompts are never cut, but too long ones may be left out"
_NOTHING = "has no counterpart here; leave it out"
_MODEL = "is 'model' here: a folder, a hub id or 'embedded'"

# What training commands share.
SHARED: dict[str, str] = {
    "model_name_or_path": _MODEL,
    "model_init_kwargs": "is not needed: 'dtype' and 'load_in_4bit' say how the model is loaded; leave it out",
    "torch_dtype": "is dtype here",
    "fp16": "is not supported: set bf16 on a GPU",
    "fp16_full_eval": "is not supported: evaluation runs in the precision of training",
    "bf16_full_eval": "is not needed: evaluation runs in the precision of training",
    "tf32": "is head_precision: tf32 here, for the products with the head",
    "use_peft": "is not needed: give 'lora'",
    "lora_r": _ADAPTER,
    "lora_alpha": _ADAPTER,
    "lora_target_modules": _ADAPTER,
    "load_in_8bit": "is load_in_4bit here",
    "lora_dropout": "has no counterpart here: with dropout two forwards of a policy would differ; leave it out",
    "warmup_ratio": "is warmup_steps here, in optimiser steps",
    "resume_from_checkpoint": _RESUME,
    "resume": _RESUME,
    "load_best_model_at_end": "is not supported: the last weights are exported. Give callbacks the best metric with "
    "metric_for_best_model, and take a checkpoint's model from checkpoints/step-N/model",
    "eval_strategy": "is eval_steps here (0: no evaluation)",
    "evaluation_strategy": "is eval_steps here (0: no evaluation)",
    "eval_on_start": "is not needed: an evaluation before the first step is always made where eval_steps is not 0",
    "save_strategy": "is save_steps here",
    "logging_strategy": _LOGGED,
    "logging_first_step": _LOGGED,
    "logging_dir": "is not needed: trackers write into output_dir; leave it out",
    "run_name": "is the last part of output_dir here",
    "project": "is read from WANDB_PROJECT or TRACKIO_PROJECT; leave it out",
    "deepspeed": "is fsdp here: fsdp=True under torchrun",
    "fsdp_config": "is fsdp and fsdp_size here",
    "data_seed": "is seed here",
    "torch_compile": "is rollout_compile here, for rollouts",
    "activation_checkpointing": "is gradient_checkpointing here",
    "activation_checkpointing_kwargs": "is not needed: set gradient_checkpointing alone",
    "gradient_checkpointing_kwargs": "is not needed: set gradient_checkpointing alone",
    "hub_token": "is read from HF_TOKEN, or from `hf auth login`; leave it out",
    "push_to_hub_model_id": "is hub_model_id here",
    "per_device_eval_batch_size": "is rollout_tokens here: tokens computed at once in rollouts and evaluation",
    "eval_batch_size": "is rollout_tokens here: tokens computed at once in rollouts and evaluation",
    "auto_find_batch_size": "is not needed: `lfpo plan` says which update_tokens and rollout_tokens fit",
}
# Of transformers' TrainingArguments and TRL's GRPOConfig: what has no counterpart.
_LEFT_OUT = (
    "do_train do_eval do_predict prediction_loss_only eval_accumulation_steps eval_delay torch_empty_cache_steps "
    "lr_scheduler_kwargs adam_epsilon log_level log_level_replica log_on_each_node logging_nan_inf_filter "
    "save_on_each_node save_only_model enable_jit_checkpoint restore_callback_states_from_checkpoint use_cpu "
    "full_determinism jit_mode_eval local_rank ddp_backend debug dataloader_drop_last dataloader_num_workers "
    "dataloader_multiprocessing_context dataloader_in_order dataloader_prefetch_factor disable_tqdm "
    "remove_unused_columns label_names ignore_data_skip accelerator_config parallelism_config label_smoothing_factor "
    "optim_args group_by_length length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
    "ddp_static_graph ddp_timeout dataloader_pin_memory dataloader_persistent_workers skip_memory_metrics "
    "use_legacy_prediction_loop hub_strategy hub_always_push hub_revision include_for_metrics eval_do_concat_batches "
    "torch_compile_backend torch_compile_mode include_num_input_tokens_seen neftune_noise_alpha optim_target_modules "
    "batch_eval_metrics use_liger_kernel liger_kernel_config eval_use_gather_object average_tokens_across_devices "
    "trackio_space_id trackio_bucket_id trackio_static_space_id train_sampling_strategy use_cache "
    "overwrite_output_dir past_index disable_dropout cast_lm_head_to_fp32 ds3_gather_for_generation "
    "num_generations_eval shuffle_dataset min_p generation_kwargs chat_template_kwargs repetition_penalty "
    "use_transformers_paged cache_implementation delta sapo_temperature_neg sapo_temperature_pos "
    "importance_sampling_level mask_truncated_completions top_entropy_quantile "
    "max_tool_calling_iterations off_policy_mask_threshold use_bias_correction_kl num_completions_to_print "
    "log_unique_prompts log_completions_hub_repo use_liger_loss attn_implementation trust_remote_code "
    "dataset_streaming gradient_accumulation_kwargs model_revision lora_target_parameters lora_modules_to_save "
    "lora_task_type use_rslora use_dora bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage "
    "router_aux_loss_coef pad_to_multiple_of vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
)
_VLLM = (
    "use_vllm vllm_mode vllm_model_impl vllm_structured_outputs_regex vllm_guided_decoding_regex vllm_server_base_url "
    "vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization "
    "vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode vllm_importance_sampling_correction "
    "vllm_importance_sampling_mode vllm_importance_sampling_cap"
)
SHARED |= dict.fromkeys(_LEFT_OUT.split(), _NOTHING) | dict.fromkeys(_VLLM.split(), _ENGINE)

# verl's settings, by their dotted names.
VERL: dict[str, str] = {
    "data": "is verl's: data_file, eval_file, columns and map_row say which rows there are",
    "data.train_files": "is data_file here",
    "data.val_files": "is eval_file here",
    "data.train_batch_size": "is prompts_per_iteration here",
    "data.prompt_key": "is columns here: {KEY: prompt}",
    "data.max_prompt_length": _PROMPTS,
    "data.max_response_length": _inside("sampler.gen_length"),
    "data.filter_overlong_prompts": "is filter_overlong_prompts here, without data",
    "actor_rollout_ref": "is verl's: see model, lora, learning_rate, num_generations, sampler and objective",
    "actor_rollout_ref.model.path": _MODEL,
    "actor_rollout_ref.model.lora_rank": _ADAPTER,
    "actor_rollout_ref.model.enable_gradient_checkpointing": "is gradient_checkpointing here",
    "actor_rollout_ref.actor.optim.lr": "is learning_rate here",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "is warmup_steps here",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "is optimizer_steps_per_iteration here: parts of an iteration",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "is update_tokens here: tokens of one pass",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "is update_tokens here: tokens of one pass",
    "actor_rollout_ref.actor.ppo_epochs": _inside("objective.num_iterations"),
    "actor_rollout_ref.actor.clip_ratio": _inside("objective.epsilon"),
    "actor_rollout_ref.actor.clip_ratio_high": _inside("objective.epsilon_high"),
    "actor_rollout_ref.actor.kl_loss_coef": _BETA,
    "actor_rollout_ref.actor.grad_clip": "is max_grad_norm here",
    "actor_rollout_ref.actor.fsdp_config": "is fsdp, fsdp_size and offload_reference here",
    "actor_rollout_ref.rollout.n": "is num_generations here",
    "actor_rollout_ref.rollout.name": _ENGINE,
    "actor_rollout_ref.rollout.temperature": _inside("sampler.temperature"),
    "actor_rollout_ref.rollout.response_length": _inside("sampler.gen_length"),
    "critic": "is verl's, and no objective here has a critic; leave it out",
    "reward_model": "is not supported: give a function, which may call a model, as reward_funcs",
    "custom_reward_function": "is reward_funcs here: [module.function]",
    "algorithm": "is verl's: see objective",
    "algorithm.adv_estimator": _inside("objective.name"),
    "trainer": "is verl's: see output_dir, max_steps, num_train_epochs, save_steps, eval_steps and report_to",
    "trainer.total_epochs": "is num_train_epochs here",
    "trainer.total_training_steps": "is max_steps here: iterations",
    "trainer.save_freq": "is save_steps here",
    "trainer.test_freq": "is eval_steps here",
    "trainer.logger": "is report_to here",
    "trainer.default_local_dir": "is output_dir here",
    "trainer.experiment_name": "is the last part of output_dir here",
    "trainer.project_name": "is read from WANDB_PROJECT or TRACKIO_PROJECT; leave it out",
    "trainer.n_gpus_per_node": "is said to torchrun: --nproc_per_node",
    "trainer.nnodes": "is said to torchrun: --nnodes",
    "trainer.resume_mode": _RESUME,
    "trainer.max_actor_ckpt_to_keep": "is save_total_limit here",
}
# The same without what stands before the last dot, where that tells enough.
VERL |= {last: text for name, text in VERL.items() if "_" in (last := name.rpartition(".")[2])}

# Of `lfpo train`: GRPOConfig's.
TRAINING: dict[str, str] = (
    VERL
    | SHARED
    | {
        "max_completion_length": _inside("sampler.gen_length"),
        "max_new_tokens": _inside("sampler.gen_length"),
        **{name: _inside(f"sampler.{name}") for name in ("temperature", "top_p", "top_k")},
        **{name: _inside(f"objective.{name}") for name in ("num_iterations", "epsilon", "epsilon_high")},
        "beta": _BETA,
        "loss_type": _inside("objective.name"),
        "scale_rewards": "is objective.advantage here (zscore_sample, mean), and of LFPO objective.deviation",
        "per_device_train_batch_size": _BATCH,
        "train_batch_size": _BATCH,
        "gradient_accumulation_steps": _BATCH,
        "generation_batch_size": _BATCH,
        "steps_per_generation": "is optimizer_steps_per_iteration here: optimiser steps after each time of sampling",
        "max_prompt_length": _PROMPTS,
        "sync_ref_model": _REFERENCE,
        "ref_model_mixup_alpha": _REFERENCE,
        "ref_model_sync_steps": _REFERENCE,
        "logging_steps": _LOGGED,
        "reward_model_name_or_path": "is not supported: give a function, which may call a model, as reward_funcs",
    }
)
_OF_EXAMPLES = (
    "chat_template_path dataset_text_field dataset_kwargs dataset_num_proc eos_token pad_token packing "
    "packing_strategy padding_free eval_packing completion_only_loss assistant_only_loss loss_type "
    "activation_offloading model_adapter_name ref_adapter_name force_use_ref_model use_logits_to_keep padding_value "
    "label_pad_token_id max_prompt_length truncation_mode precompute_ref_log_probs precompute_ref_batch_size tools "
    "loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef discopo_tau use_weighting rpo_alpha "
    "label_smoothing sync_ref_model ref_model_mixup_alpha ref_model_sync_steps reference_free metric_for_best_model "
    "greater_is_better"
)
# Of `lfpo sft` and `lfpo dpo`: SFTConfig's and DPOConfig's.
EXAMPLES: dict[str, str] = (
    SHARED
    | dict.fromkeys(_OF_EXAMPLES.split(), _NOTHING)
    | {
        "push_to_hub": "is not supported: `lfpo push RUN USER/NAME` uploads the trained model",
        "hub_model_id": "is not supported: `lfpo push RUN USER/NAME` uploads the trained model",
        "per_device_train_batch_size": "is batch_size here: examples of a step, over all ranks",
        "train_batch_size": "is batch_size here: examples of a step, over all ranks",
        "gradient_accumulation_steps": "is not needed: batch_size counts examples, and update_tokens bounds memory",
        "max_length": "is gen_length here: tokens of a completion",
        "max_seq_length": "is gen_length here: tokens of a completion",
        "max_completion_length": "is gen_length here",
        "dataset_name": "is data_file here: a file of rows",
        "ref_model_init_kwargs": "is not needed: the base policy is the model that training starts from",
    }
)
# Arguments of GRPOTrainer.
ARGUMENTS: dict[str, str] = {
    "processing_class": "is tokenizer here",
    "reward_processing_classes": "is not supported: give a function, which may call a model, as reward_funcs",
    "optimizers": "is not supported: set optim, learning_rate and lr_scheduler_type",
    "compute_metrics": "is not supported: give a reward function with weight 0",
    "data_collator": "is not needed: rows are passed on as they are",
    "rollout_func": "is 'engine' here (see docs/engines.md)",
    "environment_factory": "is args.environment here: a class whose objects take turns with the model",
    "tools": "is args.environment here: a class whose objects take turns with the model",
    "quantization_config": "is load_in_4bit here, a key of args",
    "ref_model": "is not needed: theta_old starts as the model itself",
    "model_init": "is not needed: a model's name is loaded anew",
    "compute_loss_func": "is args.objective here: a class of your own (see CONTRIBUTING.md)",
    "optimizer_cls_and_kwargs": "is not supported: set optim, learning_rate and lr_scheduler_type",
    "preprocess_logits_for_metrics": "is not supported: give a reward function with weight 0",
}
# Methods and attributes of GRPOTrainer.
METHODS: dict[str, str] = {
    "save_model": "(train() returns the folder of the trained model; or lfpo.models.save_model)",
    "save_state": "(checkpoints hold it)",
    "push_to_hub": "(set push_to_hub, or `lfpo push RUN USER/NAME`)",
    "predict": "(`lfpo eval` samples and grades; lfpo.eval.evaluate in Python)",
    "log_metrics": "(metrics are in trainer.run.read_metrics())",
    "save_metrics": "(metrics are in metrics.jsonl of the run's folder)",
    "processing_class": "(it is tokenizer here)",
    "lr_scheduler": "(callbacks get it as lr_scheduler)",
    "accelerator": "(lfpo.base.distributed has rank and world)",
}
