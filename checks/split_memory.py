"""Memory and traffic of one rank with weights split by FSDP: in a pass through many layers, and at the start of a run.

    python checks/split_memory.py pass                     # 4, 8, 16 layers of width 1,024 on 2 ranks
    python checks/split_memory.py traffic
    python checks/split_memory.py rollout
    python checks/split_memory.py start --width 4096 --mlp 12288 --vocabulary 126464 --dtype bfloat16
    python checks/split_memory.py save --layers 1 --width 4096 --mlp 12288 --vocabulary 126464

Ranks are processes on the CPU over gloo. What is counted is a process's anonymous memory (not pages of files that are
mapped into it), read every 2 ms, above that before. `pass`: forward and backward of 8 tokens, so that little else but
weights and gradients is held, in units of one layer's gradient; the median of three passes, because a rank that has to
wait for a core, or for the other rank, now and then shows more. `start`: a checkpoint with random weights is read, and
the reference made from it. `traffic`: the bytes that FSDP gathers and sums in a pass under bfloat16 autocast, where it
gathers the layers' matrices in float32 and in bfloat16; without the head, which is gathered once in float32.
`save`: the model is written.
`rollout`: peak and bytes gathered of 16 forwards of 8 tokens, with the whole model gathered once or each layer for
every forward (`rollout_gather`).
"""

import argparse
import contextlib
import ctypes
import json
import statistics
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lfpo.base import distributed
from lfpo.core import collectives
from lfpo.core.predictions import one_pass
from lfpo.models import init_model, load_model, save_model
from lfpo.models.fsdp import frozen_copy, gathered, gathered_by_layer
from lfpo.models.layouts import LAYOUTS
from processes import run_ranks

PASSES, FORWARDS = 3, 16


def config(layers: int, width: int, mlp: int, vocabulary: int) -> dict[str, Any]:
    """A LLaDA of this size."""
    special = {"mask_token_id": vocabulary - 1, "eos_token_id": vocabulary - 2, "pad_token_id": vocabulary - 2}
    sizes = {"d_model": width, "n_layers": layers, "mlp_hidden_size": mlp, "vocab_size": vocabulary}
    return {**LAYOUTS["llada-8b"], **sizes, "n_heads": max(1, width // 128), "embedding_size": vocabulary, **special}


def one_backward(folder: Path, output: Path) -> None:
    """Write the peak of a pass and the size of a layer, in bytes, of the rank with the larger peak."""
    distributed.start()
    model = load_model(folder, mesh=distributed.mesh()).train()

    def run() -> None:
        with one_pass([model]):
            hidden = model.hidden(torch.arange(8)[None])
            torch.nn.functional.linear(hidden, model.head_weight).logsumexp(-1).sum().backward()

    run()  # the shards' gradients exist from here on
    peaks = []
    for _ in range(PASSES):
        with added_memory() as found:
            run()
        peaks.append(found[0])
    layer = 4 * sum(p.numel() for p in model.backbone.model.layers[0].parameters())
    _write(output, {"peak": int(statistics.median(peaks)), "layer": layer})


def traffic(folder: Path, output: Path) -> None:
    """Write the bytes that a pass gathers and sums, with layers' matrices in float32 and in bfloat16, and those of all
    weights in float32."""
    distributed.start()
    found: dict[str, int] = {}
    for name, cast in (("float32", False), ("bfloat16", True)):
        model = load_model(folder, mesh=distributed.mesh(), cast=cast).train()
        model.autocast = True
        with gathered_bytes() as moved, one_pass([model]):
            hidden = model.hidden(torch.arange(8)[None])
            torch.nn.functional.linear(hidden, model.head_weight).logsumexp(-1).sum().backward()
        found |= {f"gathered in {name}": moved[0], f"summed in {name}": moved[1]}
    _write(output, found | {"weights": 4 * sum(p.numel() for p in model.parameters())})


@contextlib.contextmanager
def gathered_bytes() -> Iterator[list[int]]:
    """A list of the bytes that collectives of the block gather, and that they sum, on this rank."""
    found = [0, 0]

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for which, name in enumerate(("c10d::_allgather_base_", "c10d::_reduce_scatter_base_")):
                if func.name().startswith(name):
                    whole = args[which]  # the output of the first, the input of the second
                    found[which] += whole.numel() * whole.element_size()
            result = func(*args, **(kwargs or {}))
            if func.name().startswith("_c10d_functional::all_gather_into_tensor"):
                found[0] += result.numel() * result.element_size()
            return result

    with Count():
        yield found


def rollouts(folder: Path, output: Path) -> None:
    """Write peak and bytes gathered of FORWARDS forwards without gradients, by what is gathered, and the bytes of all
    weights that are split. One rank has one forward less."""
    distributed.start()
    model = load_model(folder, mesh=distributed.mesh()).requires_grad_(False)
    found = {"split weights": sum(p.numel() * p.element_size() for p in model.parameters() if p.ndim > 1)}
    for name in ("model", "layer"):
        ready = gathered(model, cast=False) if name == "model" else gathered_by_layer(model)
        with added_memory() as peak, gathered_bytes() as moved, torch.no_grad(), ready as policy:
            for _ in range(FORWARDS - collectives.rank()):
                policy.head(policy.hidden(torch.arange(8)[None]))
        found |= {f"{name}: peak": peak[0], f"{name}: bytes gathered": moved[0]}
    _write(output, found)


def start(folder: Path, output: Path) -> None:
    """Write the peak of the start and the memory held after it, in bytes, of the rank with the larger peak."""
    distributed.start()
    mesh, before = distributed.mesh(), _anonymous()
    with added_memory() as found:
        model = load_model(folder, mesh=mesh)
        reference = frozen_copy(model)
    _write(output, {"peak": found[0], "held": _anonymous() - before})
    del model, reference


def save(folder: Path, output: Path) -> None:
    """Write the peak of writing the model, and the size of its largest tensor, in bytes."""
    distributed.start()
    model = load_model(folder, mesh=distributed.mesh())
    with added_memory() as found:
        save_model(model, folder / "saved")
    _write(output, {"peak": found[0], "largest": max(p.numel() * p.element_size() for p in model.parameters())})


@contextlib.contextmanager
def added_memory() -> Iterator[list[int]]:
    """A list that holds, after the block, the most bytes that the block added to this process's anonymous memory."""
    ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD: freed tensors go back to the system at once
    with growth() as found:
        yield found


@contextlib.contextmanager
def growth() -> Iterator[list[int]]:
    """As `added_memory`, exact for tensors above 32 MiB only: freed smaller ones may leave pages to this process."""
    before, ended, found = _anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(0.002):
            found[0] = max(found[0], _anonymous() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
        found[0] = max(found[0], _anonymous() - before)
    finally:
        ended.set()
        watcher.join()


def _anonymous() -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon:"))
    return 1024 * int(line.split()[1])


def _write(output: Path, values: dict[str, int]) -> None:
    of_ranks = collectives.gather(values)
    if collectives.rank() == 0:
        output.write_text(json.dumps({name: max(v[name] for v in of_ranks) for name in values}))
    distributed.stop()


def measured(work: Any, ranks: int, folder: Path) -> dict[str, int]:
    """What `work` writes in a group of ranks."""
    output = folder / "output.json"
    for rank in run_ranks(ranks, work, folder, output):
        if rank.returncode:
            raise RuntimeError(rank.stderr)
    found: dict[str, int] = json.loads(output.read_text())
    return found


def write_model(folder: Path, dtype: str, **sizes: int) -> int:
    """A checkpoint with random weights; returns the bytes of the matrices of a layer."""
    model = init_model(config(**sizes), seed=0, dtype=getattr(torch, dtype))
    save_model(model, folder)
    return sum(p.numel() * p.element_size() for p in model.backbone.model.layers[0].parameters() if p.ndim > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pass", "traffic", "start", "save", "rollout"))
    parser.add_argument("--layers", type=int, nargs="+")
    for name, default in (("width", 1024), ("mlp", 3072), ("vocabulary", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--dtype", default="float32", help="of the checkpoint")
    given = parser.parse_args()
    work = {"pass": one_backward, "traffic": traffic, "start": start, "save": save, "rollout": rollouts}[given.what]
    for layers in given.layers or ([2] if work is start else [4, 8, 16]):
        with tempfile.TemporaryDirectory() as name:
            sizes = {"layers": layers, "width": given.width, "mlp": given.mlp, "vocabulary": given.vocabulary}
            write_model(Path(name), given.dtype, **sizes)
            for ranks in given.ranks or ([1, 2, 4] if work is start else [2]):
                found = measured(work, ranks, Path(name))
                if work is one_backward:
                    shown = f"peak of a pass {found['peak'] / found['layer']:.2f} layers' gradients"
                elif work in (traffic, rollouts):
                    all_weights = found.pop("weights" if work is traffic else "split weights")
                    shown = (
                        ", ".join(f"{what} {size / all_weights:.2f}" for what, size in found.items()) + " of weights"
                    )
                elif work is save:
                    shown = f"peak {found['peak'] / 2**30:.2f} GiB, largest tensor {found['largest'] / 2**30:.2f} GiB"
                else:
                    shown = f"peak {found['peak'] / 2**30:.2f} GiB, held {found['held'] / 2**30:.2f} GiB a rank"
                print(f"{layers} layers, {ranks} ranks: {shown}", flush=True)


if __name__ == "__main__":
    main()
