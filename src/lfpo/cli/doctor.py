"""`lfpo doctor`: show the versions and devices of this machine and check that the package works."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil

import psutil  # type: ignore[import-untyped]
import torch
from rich.table import Column, Table

from lfpo.base.terminal import Terminal, fitted
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.engine import Request
from lfpo.models import FAMILIES, load_model, load_tokenizer
from lfpo.models.loading import EMBEDDED
from lfpo.prompts.tasks import get_task
from lfpo.rollout.sampling import as_it_is
from lfpo.sandbox import available_rungs

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "datasets", "peft", "math_verify")
OPTIONAL = {"matplotlib": "figures", "bitsandbytes": "8 and 4 bits", "triton": "kernels on GPUs"}


def run_doctor() -> None:
    """Print a table of what was found. Raises UserError if the embedded model does not load and sample."""
    table = Table("", Column(overflow="fold"), show_header=False, box=None, padding=(0, 2))
    table.add_row("python", platform.python_version())
    for name in (*PACKAGES, *OPTIONAL):
        present = importlib.util.find_spec(name) is not None
        version = importlib.metadata.version(name.replace("_", "-")) if present else "not installed"
        table.add_row(f"{name} ({OPTIONAL[name]})" if name in OPTIONAL else name, version)
    table.add_row("CPU", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    table.add_row("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            gib = torch.cuda.get_device_properties(i).total_memory / 2**30
            table.add_row(f"GPU {i}", f"{torch.cuda.get_device_name(i)}, {gib:.0f} GiB")
    else:
        table.add_row("GPU", "none; everything runs on the CPU, in float32")
    if torch.backends.mps.is_available():
        table.add_row("Apple GPU (MPS)", "not used: sampling draws in float64, which MPS lacks; lfpo runs on the CPU")
    table.add_row("disk here", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB free")
    for rung in available_rungs():
        table.add_row(f"sandbox {rung.name}", f"{'yes' if rung.available else 'no'}: {rung.reason}")
        if rung.not_stopped:
            table.add_row("", f"does not stop: {rung.not_stopped}")
    table.add_row("model families", ", ".join(FAMILIES))
    table.add_row("embedded model", _try_embedded())
    console = Terminal()
    console.print(fitted(table, console))


def _try_embedded() -> str:
    task = get_task("sudoku")
    model, tokenizer = load_model("embedded"), load_tokenizer("embedded")
    ids = tokenizer.encode(task.row("test", 0)["prompt"], add_special_tokens=False)
    trajectory = as_it_is(model).sample(Request([ids], [0], SamplerConfig().for_length(task.gen_length)))
    if bool((trajectory.reveal_step < 0).any()):
        raise UserError(f"{EMBEDDED}: the embedded model left positions of a completion masked; reinstall lfpo")
    return f"{sum(p.numel() for p in model.parameters()):,} parameters, loads and samples"
