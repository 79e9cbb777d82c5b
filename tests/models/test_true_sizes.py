"""Memory at the widths and vocabularies of published models: what a product, a start and an export take at their peaks.

Checkpoints are sparse files of zeros with a few layers, which take neither disk nor time to write.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.memory import peak
from lfpo.config.models import LoraSettings
from lfpo.config.train import LFPOConfig
from lfpo.core.head import CAST_ELEMENTS, logits
from lfpo.models import load_model, save_model
from lfpo.models.families import family_of
from lfpo.models.four_bit import BYTES_PER_WEIGHT
from lfpo.models.layouts import LAYOUTS, with_layers
from lfpo.models.lora import attach
from lfpo.models.tensor_files import FILE_BYTES, tensor_paths
from lfpo.models.weights import checkpoint_shapes, state_shapes
from lfpo.plan.estimate import PHASES, Estimate
from lfpo.plan.model import model_config, model_shape, skeleton
from split_memory import growth

CPU = torch.device("cpu")
CONFIG = with_layers(LAYOUTS["llada-8b"], 1)
VOCABULARY, WIDTH = CONFIG["vocab_size"], CONFIG["d_model"]
MATRIX = WIDTH * CONFIG["mlp_hidden_size"]


def write_zeros(folder: Path, config: dict[str, Any]) -> Path:
    """A bfloat16 checkpoint of zeros in one sparse file."""
    backbone = skeleton(config).backbone
    shapes = checkpoint_shapes(family_of(config, folder), state_shapes(backbone))
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LLaDA-8B with one layer: 1.3 B parameters."""
    return write_zeros(tmp_path_factory.mktemp("wide") / "llada", CONFIG)


@pytest.mark.long
def test_a_product_with_a_bfloat16_head_casts_a_slice_of_it():
    head, hidden = torch.zeros(VOCABULARY, WIDTH, dtype=torch.bfloat16), torch.ones(4, WIDTH).requires_grad_()
    found: list[torch.Tensor] = []
    forward = peak(lambda: found.append(logits(hidden, head, "float32")), CPU)
    backward = peak(lambda: found[0].sum().backward(), CPU)
    room = 3 * 4 * (4 * VOCABULARY) + 4 * CAST_ELEMENTS["cpu"]  # logits and their gradient, and a slice in float32
    assert max(forward, backward) < room < 4 * head.numel() / 25


@pytest.mark.long
def test_bfloat16_weights_stay_in_their_files(wide: Path):
    with growth() as found:
        model = load_model(wide, dtype=torch.bfloat16)
        sum(p.sum() for p in model.parameters())
    assert found[0] < 2**26 < sum(p.nbytes for p in model.parameters()) / 30


def test_a_written_weight_does_not_change_its_file(tmp_path: Path):
    source = write_zeros(tmp_path / "small", {**CONFIG, "d_model": 64, "n_heads": 1, "mlp_hidden_size": 64})
    model = load_model(source, dtype=torch.bfloat16)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1)
    assert not any(p.any() for p in load_model(source, dtype=torch.bfloat16).parameters())
    save_model(model, source)  # over the file that is mapped
    assert all((p == 1).all() for m in (model, load_model(source)) for p in m.parameters())


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_4_bit_start_holds_one_matrix_beside_the_quantised_ones(dtype: torch.dtype, wide: Path):
    pytest.importorskip("bitsandbytes")
    with growth() as found:
        model = load_model(wide, dtype=dtype, four_bit=dtype)
    assert model.backbone.is_loaded_in_4bit
    outside = 4 * 2 * VOCABULARY * WIDTH if dtype == torch.float32 else 0  # embeddings and head stay mapped
    matrices = model_shape(CONFIG)[0].matrices
    working = 4 * 4 * MATRIX  # of bitsandbytes on a CPU, for one matrix
    assert found[0] < outside + BYTES_PER_WEIGHT * matrices + working + 2**26


@pytest.mark.long
def test_an_export_holds_a_file_and_a_sum(wide: Path, tmp_path: Path):
    model = load_model(wide, dtype=torch.bfloat16)
    attach(model, LoraSettings(r=4))
    for _, factor in model.factors():
        factor.data.fill_(0.5)
    with growth() as found:
        save_model(model, tmp_path / "model")
    lora: dict[str, Any] = {"r": 4}
    args = LFPOConfig(output_dir="unused", lora=lora, dtype="bfloat16", task="countdown")
    plan = Estimate(args, CONFIG, device="cpu")
    counted = sum(plan.parts[name][PHASES.index("export")] for name in ("one tensor to write", "file to write"))
    assert found[0] < counted < 2 * FILE_BYTES
    files = {path.stat().st_size for path in tensor_paths(tmp_path / "model").values()}
    assert max(files) < FILE_BYTES + 2 * VOCABULARY * WIDTH


def test_a_plan_holds_no_more_rows_than_there_are(monkeypatch: pytest.MonkeyPatch):
    """SDAR: a cache of four rollouts, not of as many rows as rollout_tokens allow."""
    config = model_config("sdar-1.7b")
    monkeypatch.setattr("lfpo.plan.estimate.activations", lambda *_: (0.0, 0.0))

    def cache(**changes: Any) -> float:
        args = LFPOConfig(output_dir="unused", data_file="unused", **{"prompts_per_iteration": 1, **changes})
        return Estimate(args, config, prompt_length=24).parts["keys and values"][PHASES.index("rollout")]

    per_row = 2 * 8 * 128 * 28 * 2 * 192  # keys and values, heads, width, layers, bytes, 153 columns rounded up
    assert cache(num_generations=4) == pytest.approx(4 * per_row * (1 + 1 / 28))
    assert cache(num_generations=8) == pytest.approx(2 * cache(num_generations=4))
    assert cache(num_generations=4, eval_file="unused", eval_size=16) == pytest.approx(4 * cache(num_generations=4))


@pytest.mark.long
def test_a_plan_reads_the_prompts_of_a_data_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from lfpo.cli.command_line import main

    monkeypatch.setattr("lfpo.plan.estimate.activations", lambda *_: (0.0, 0.0))  # they take long, and change no prompt
    rows = [{"prompt": "a" * n} for n in (3, 24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["plan", "--data_file", str(tmp_path / "rows.jsonl"), "--device", "cpu", "--tflops", "1"]
    arguments += ["--tflops_float32", "1", "--dtype", "bfloat16", "--lora", "{r: 2}"]

    def prompt(*more: str) -> str:
        assert main([*arguments, *more]) == 0
        return capsys.readouterr().out.partition("(prompt ")[2].partition(")")[0]

    assert prompt("--model", "embedded") == "24"
    assert prompt("--model", "embedded", "--prompt_length", "30") == "30"
    assert prompt("--model", "llada-8b", "--gpu_memory", "1000") == "256, assumed; set --prompt_length"
