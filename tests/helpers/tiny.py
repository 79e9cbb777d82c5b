"""Tiny random checkpoints written by hand in each family's published layout (never through lfpo's own saver), and a
forward pass in plain torch that reads the checkpoint's own keys.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch.nn import functional as F

D, LAYERS, HEADS, MLP, MAX_LENGTH = 32, 2, 4, 48, 512

Weights = dict[str, torch.Tensor]


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE vocabularies, by byte value."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def _published(name: str) -> dict[str, Any]:
    """A family's config.json as published, at a tiny size."""
    config: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "tiny" / f"{name}.json").read_text())
    return config


def _randn(generator: torch.Generator, *shape: int, std: float = 0.2) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * std


LLADA_SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|eot_id|>", "<|mdm_mask|>")
LLADA_VOCAB = 256 + len(LLADA_SPECIAL)
LLADA_CONFIG = _published("llada")  # embeddings padded by 4 rows, as published


def write_llada(folder: Path, *, shards: int = 1, special: tuple[str, ...] = LLADA_SPECIAL, **changes: Any) -> Path:
    """A LLaDA checkpoint. changes: fields of config.json. special: added tokens, from id 256 on."""
    folder.mkdir(parents=True)
    config = {**LLADA_CONFIG, **changes}
    _dump(folder / "config.json", config)
    g = torch.Generator().manual_seed(1)
    vocab = config["embedding_size"]
    kv = D * config["n_kv_heads"] // HEADS
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (D,), "ff_norm": (D,), "q_proj": (D, D), "k_proj": (kv, D)}
    shapes |= {"v_proj": (kv, D), "attn_out": (D, D), "ff_proj": (MLP, D), "up_proj": (MLP, D), "ff_out": (D, MLP)}
    weights: Weights = {"model.transformer.wte.weight": _randn(g, vocab, D, std=1.0)}
    for n in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"model.transformer.blocks.{n}.{name}.weight"] = ("norm" in name) + _randn(g, *shape)
    weights["model.transformer.ln_f.weight"] = 1 + _randn(g, D)
    if not config["weight_tying"]:
        weights["model.transformer.ff_out.weight"] = _randn(g, vocab, D)
    save_weights(folder, weights, shards)
    write_tokenizer(folder, special, bos_token="<|startoftext|>", eos_token="<|endoftext|>")
    return folder


FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def byte_level(vocab: dict[str, int]) -> Tokenizer:
    """A byte-level tokenizer without merges."""
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return tokenizer


def write_tokenizer(folder: Path, special: tuple[str, ...], *, characters: int = 256, **named: str) -> None:
    """A tokenizer of the first `characters` bytes, then the `special` tokens. named: bos_token and eos_token."""
    tokenizer = byte_level({c: b for b, c in enumerate(byte_alphabet()[:characters])})
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "added_tokens_decoder": {str(characters + i): {"content": t, **FLAGS} for i, t in enumerate(special)},
        "clean_up_tokenization_spaces": False,
        "pad_token": named["eos_token"],
        **named,
        "mask_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _dump(folder / "tokenizer_config.json", settings)


DREAM_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>")
DREAM_VOCAB = 258 + len(DREAM_SPECIAL)
DREAM_KV_HEADS = 2
DREAM_CONFIG = _published("dream")
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
# Imported, it leaves a file behind: a test looks for that file.
REMOTE_TOKENIZER = """import pathlib
pathlib.Path({marker!r}).write_text("imported")
class DreamTokenizer:
    pass
"""


def write_dream(folder: Path, **changes: Any) -> Path:
    """A Dream checkpoint with grouped-query attention and biased q, k, v. changes: fields of config.json."""
    folder.mkdir(parents=True)
    config = {**DREAM_CONFIG, **changes}
    _dump(folder / "config.json", config)
    g = torch.Generator().manual_seed(2)
    vocab, kv = config["vocab_size"], D * DREAM_KV_HEADS // HEADS
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,)}
    shapes |= {"self_attn.q_proj.weight": (D, D), "self_attn.q_proj.bias": (D,), "self_attn.k_proj.weight": (kv, D)}
    shapes |= {"self_attn.k_proj.bias": (kv,), "self_attn.v_proj.weight": (kv, D), "self_attn.v_proj.bias": (kv,)}
    shapes |= {"self_attn.o_proj.weight": (D, D), "mlp.gate_proj.weight": (MLP, D), "mlp.up_proj.weight": (MLP, D)}
    shapes |= {"mlp.down_proj.weight": (D, MLP)}
    weights: Weights = {"model.embed_tokens.weight": _randn(g, vocab, D, std=1.0)}
    for n in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"model.layers.{n}.{name}"] = ("norm" in name) + _randn(g, *shape)
    weights["model.norm.weight"] = 1 + _randn(g, D)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = _randn(g, vocab, D)
    save_weights(folder, weights)
    alphabet = byte_alphabet()
    _dump(folder / "vocab.json", {**{c: b for b, c in enumerate(alphabet)}, "ab": 256, "Ġab": 257})
    (folder / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n", encoding="utf-8")
    settings = {
        "added_tokens_decoder": {str(258 + i): {"content": t, **FLAGS} for i, t in enumerate(DREAM_SPECIAL)},
        "additional_special_tokens": ["<|beginoftext|>", "<|mask|>"],
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "bos_token": "<|beginoftext|>",
        "chat_template": CHATML,
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "DreamTokenizer",
    }
    _dump(folder / "tokenizer_config.json", settings)
    marker = str(folder / "IMPORTED")
    (folder / "tokenization_dream.py").write_text(REMOTE_TOKENIZER.format(marker=marker), encoding="utf-8")
    return folder


WRITERS = {"llada": write_llada, "dream": write_dream}


def with_chat_template(folder: Path) -> Path:
    """The same checkpoint, made to take conversations."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "chat_template": CHATML}))
    return folder


def save_weights(folder: Path, weights: Weights, shards: int = 1) -> None:
    """One model.safetensors, or several with an index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    where = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: weights[n] for n in names if where[n] == file}, folder / file, metadata={"format": "pt"})
    total = sum(w.numel() * w.element_size() for w in weights.values())
    _dump(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def read_weights(folder: Path) -> Weights:
    """All tensors of a checkpoint folder under their own names."""
    weights: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def rotate(x_BHLE: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding with pairs (i, i + E/2), cos and sin in float32."""
    size, length = x_BHLE.shape[-1], x_BHLE.shape[-2]
    frequency = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    cos, sin = (torch.cat([f(angle)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    first, second = x_BHLE.chunk(2, dim=-1)
    return x_BHLE * cos + torch.cat([-second, first], dim=-1) * sin


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def reference_logits(folder: Path, ids_BL: torch.Tensor) -> torch.Tensor:
    """Float32 logits [B, L, V] as the network gives them (Dream's not shifted), from the checkpoint's own keys."""
    config = json.loads((folder / "config.json").read_text())
    w = read_weights(folder)
    if config["model_type"] == "llada":
        layer = "model.transformer.blocks.{}"
        names = ["attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out"]
        ends = ["model.transformer.wte", "model.transformer.ln_f", "model.transformer.ff_out"]
        heads, kv_heads = config["n_heads"], config["n_kv_heads"]
    else:
        layer = "model.layers.{}"
        attention = [f"self_attn.{x}_proj" for x in "qkvo"]
        mlp = [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
        names = ["input_layernorm", *attention, "post_attention_layernorm", *mlp]
        ends = ["model.embed_tokens", "model.norm", "lm_head"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    eps, theta = config["rms_norm_eps"], config["rope_theta"]
    embed, final_norm, head = ends
    batch, length = ids_BL.shape

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ w[f"{name}.weight"].T
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    def split(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.view(batch, length, n, -1).transpose(1, 2)

    x = w[f"{embed}.weight"][ids_BL]
    for n in range(LAYERS):
        norm1, q, k, v, out, norm2, gate, up, down = (f"{layer.format(n)}.{name}" for name in names)
        y = _rms_norm(x, w[f"{norm1}.weight"], eps)
        query, key, value = split(linear(y, q), heads), split(linear(y, k), kv_heads), split(linear(y, v), kv_heads)
        query, key = rotate(query, theta), rotate(key, theta)
        key, value = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (key, value))
        weight = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)  # every pair: no causal mask
        x = x + linear((weight @ value).transpose(1, 2).reshape(batch, length, -1), out)
        y = _rms_norm(x, w[f"{norm2}.weight"], eps)
        x = x + linear(F.silu(linear(y, gate)) * linear(y, up), down)
    x = _rms_norm(x, w[f"{final_norm}.weight"], eps)
    return x @ w.get(f"{head}.weight", w[f"{embed}.weight"]).T


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Token ids below 256 (ordinary bytes in both families)."""
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


def optimiser_settings(learning_rate: float, weight_decay: float, beta2: float, optim: str = "adamw_torch") -> Any:
    """What build_adamw reads of a configuration."""
    return SimpleNamespace(
        optim=optim, learning_rate=learning_rate, weight_decay=weight_decay, adam_beta1=0.9, adam_beta2=beta2
    )
