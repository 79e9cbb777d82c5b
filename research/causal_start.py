"""Writes the embedded model in the layout of Nemotron-Labs-Diffusion: the start of `lfpo sft embedded-causal`.

    python -m research.causal_start runs/embedded-causal-start

Its layers are those of a Llama, as Nemotron's are within the first `original_max_position_embeddings` tokens. So the
weights stay as they are, and only what a token attends to changes, which the recipe trains.
"""

import argparse
from pathlib import Path

from lfpo.models import init_model, load_model, save_model


def write_start(folder: Path) -> None:
    """Write config.json, weights and tokenizer into `folder`."""
    model = load_model("embedded")
    llama = model.backbone.config
    length = llama.max_position_embeddings
    config = {
        "model_type": "nemotron_labs_diffusion",
        "hidden_size": llama.hidden_size,
        "intermediate_size": llama.intermediate_size,
        "num_hidden_layers": llama.num_hidden_layers,
        "num_attention_heads": llama.num_attention_heads,
        "num_key_value_heads": llama.num_key_value_heads,
        "head_dim": llama.hidden_size // llama.num_attention_heads,
        "vocab_size": llama.vocab_size,
        "max_position_embeddings": length,
        "rms_norm_eps": llama.rms_norm_eps,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": llama.rope_parameters["rope_theta"],
            "factor": 1.0,
            "original_max_position_embeddings": length,
            "llama_4_scaling_beta": 0.1,
        },
        "tie_word_embeddings": False,
        "block_size": 8,
        "mask_token_id": model.mask_id,
        "eos_token_id": model.eos_id,
        "pad_token_id": model.pad_id,
    }
    causal = init_model(config, seed=0)
    causal.backbone.load_state_dict(model.backbone.state_dict())
    causal.source = model.source  # of the tokenizer's files
    save_model(causal, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=write_start.__doc__)
    parser.add_argument("folder", type=Path)
    write_start(parser.parse_args().folder)
