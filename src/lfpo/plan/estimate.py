"""Memory of one GPU in each phase of a run, and FLOPs of an iteration, from a recipe and a model's config.json."""

import math
from dataclasses import replace

import torch

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.config.training import moment_bytes
from lfpo.core.doubled import training_structure
from lfpo.core.forward import PIECE_TOKENS
from lfpo.core.fused import CHUNK_ELEMENTS as LOSS_ELEMENTS
from lfpo.core.head import CAST_ELEMENTS, input_dtype, precision_of
from lfpo.core.reveal import CHUNK_ELEMENTS as DRAW_ELEMENTS
from lfpo.core.reveal import LOGIT_ELEMENTS
from lfpo.models.autocast import autocasts
from lfpo.models.four_bit import BYTES_PER_WEIGHT as FOUR_BIT
from lfpo.models.four_bit import NOT_IN_4BIT
from lfpo.models.kv_cache import columns_for
from lfpo.models.tensor_files import FILE_BYTES
from lfpo.objectives import make_objective
from lfpo.objectives.needs import samplers
from lfpo.plan.flops import head_dim, layer_configs, model_flops
from lfpo.plan.model import Kind, activations, adapter_size, model_shape
from lfpo.plan.work import count, fullest_rank, sampling_work
from lfpo.prompts.sources import default_length
from lfpo.rollout.cached import rows_in_flight
from lfpo.rollout.variants import check_context

Phases = tuple[float, float, float, float]
PHASES = ("start", "rollout", "update", "export")
LIBRARIES = {"cuda": 2**30, "cpu": 0.3 * 2**30}  # bytes that CUDA's context, or Python and torch take, approximately


class Estimate:
    """The estimate of a recipe for a model with this config.json.

    gpus: ranks, one for each GPU. prompt_length: tokens. device: "cuda" or "cpu", whose chunk sizes differ.
    rows: of the data set, where num_train_epochs counts them.

    args: the recipe, with the run's number of iterations as max_steps.

    parts: name -> bytes of one GPU in each of PHASES. totals: their sums. peak: the largest of these.
    host: name -> bytes of CPU memory of each rank. trained: number of trained weights.
    rows: views in one update pass, each of `length` tokens, of which `completion` are a completion's. view_tokens:
        those that run, more where a view runs as [noised; clean].
    fullest: the share of the rank with most rollouts, times that of the mean; the mean over an iteration's steps.
    transfers: how often in an iteration all layers of an offloaded reference are copied to or from the GPU.
    forwards: of one rollout, at most.
    rollout_flops, update_flops: of one iteration on all GPUs, the recomputation of gradient checkpointing included.
    evaluation_flops: of all evaluations of the run.
    rollout_layers, update_layers, evaluation_layers: of the same work, the layers that one GPU runs one after the
        other; a backward pass counts as two. Each takes the time of its kernels' launches at least.
    disk: name -> bytes that the run's folder takes, without logs.
    Raises UserError for a sampler or an objective that does not go with the model.
    """

    def __init__(
        self,
        args: LFPOConfig,
        config: Json,
        *,
        gpus: int = 1,
        prompt_length: int = 256,
        device: str = "cuda",
        rows: int = 0,
    ):
        self.run_length = args.length(rows)
        args = replace(args, max_steps=self.run_length.iterations)
        self.args, self.config, self.gpus, self.device = args, config, gpus, device
        self.sizes, model = model_shape(config)
        self.hf, self.shift, self.trained_block = model.backbone.config, model.family.shift, model.block_length
        if args.load_in_4bit and self.sizes.experts:
            raise UserError(NOT_IN_4BIT)
        self.objective = make_objective(args.objective)
        default = default_length(args.task)
        self.sampler, eval_samplers = samplers(args, default, self.objective, self.trained_block)
        check_context(self.sampler, model)
        for name, evaluated in eval_samplers.items():
            check_context(evaluated, model, f"eval_samplers.{name}")
        self.prompt_length, self.completion = prompt_length, self.sampler.gen_length
        self.length = prompt_length + self.completion
        # Tokens of a view's forward, and the pairs of them that attend to each other.
        self.structure, doubled = model.structure, training_structure(model)
        length, prompt = torch.tensor([self.length]), torch.tensor([prompt_length])
        self.view_tokens, self.view_pairs = int(doubled.tokens(length, prompt)), float(doubled.pairs(length, prompt))

        self.dtype = getattr(torch, args.dtype)
        self.autocast = autocasts(args, device, self.hf.hidden_size)
        self.per_weight = self.dtype.itemsize  # bytes
        self.per_product = 2 if self.autocast else self.per_weight  # bytes of a weight in products of matrices
        self.head_products = precision_of(args.head_precision, torch.device(device), self.dtype)
        self.head = self.hf.vocab_size * self.hf.hidden_size  # weights of the head, and of the embeddings
        self.adapter = 0 if args.lora is None else adapter_size(config, args.lora)
        # The largest matrix with an adapter, and the weights of matrices without one: experts, by default.
        experts = args.lora is not None and args.lora.experts
        self.adapted, self.apart = (self.sizes.matrix, 0) if experts else (self.sizes.dense, self.sizes.experts)
        self.used = self.sizes.active + self.adapter  # weights of the layers that a token runs through
        self.trained = self.adapter or self.sizes.total
        self.share = 1 / (args.fsdp_size or gpus) if args.fsdp else 1.0  # of all weights, that one rank holds
        self.trained_here = self.adapter or self.share * self.sizes.total  # trained weights of one rank

        turns = max(1, args.max_turns)  # each is a row; as many as there can be
        self.rollouts = turns * args.prompts_per_iteration * args.num_generations
        # Before the first iteration, every eval_steps, and after the last.
        evaluations = 1 + math.ceil(args.max_steps / args.eval_steps) if args.evaluates_after(0) else 0
        has_held_out = bool(args.task or args.eval_file or args.dataset_test_split)
        self.problems = turns * args.eval_size if evaluations and has_held_out else 0
        self.work = work = count(self.objective, self.sampler, structure=self.structure, group=args.num_generations)
        # As many views as update_tokens allows, but no more than a rank has in a step, and whole units.
        fullest = [turns * n for n in fullest_rank(args, self.objective, gpus)]
        self.fullest = sum(fullest) * gpus / self.rollouts
        views = [math.ceil(rollouts * work.views) for rollouts in fullest]
        self.rows = max(work.unit, min(args.update_tokens // self.view_tokens, max(views)), 1)
        self.one_pass = max(views) <= self.rows  # in each step
        # One for the rollouts, two for the EMA, and one for each update pass.
        passes = self.objective.num_iterations * sum(-(-n // self.rows) for n in views)
        self.transfers = 3 + passes if args.offload_reference else 0
        self.in_flight, self.rows_per_forward = self._rows_in_flight()

        parts = {
            **self._model_states(),
            "gathered weights": self._gathered(),
            **self._rollout_parts(),
            **self._update_parts(),
            **self._export_parts(),
            "libraries": (LIBRARIES[device],) * 4,
        }
        self.parts: dict[str, Phases] = {name: values for name, values in parts.items() if any(values)}
        self.host = {name: size for name, size in self._host().items() if size}
        self.disk = self._disk()
        self.totals: Phases = tuple(map(sum, zip(*self.parts.values(), strict=True)))  # type: ignore[assignment]
        self.peak = max(self.totals)

        self.forwards, flops = self._sampling(self.sampler, args.num_generations)
        self.rollout_flops = self.rollouts * flops
        layers = self.hf.num_hidden_layers
        sampling = args.engine.workers if args.engine.name == "ray" else gpus
        self.rollout_layers = layers * self.forwards * math.ceil(self.rollouts / sampling / self.rows_per_forward)
        # A backward pass costs two forwards, or one where the weights are frozen.
        forwards = (3 if args.lora is None else 2) + work.others + int(args.gradient_checkpointing)
        tokens, pairs = work.views * self.view_tokens, work.views * self.view_pairs
        one = model_flops(self.hf, self.used, tokens, pairs, work.targets)
        self.update_flops = self.rollouts * self.objective.num_iterations * (forwards + work.before / work.views) * one
        self.update_layers = layers * passes * forwards
        each = [self._sampling(sampler) for sampler in eval_samplers.values()]
        self.evaluation_flops = evaluations * self.problems * sum(flops for _, flops in each)
        rounds = evaluations * math.ceil(self.problems / gpus / self.rows_per_forward)
        self.evaluation_layers = layers * rounds * sum(forwards for forwards, _ in each)

    def _model_states(self) -> dict[str, Phases]:
        """What a run holds between passes: weights, reference, base policy, average, moments, gradients."""
        args, sizes, adapter, per_weight = self.args, self.sizes, self.adapter, self.per_weight
        # From the start: each rank reads its own rows.
        held = self.share * per_weight * sizes.total
        if args.load_in_4bit:
            held -= (per_weight - FOUR_BIT) * sizes.matrices
        # A policy that is not trained; with LoRA it is an adapter.
        frozen = 0 if args.lora else per_weight * sizes.outside if args.offload_reference else held

        # The layers' matrices in bfloat16 during rollouts (lfpo.models.placement.sampling); offloaded ones are cast
        # when they are copied to the GPU. Merged adapters take a copy of every matrix that has one: of the experts' by
        # choice. FSDP gathers all of them.
        copies = 0.0
        if args.merges_lora(self.device) and not args.fsdp:
            copies = self.per_product * (sizes.matrices - self.apart)
            copies += 2 * self.apart * (self.autocast and per_weight > 2)
            copies += 8 * sizes.matrix * (sizes.experts > self.apart)  # the sum of one stacked matrix, in float32
        elif self.autocast and not args.fsdp and not args.rollout_compile:
            copies = 2 * sizes.matrices * (per_weight > 2 and not args.load_in_4bit) + 2 * 2 * adapter
        on_gpu: Phases = (0, 0, 0, 0)
        if args.offload_reference:
            on_gpu = (0, per_weight * (sizes.layers - sizes.matrices * (copies > 0)), per_weight * sizes.layer, 0)
        # bitsandbytes takes 14 bytes a weight to quantise on a CPU.
        quantising = 14 * sizes.matrix * (args.load_in_4bit and self.device == "cpu")
        dequantised = self.per_product * sizes.matrix if args.load_in_4bit else 0

        trained = self.trained_here
        moments = moment_bytes(args.optim) * trained
        optimiser: Phases = (0, moments, moments, moments)
        if args.optim.startswith("paged"):  # only those of the tensor that is being updated have to be on the GPU
            largest = sizes.matrix if args.lora else max(sizes.head, sizes.outside - sizes.head)
            optimiser = (0, 0, min(moment_bytes(args.optim) * largest, moments), 0)
        return {
            "weights": (held + 4 * adapter,) * 4,
            "reference": (4 * adapter if args.lora else frozen,) * 4,
            "base policy": (frozen if self.objective.needs_base else 0,) * 4,
            "average": ((4 if args.lora else per_weight) * trained if args.average_decay else 0,) * 4,
            "copies for sampling": (0, copies, 0, 0),
            "reference's layers on the GPU": on_gpu,
            "one matrix outside 4 bits": (quantising, dequantised, dequantised, dequantised),
            "optimiser": optimiser,
        }

    def _host(self) -> dict[str, float]:
        """Bytes of CPU memory."""
        args, per_weight = self.args, self.per_weight
        offloaded = per_weight * self.sizes.layers if args.offload_reference else 0
        return {
            "reference": offloaded,
            "base policy": offloaded if self.objective.needs_base else 0,
            "optimiser": moment_bytes(args.optim) * self.trained_here * args.optim.startswith("paged"),
        }

    def _disk(self) -> dict[str, float]:
        """What a run's folder takes: a checkpoint holds both policies, an average where there is one, and the moments;
        of LoRA the adapters alone. The newest is written before the oldest is removed."""
        args = self.args
        policy = 4 * self.adapter if args.lora else self.per_weight * self.sizes.total
        one = (3 if args.average_decay else 2) * policy + moment_bytes(args.optim) * self.trained
        count = min(args.save_total_limit + 1, -(-args.max_steps // args.save_steps))
        return {f"{count} checkpoints": count * one, "the trained model": self.per_weight * self.sizes.total}

    def _gathered(self) -> Phases:
        """Weights gathered by FSDP, as in lfpo.models.fsdp. In rollouts all of them, the layers' matrices in bfloat16
        under autocast; with `rollout_gather: layer` the head and two layers with a copy of one. In an update the heads
        of a pass and two layers, in bfloat16 under autocast (float32 with experts), and either the copy that is made of
        one, or two gradients: a layer's, and in float32 the one before it on its way."""
        if not self.args.fsdp:
            return (0, 0, 0, 0)
        sizes, per_weight, lora = self.sizes, self.per_weight, self.args.lora is not None
        all_weights = self.per_product * sizes.matrices + per_weight * (sizes.total - sizes.matrices)
        merged = self.args.merges_lora(self.device)  # a sum is made in float32, one matrix at a time
        adapters = 2 * 4 * self.adapted if merged else 2 * 2 * self.adapter * self.autocast
        heads = per_weight * self.head * (1 if lora else 1 + self.work.others)
        per_gathered = per_weight if sizes.experts else self.per_product
        rollouts = all_weights + adapters
        if self.args.rollout_gather == "layer":
            rollouts = per_weight * self.head + 3 * per_gathered * sizes.layer
        return (0, rollouts, heads + sizes.layer * (3 * per_gathered + (0 if lora else 4)), 0)

    def _rows_in_flight(self) -> tuple[int, int]:
        """Rows that are in flight in rollouts, no more than a rank has of rollouts or of an evaluation; and those of
        them that one forward runs."""
        args, length, kind = self.args, self.length, self.device
        most = max(-(-args.prompts_per_iteration // self.gpus) * args.num_generations, -(-self.problems // self.gpus))
        if self.sampler.rule_name == "canvas":  # all rows run together
            in_flight = min(max(1, args.rollout_tokens // length), most)
            return in_flight, in_flight
        stores = self.trained_block is not None
        in_flight = min(rows_in_flight(length, self.sampler, args.rollout_tokens, stores), most)
        return in_flight, max(1, min(PIECE_TOKENS[kind] // length, args.rollout_tokens // length, in_flight))

    def _rollout_parts(self) -> dict[str, Phases]:
        args, hf, length, kind = self.args, self.hf, self.length, self.device
        in_flight, block, stores = self.in_flight, self.sampler.block_length, self.trained_block is not None
        canvas = self.sampler.rule_name == "canvas"
        longest = max(self.prompt_length, block) if canvas else length  # the prompt runs first, then canvases
        active = in_flight * block  # positions in the active blocks
        _, forward = activations(
            "forward", self.config, self.rows_per_forward, longest, self.dtype, args.lora, self.autocast
        )
        forward += 2 * active * hf.hidden_size * self.per_weight
        # float32 logits, and three tensors of probabilities for those that are drawn from at once.
        probability = 8 if self.head_products == "float32" else 4
        logits = active * hf.vocab_size
        drawing = 4 * min(LOGIT_ELEMENTS[kind], logits) + 3 * probability * min(DRAW_ELEMENTS[kind], logits)
        if canvas:  # logits at two temperatures, their probabilities, and what entropies are summed from
            drawing = 6 * 4 * min(LOSS_ELEMENTS[kind], logits)
        cache = 0.0
        if stores or self.sampler.cache != "none":
            widths = sum(layer.num_key_value_heads * head_dim(layer) for layer in layer_configs(hf))
            per_token = 2 * widths * self.per_product
            # When rows finish, the others are moved, a layer at a time. A compiled forward returns its keys and values.
            copied = self.rows_per_forward * length * per_token if args.rollout_compile else 0
            held = in_flight * columns_for(length) * per_token
            copied = held if canvas else copied  # the rows that go on, beside those of the whole canvas
            cache = held + max(copied, held / hf.num_hidden_layers)
        drawing += self._cast_of_head()
        return {"forward, or logits for drawing": (0, max(forward, drawing), 0, 0), "keys and values": (0, cache, 0, 0)}

    def _cast_of_head(self) -> float:
        """The slice of the head that a product casts, where the head has another dtype than products read."""
        read = input_dtype(self.dtype, self.head_products)
        return 0 if read == self.dtype else read.itemsize * min(CAST_ELEMENTS[self.device], self.head)

    def _export_parts(self) -> dict[str, Phases]:
        """What writing the model takes beside the run's own: the sum of one matrix and its adapter in float32, twice,
        and, where it is in the same memory, the file that gathered or merged tensors are collected for."""
        args, sizes = self.args, self.sizes
        on_cpu = self.device == "cpu"
        gathered = self.per_weight if args.fsdp and on_cpu else 0  # tensors are gathered in CPU memory
        merged = (2 * 4 + gathered) * self.adapted if args.lora else 0
        # Other tensors are written from where they are; an expert's matrices are copied out of the stacked ones.
        changed = sizes.total / self.gpus if args.fsdp else sizes.matrices if args.lora else sizes.experts
        file = min(FILE_BYTES, self.per_product * changed)
        if args.fsdp:  # a large tensor is a file of its own
            file = max(file, self.per_weight * max(sizes.matrix, self.head))
        return {"one tensor to write": (0, 0, 0, merged), "file to write": (0, 0, 0, file if on_cpu else 0)}

    def _update_parts(self) -> dict[str, Phases]:
        args, per_weight, all_weights = self.args, self.per_weight, self.args.lora is None
        kind: Kind = "checkpointed" if args.gradient_checkpointing else "full"
        shape = (self.view_tokens, self.dtype, args.lora, self.autocast)
        held, peak = activations(kind, self.config, self.rows, *shape)
        targets = min(self.rows * self.work.most_targets, self.rows * self.length)
        states = 3 * targets * self.hf.hidden_size * per_weight
        logits = targets * self.hf.vocab_size
        per_logit = 4 * (4 if all_weights else 2) + (0 if per_weight == 4 else per_weight)
        loss = min(LOSS_ELEMENTS[self.device], logits) * per_logit
        # lfpo.core.measures holds the log-probabilities of every policy and three more tensors of this shape.
        measures = min(LOSS_ELEMENTS[self.device] // 4, logits) * 4 * (1 + self.work.others + 3)
        head_gradient = 4 * self.head if all_weights else 0
        chunk = max(loss, measures) + head_gradient + self._cast_of_head()
        # The larger of two moments: the loss of a chunk, when the body holds only what it keeps; and the body's
        # backward pass, when the head's gradient is held twice; that of a split head has left by then, in a third copy.
        later, leaving = (0, 3 * head_gradient) if args.fsdp else (2 * head_gradient, 0)
        at_head = max(max(chunk, leaving) - (peak - held), later)
        gradients = 4 * self.trained_here
        if self.one_pass and not args.fsdp:  # they come while activations, states and chunk are freed
            gradients = max(0, gradients - held - states - at_head)
        # After activations, states and chunk are freed: the all-reduce copies the gradients of whole parameters.
        reduced = 4 * self.trained if self.gpus > 1 and not (args.fsdp and all_weights) else 0
        return {
            "gradients": (0, 0, gradients, 0),
            "activations of a pass": (0, 0, peak, 0),
            "hidden states at targets": (0, 0, states, 0),
            "logits chunk, head's gradient": (0, 0, at_head, 0),
            "gradients on their way": (0, 0, max(0, reduced - peak - states - at_head), 0),
        }

    def _sampling(self, sampler: Sampler, group: int = 1) -> tuple[int, float]:
        """Forwards and FLOPs of one rollout of a sampler, of `group` rollouts with the same prompt."""
        forwards, tokens = sampling_work(sampler, self.prompt_length, self.shift, structure=self.structure, group=group)
        # Where the model attends block by block, a token sees half of the completion on average.
        keys = self.prompt_length + self.completion / (1 if self.trained_block is None else 2)
        predicted = forwards * sampler.block_length
        predicted *= 2 if sampler.rule_name == "canvas" else 1  # expected embeddings are a product with the head too
        return forwards, model_flops(self.hf, self.used, tokens, tokens * keys, predicted)
