"""The model families: how each one's config.json and key names map onto a class of transformers.

Logits at position i predict token i, and attention is full, unless a family's comment says otherwise. Each function
raises KeyError for a missing field, and UserError for a feature that the class of transformers has not and that the
names of the checkpoint's tensors do not tell.
"""

from dataclasses import replace

from transformers import Glm4MoeConfig, LlamaConfig, Ministral3Config, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers import __version__ as VERSION

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.plugins import resolve
from lfpo.models.ar_families import A2D, CONVERTIBLE, EXPORTED, STACKED_EXPERTS
from lfpo.models.config_checks import expect
from lfpo.models.family import Family
from lfpo.models.modernbert import MODERNBERT

ATTENTION = "model.layers.N.self_attn"
# Fields that config.json and transformers' configurations call by the same names, in every family but LLaDA.
SHARED = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"]
SHARED += ["max_position_embeddings", "rope_theta", "rms_norm_eps"]


def with_rope_theta(config: Json) -> Json:
    """config.json, with rope_theta and partial_rotary_factor taken from `rope_parameters`, where transformers 5 writes
    them. Raises UserError for scaled rotary embeddings there."""
    rope = config.get("rope_parameters") or {}
    if (kind := rope.get("rope_type") or rope.get("type") or "default") != "default":
        raise UserError(f"config.json: rope_parameters of type {kind!r} are not supported")
    return {**{name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}, **config}


def shared_fields(config: Json, *extra: str) -> Json:
    """The fields of SHARED, and of `extra`, as config.json has them."""
    config = with_rope_theta(config)
    # Classes have a default for what is null, and it may be another than that of the published class.
    if null := [name for name in (*SHARED, *extra) if config[name] is None]:
        raise UserError(f"config.json: {null[0]} must not be null")
    return {
        **{name: config[name] for name in (*SHARED, *extra)},
        "tie_word_embeddings": bool(config.get("tie_word_embeddings")),
        "pad_token_id": None,  # torch never trains an embedding's padding row, and pad is EOS here
    }


def llada_config(config: Json) -> LlamaConfig:
    """`embedding_size` (padded rows), when set, replaces `vocab_size`."""
    config = with_rope_theta(config)
    expect(
        config,
        activation_type=("silu", None),
        alibi=(False, None),
        clip_qkv=(None,),
        input_emb_norm=(False, None),
        layer_norm_type=("rms", None),
        rope=(True, None),
        rope_scaling=(None,),
        scale_logits=(False, None),
    )
    return LlamaConfig(
        hidden_size=config["d_model"],
        num_hidden_layers=config["n_layers"],
        num_attention_heads=config["n_heads"],
        num_key_value_heads=config.get("n_kv_heads") or config["n_heads"],
        intermediate_size=config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        vocab_size=config.get("embedding_size") or config["vocab_size"],
        max_position_embeddings=config["max_sequence_length"],
        rope_theta=config["rope_theta"],
        rms_norm_eps=config["rms_norm_eps"],
        attention_bias=bool(config.get("include_qkv_bias") or config.get("include_bias")),
        tie_word_embeddings=bool(config.get("weight_tying")),
        pad_token_id=None,
    )


# Logits equal those of the published modelling code exactly: in float32, and in bfloat16 with the rotary embedding in
# float32 (`rope_full_precision`), as in `lfpo.core.attention`.
LLADA = Family(
    name="llada",
    model_types=("llada",),
    architecture="LlamaForCausalLM",
    hf_config=llada_config,
    rename=(
        ("model.transformer.wte", "model.embed_tokens"),
        ("model.transformer.ln_f", "model.norm"),
        ("model.transformer.ff_out", "lm_head"),
        ("model.transformer.blocks.N.attn_norm", "model.layers.N.input_layernorm"),
        ("model.transformer.blocks.N.ff_norm", "model.layers.N.post_attention_layernorm"),
        ("model.transformer.blocks.N.q_proj", f"{ATTENTION}.q_proj"),
        ("model.transformer.blocks.N.k_proj", f"{ATTENTION}.k_proj"),
        ("model.transformer.blocks.N.v_proj", f"{ATTENTION}.v_proj"),
        ("model.transformer.blocks.N.attn_out", f"{ATTENTION}.o_proj"),
        ("model.transformer.blocks.N.ff_proj", "model.layers.N.mlp.gate_proj"),
        ("model.transformer.blocks.N.up_proj", "model.layers.N.mlp.up_proj"),
        ("model.transformer.blocks.N.ff_out", "model.layers.N.mlp.down_proj"),
    ),
    mask_token="<|mdm_mask|>",
    block_key="block_length",
)


def llada_moe_config(config: Json) -> Qwen3MoeConfig:
    """The published class never normalises the weights of the chosen experts, whatever its configuration says."""
    expect(
        config,
        clip_qkv=(None,),
        moe_router_score_function=("softmax", None),
        router_num_group=(None,),
        routed_scaling_factor=(1, None),
        partial_rotary_factor=(1, None),
        rope_scaling=(None,),
        hidden_act=("silu", None),
    )
    layers = config["num_hidden_layers"]
    sparse = config.get("moe_layer_freq") or [1] * layers
    return Qwen3MoeConfig(
        **shared_fields(config, "num_experts", "num_experts_per_tok"),
        head_dim=config["hidden_size"] // config["num_attention_heads"],
        intermediate_size=config["dense_intermediate_size"],
        moe_intermediate_size=config["expert_intermediate_size"],
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[i for i in range(layers) if not sparse[i]],
        attention_bias=bool(config.get("attention_bias")),
    )


LLADA_MOE = Family(
    name="llada_moe",
    model_types=("llada", "lladamoe"),  # the published checkpoints say "llada", as those without experts
    architecture="Qwen3MoeForCausalLM",
    hf_config=llada_moe_config,
    stacked=STACKED_EXPERTS,
)


def llada2_config(config: Json) -> Glm4MoeConfig:
    """Raises UserError also for a transformers whose Glm4Moe chooses other experts: before 5.6 it gives the experts of
    groups that were not chosen a score of 0, which beats a negative score."""
    if tuple(int(part) for part in VERSION.split(".")[:2]) < (5, 6):
        raise UserError(
            f"transformers {VERSION} chooses other experts than LLaDA2 does; install transformers 5.6 or later"
        )
    expect(
        config,
        score_function=("sigmoid",),
        use_rmsnorm=(True, None),
        norm_head=(False, None),
        norm_softmax=(False, None),
        rope_scaling=(None,),
        hidden_act=("silu", None),
    )
    same = ["head_dim", "intermediate_size", "moe_intermediate_size", "first_k_dense_replace", "num_experts_per_tok"]
    same += ["n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "use_qk_norm", "partial_rotary_factor"]
    return Glm4MoeConfig(
        **shared_fields(config, *same),
        n_routed_experts=config["num_experts"],
        n_shared_experts=config["num_shared_experts"],
        attention_bias=bool(config.get("use_qkv_bias")),
    )


# LLaDA2.0 and LLaDA2.1 attend block by block. The router adds a bias to the experts' scores to choose them, and
# combines their outputs by the scores without it; the bias is a buffer, which training leaves alone. config.json names
# neither the mask token nor EOS: the tokenizer does.
LLADA2 = Family(
    name="llada2",
    model_types=("llada2_moe",),
    architecture="Glm4MoeForCausalLM",
    hf_config=llada2_config,
    rename=(
        ("model.word_embeddings", "model.embed_tokens"),
        ("model.layers.N.attention.dense", f"{ATTENTION}.o_proj"),
        ("model.layers.N.attention.query_layernorm", f"{ATTENTION}.q_norm"),
        ("model.layers.N.attention.key_layernorm", f"{ATTENTION}.k_norm"),
        ("model.layers.N.mlp.gate.expert_bias", "model.layers.N.mlp.gate.e_score_correction_bias"),
    ),
    fused=(
        (
            "model.layers.N.attention.query_key_value",
            (f"{ATTENTION}.q_proj", f"{ATTENTION}.k_proj", f"{ATTENTION}.v_proj"),
        ),
    ),
    stacked=STACKED_EXPERTS,
    block_key="block_length",
    block_default=32,
)


def dream_config(config: Json) -> Qwen2Config:
    expect(config, hidden_act=("silu", None), rope_scaling=(None,))
    return Qwen2Config(
        **shared_fields({"num_key_value_heads": config["num_attention_heads"], **config}, "intermediate_size")
    )


# Dream and DiffuCoder: the logits are shifted. The published tokenizer class is remote code over Qwen2's vocabulary
# files, which transformers' own Qwen2 tokenizer reads. DiffuCoder fills what is left behind an answer with a token of
# its own, not with the <|endoftext|> of config.json.
DREAM = Family(
    name="dream",
    model_types=("Dream", "dream", "DiffuCoder"),
    architecture="Qwen2ForCausalLM",
    hf_config=dream_config,
    shift=True,
    tokenizer_class="Qwen2TokenizerFast",
    padding="<|dlm_pad|>",
)


def _sdar_fields(config: Json) -> Json:
    """What SDAR with and without experts has."""
    expect(config, hidden_act=("silu", None), rope_scaling=(None,))
    return {
        **shared_fields(config, "head_dim", "intermediate_size"),
        "attention_bias": bool(config.get("attention_bias")),
    }


def sdar_config(config: Json) -> Qwen3Config:
    return Qwen3Config(**_sdar_fields(config))


def sdar_moe_config(config: Json) -> Qwen3MoeConfig:
    same = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
    return Qwen3MoeConfig(
        **_sdar_fields(config),
        **{name: config[name] for name in same},
        decoder_sparse_step=config.get("decoder_sparse_step", 1),
        mlp_only_layers=config.get("mlp_only_layers") or [],
    )


# SDAR and TraDo attend block by block, in blocks of 4 unless the name has another number (SDAR-8B-Chat-b32);
# config.json of those with experts does not say so. The published RMSNorm multiplies by its weight before it rounds,
# Qwen3's afterwards: the same in float32, not in bfloat16.
SDAR = Family(
    name="sdar",
    model_types=("sdar",),
    architecture="Qwen3ForCausalLM",
    hf_config=sdar_config,
    mask_token="<|MASK|>",
    tokenizer_class="Qwen2TokenizerFast",
    turn_end="<|im_end|>",
    block_key="block_size",
    block_default=4,
    named_block=(r"SDAR-.*-b(\d+)(?!\d)", None),
)
SDAR_MOE = replace(
    SDAR,
    name="sdar_moe",
    model_types=("sdar_moe",),
    architecture="Qwen3MoeForCausalLM",
    hf_config=sdar_moe_config,
    stacked=STACKED_EXPERTS,
)


def illada_config(config: Json) -> LlamaConfig:
    """iLLaDA (arXiv 2606.25331). Raises UserError also for what the published class refuses."""
    scaling = config.get("rope_scaling") or {}
    plain = scaling.get("rope_type", scaling.get("type")) in (None, "default") and scaling.get("factor") in (None, 1.0)
    expect(
        {**config, "rope_scaling": None if plain else scaling},
        hidden_act=("silu", None),
        layer_norm_eps=(None,),  # with it the class has LayerNorm in place of RMSNorm
        rope_scaling=(None,),
    )
    return LlamaConfig(
        **shared_fields(config, "intermediate_size"),
        attention_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
    )


# Known from the published class, of which other projects hold copies; config.json and the weights were not seen here.
# That class rounds cos and sin of the rotary embedding to the model's dtype; here they are float32.
ILLADA = Family(
    name="illada",
    model_types=("illada",),
    architecture="LlamaForCausalLM",
    hf_config=illada_config,
    mask_token="<[MASK]>",  # id 5; neither config.json nor the tokenizer's mask_token names it
)


def nemotron_diffusion_config(config: Json) -> Ministral3Config:
    expect(
        config,
        rope_scaling=(None,),
        hidden_act=("silu", None),
        sliding_window=(None,),
    )
    rope = config["rope_parameters"]
    expect(rope, partial_rotary_factor=(1, None))
    rope["rope_type"]  # the class has a default: KeyError
    unscaled = {"rope_theta": rope["rope_theta"], **config, "rope_parameters": None}
    fields = shared_fields(unscaled, "head_dim", "intermediate_size")
    del fields["rope_theta"]
    return Ministral3Config(**fields, rope_parameters=dict(rope))


# Nemotron-Labs-Diffusion denoises blocks over a causal context: logits of the context are shifted, those of a block are
# not. One set of weights, so `encoder` is the decoder stack of a Ministral 3 and `diffusion_head` serves both.
NEMOTRON_DIFFUSION = Family(
    name="nemotron_labs_diffusion",
    model_types=("nemotron_labs_diffusion",),
    architecture="Ministral3ForCausalLM",
    hf_config=nemotron_diffusion_config,
    rename=(("encoder", "model"), ("diffusion_head", "lm_head")),
    turn_end="<|im_end|>",
    block_key="block_size",
    block_default=32,
    causal_context=True,
)


_PUBLISHED = (LLADA, LLADA_MOE, LLADA2, DREAM, SDAR, SDAR_MOE, ILLADA, NEMOTRON_DIFFUSION, MODERNBERT)
FAMILIES = {family.name: family for family in (*_PUBLISHED, *A2D, *EXPORTED)}
# Families of lfpo.contrib by their model_type: where each is, loaded when a config.json names it.
CONTRIB = {"diffusion_gemma": "lfpo.contrib.canvases.family:DIFFUSION_GEMMA"}


def family_of(config: Json, where: object) -> Family:
    """The family that a config.json's `model_type` selects; of two families with one model_type that with experts, if
    there are any. Its `shift` is what config.json says. Raises UserError, beginning with `where`, for another."""
    model_type = config.get("model_type")
    families = [family for family in FAMILIES.values() if model_type in family.model_types]
    if model_type in CONTRIB:
        families = [resolve(CONTRIB[model_type], {}, kind="model family")]
    if len(families) > 1:
        experts = config.get("num_experts") is not None or "moe" in str(config.get("architectures")).lower()
        families = [family for family in families if bool(family.stacked) == experts]
    if not families:
        known = sorted({t for family in FAMILIES.values() for t in family.model_types} | CONTRIB.keys())
        raise UserError(f"{where}: model_type {model_type!r} is not a known family; known: {', '.join(known)}")
    (family,) = families
    if missing := [name for name in family.marker if name not in config]:
        can = "make one of it: lfpo convert SOURCE FOLDER" if model_type in CONVERTIBLE else "it cannot be converted"
        raise UserError(
            f"{where}: a plain autoregressive model (model_type {model_type!r} without {missing[0]!r}), and lfpo needs "
            f"a masked diffusion model; {can}"
        )
    if family.shift_key is None:
        return family
    return replace(family, shift=bool(config.get(family.shift_key, 0)))
