"""A model of LLaDA's layout that a CPU runs in moments, for the checks' small form."""

from typing import Any

from lfpo.models.layouts import LAYOUTS

SMALL: dict[str, Any] = {**LAYOUTS["llada-8b"], "d_model": 128, "n_layers": 4, "n_heads": 4, "mlp_hidden_size": 320}
SMALL |= {"vocab_size": 1024, "mask_token_id": 1023, "eos_token_id": 1022, "pad_token_id": 1022}
