"""`lfpo export` and `lfpo push`: exported weights in a process that cannot import lfpo, and a stand-in for the hub."""

import base64
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file

from lfpo import LFPOTrainer
from lfpo.cli import main
from lfpo.config.build import load_yaml, to_dict, yaml_text
from lfpo.config.errors import UserError
from lfpo.config.export import PushConfig
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.model import CURRENT
from lfpo.models import MaskedDiffusionLM, init_model, load_model, load_tokenizer, save_model
from lfpo.models.lora import attach
from lfpo.models.tensor_files import save_tensors
from lfpo.models.weights import saved_weights
from lfpo.rollout.sampling import rollout
from lfpo.runs.card import SAMPLER, completion_length
from lfpo.runs.directory import Run
from lfpo.train.checkpoint import save_checkpoint
from lfpo.train.export import run_push
from lfpo.train.preflight import check_disk
from small_runs import choice_config
from tiny import LLADA_CONFIG, random_ids, read_weights, reference_logits, write_dream, write_llada
from written_runs import write_run

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
PROMPT = "sudoku\\n1...34..2..34..1\\n"  # as text of the sampler, where a backslash and n is a line break

# Runs with the exported folders as arguments; writes the logits of each, and prints what the documented sampler prints.
PLAIN = """
import json, sys
sys.modules["lfpo"] = None  # an import of lfpo now raises
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from peft import PeftModel

home, samplers = sys.argv[1], json.loads(sys.argv[2])
ids = load_file(f"{home}/ids.safetensors")["ids"]
logits = {}
for name in ("embedded", "llada", "tied", "dream", "merged", "base"):
    model = AutoModelForCausalLM.from_pretrained(f"{home}/{name}")
    assert AutoTokenizer.from_pretrained(f"{home}/{name}").mask_token_id == model.config.mask_token_id
    if name == "base":
        model, name = PeftModel.from_pretrained(model, f"{home}/adapter"), "adapter"
    with torch.no_grad():
        logits[name] = model(ids).logits.contiguous()
save_file(logits, f"{home}/logits.safetensors")
for text in samplers:
    exec(text)
"""


def lora_run(folder: Path, base: Path, dtype: str = "float32", size: float = 0.1) -> MaskedDiffusionLM:
    """A run with LoRA that was stopped after a checkpoint with a random adapter, of standard deviation `size`."""
    write_run(folder, ["text"])
    settings = LoraSettings(r=2, lora_alpha=4)
    config = LFPOConfig(output_dir=str(folder), model=str(base), data_file="rows.jsonl", lora=settings, dtype=dtype)
    (folder / "config.yaml").write_text(yaml_text(to_dict(config)))
    model = load_model(base, dtype=getattr(torch, dtype))
    attach(model, settings)
    generator = torch.Generator().manual_seed(3)
    for _, factor in model.factors():
        factor.data = torch.randn(factor.shape, generator=generator) * size
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters)
    trainer: Any = SimpleNamespace(model=model, reference=None, tokenizer=None, optimizer=optimizer, parts={})
    save_checkpoint(folder, 2, trainer, state={})
    return model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints in the families' layouts (own/), and what lfpo export makes of them."""
    home = tmp_path_factory.mktemp("export")
    own = home / "own"
    write_llada(own / "llada", shards=2)
    write_llada(own / "tied", weight_tying=True)
    write_dream(own / "dream")
    save_model(load_model("embedded"), own / "embedded")  # in float32, as a run saves it
    lora_run(own / "run", own / "llada")
    for name in ("embedded", "llada", "tied", "dream"):
        assert main(["export", str(own / name), "--layout", "transformers", "--output", str(home / name)]) == 0
    for name, layout, more in (
        ("base", "transformers", [str(own / "llada")]),
        ("merged", "transformers", [str(own / "run")]),
        ("merged-own", "family", [str(own / "run/checkpoints/step-2")]),
        ("adapter", "transformers", [str(own / "run"), "--adapter", "true"]),
        ("adapter-own", "family", [str(own / "run"), "--adapter", "true"]),
    ):
        assert main(["export", *more, "--layout", layout, "--output", str(home / name)]) == 0
    return home


@pytest.fixture(scope="module")
def plain(home: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Logits of every export from transformers alone, and what the documented sampler printed for two of them."""

    save_file({"ids": random_ids(2, 24)}, home / "ids.safetensors")
    code = SAMPLER.removeprefix("```python\n").removesuffix("\n```")
    texts = [
        code.replace("PATH_TO_THIS_FOLDER", str(home / name)).replace("YOUR PROMPT", PROMPT)
        for name in ("embedded", "dream")
    ]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(home), json.dumps(texts)],
        capture_output=True,
        text=True,
        env=env,
        cwd=home,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return load_file(home / "logits.safetensors"), done.stdout.splitlines()


@pytest.mark.long  # transformers alone, in a process of its own
@pytest.mark.parametrize("name", ["embedded", "llada", "tied", "dream", "merged", "adapter"])
def test_plain_transformers_gives_our_logits(name: str, home: Path, plain: tuple[dict[str, torch.Tensor], list[str]]):
    ids, found = random_ids(2, 24), plain[0][name]
    model = load_model(home / ("merged-own" if name in ("merged", "adapter") else f"own/{name}"))
    with torch.no_grad():
        expected = model(ids)
    if name == "dream":  # position i of theirs predicts token i + 1
        found, expected = found[:, :-1], expected[:, 1:]
    assert (found - expected).abs().max() < 1e-5
    if name in ("llada", "tied", "dream"):
        theirs = reference_logits(home / "own" / name, ids)
        assert (plain[0][name] - theirs).abs().max() < 1e-4


@pytest.mark.long
def test_the_documented_sampler_gives_the_tokens_of_lfpo(
    home: Path, plain: tuple[dict[str, torch.Tensor], list[str]], capsys: pytest.CaptureFixture[str]
):
    assert SAMPLER in PAGE.read_text()
    printed = "\n".join(plain[1])
    expected = []
    for name in ("embedded", "dream"):
        model, tokenizer = load_model(home / "own" / name), load_tokenizer(home / "own" / name)
        ids = tokenizer.encode(PROMPT.replace("\\n", "\n"), add_special_tokens=False)
        found = rollout(model, [ids], SamplerConfig(gen_length=64), [0])
        expected.append(tokenizer.decode(found.completion_ids()[0]).split(tokenizer.eos_token)[0])
    assert printed == "\n".join("\n".join(expected).splitlines())


def test_a_merged_checkpoint_is_base_plus_adapter(home: Path):
    base, merged = read_weights(home / "own/llada"), load_file(home / "merged-own/model.safetensors")
    adapter = load_file(home / "adapter-own/adapter_model.safetensors")
    assert merged.keys() == base.keys()
    layer = "model.transformer.blocks.0.ff_out"
    a, b = (adapter[f"base_model.model.{layer}.lora_{x}.weight"] for x in "AB")
    assert torch.allclose(merged[f"{layer}.weight"], base[f"{layer}.weight"] + 2 * b @ a, atol=1e-5)  # alpha / r = 2
    assert torch.equal(merged["model.transformer.ff_out.weight"], base["model.transformer.ff_out.weight"])  # the head


def test_an_adapter_for_the_familys_own_code_names_its_layers(home: Path):
    modules = {k.removesuffix(".weight") for k in read_weights(home / "own/llada")}
    config = json.loads((home / "adapter-own/adapter_config.json").read_text())
    assert set(config["target_modules"]) <= modules
    assert "model.transformer.ff_out" not in config["target_modules"]
    assert config["base_model_name_or_path"] == "llada"
    assert len(load_file(home / "adapter-own/adapter_model.safetensors")) == 2 * len(config["target_modules"])


def test_exports_have_cards_that_name_layout_and_shift(home: Path):
    cards = {name: ModelCard.load(home / name / "README.md") for name in ("dream", "merged", "merged-own", "adapter")}
    assert "so the sampler shifts them by one" in cards["dream"].text
    assert "predict token i (`logit_shift: 0`)" in cards["merged"].text
    libraries = {name: card.data.library_name for name, card in cards.items()}
    assert libraries == {"dream": "transformers", "merged": "transformers", "merged-own": "lfpo", "adapter": "peft"}
    run = Run(home / "own/run")
    length = completion_length(load_yaml(run.dir / "config.yaml"), run)
    assert length == 2  # of its rollouts
    own_use = SAMPLER.replace("length = tokenizer.mask_token_id, 64", f"length = tokenizer.mask_token_id, {length}")
    assert own_use in cards["merged"].text
    assert f"--sampler.gen_length {length}" in cards["merged-own"].text
    assert not any(str(home) in (home / name / "README.md").read_text() for name in cards)
    assert all(p.is_relative_to(home / "own") for p in home.glob("**/*.py"))  # no remote code


def test_a_merged_export_takes_the_room_of_one_model_and_one_file(home: Path, monkeypatch: pytest.MonkeyPatch):
    """The merged copy goes file by file."""
    monkeypatch.setattr("lfpo.models.tensor_files.FILE_BYTES", 60_000)
    held = []

    def watched(tensors: dict[str, torch.Tensor], path: Path) -> None:
        save_tensors(tensors, path)
        held.append(sum(p.stat().st_size for p in path.parent.rglob("*.safetensors")))

    monkeypatch.setattr("lfpo.models.export.save_tensors", watched)
    out = home.parent / "in-parts"
    arguments = ["export", str(home / "own/run"), "--layout", "transformers", "--output", str(out)]
    assert main(arguments) == 0
    files = [p.stat().st_size for p in out.glob("*.safetensors")]
    assert len(files) == 3 and max(held) < sum(files) + max(files) + 5000  # of names, which differ in length
    whole, parts = read_weights(home / "merged"), read_weights(out)
    assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)


def test_the_disk_of_a_lora_run_must_hold_the_merged_model(home: Path, tmp_path: Path):
    model = load_model(home / "own/llada")
    whole = sum(weight.nbytes for weight in saved_weights(model).values())
    attach(model, LoraSettings(r=2, lora_alpha=4))
    adapter = sum(factor.nbytes for _, factor in model.factors())
    needed, _ = check_disk(tmp_path, [model], "adamw_torch", keep=1)
    assert needed == 2 * 3 * adapter + whole  # two checkpoints of an adapter and AdamW's two moments, and the export


def test_file_modes_follow_the_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        save_model(load_model("embedded"), tmp_path / "model")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "model").iterdir() if p.suffix == ".safetensors"} == {
        0o640
    }


def test_a_damaged_model_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_model(load_model("embedded"), tmp_path / "model", load_tokenizer("embedded"))
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    assert main(["export", str(tmp_path / "model"), "--output", str(tmp_path / "out")]) == 2
    assert f"{file}: corrupt or truncated safetensors file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "RUN: the run has neither a trained model nor a checkpoint yet"),
        (["RUN", "--adapter", "true"], "RUN: the run has neither a trained model nor a checkpoint yet"),
        (["embedded"], "embedded is no run, so say where to write: --output FOLDER"),
        (["embedded", "--output", "RUN"], "RUN: exists already; remove it, or give another --output"),
        (
            ["embedded", "--adapter", "true", "--output", "x"],
            "embedded: holds no run; --adapter needs the folder of a run with lora",
        ),
        (["none", "--output", "x"], "model 'none': no such folder"),
        ([], "key 'run' is missing"),
    ],
)
def test_what_cannot_be_exported_is_an_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "RUN", ["text"])
    assert main(["export", *arguments]) == 2
    found = capsys.readouterr().err
    assert message in found
    assert found.count("\n") == 1


class Hub(BaseHTTPRequestHandler):
    """The requests of an upload: a repository, its card, where files go, large files, a commit. Keeps what it gets."""

    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        host = f"http://127.0.0.1:{self.server.server_address[1]}"
        if self.headers.get("Authorization") != "Bearer hf_good":
            self.answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            self.answer(200, {"url": f"{host}/me/thing"})
        elif self.path.endswith("/preupload/main"):
            files = [f["path"] for f in json.loads(body)["files"]]
            modes = {f: "lfs" if f.endswith(".safetensors") else "regular" for f in files}
            self.answer(200, {"files": [{"path": f, "uploadMode": m, "shouldIgnore": False} for f, m in modes.items()]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            put = [{**o, "actions": {"upload": {"href": f"{host}/put/{o['oid']}"}}} for o in objects]
            self.answer(200, {"transfer": "basic", "objects": put})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.server.files[value["path"]] = self.server.large[value["oid"]]
            self.answer(200, {"commitUrl": f"{host}/me/thing/commit/1", "commitOid": "1" * 40})
        else:  # the card's metadata
            self.answer(200, {"errors": [], "warnings": []})

    def do_PUT(self) -> None:
        self.server.large[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, {})

    def answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # only for the server below
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.made, server.files, server.large = [], {}, {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_push_uploads_model_card_recipe_metrics_and_report(
    hub: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path / "secret" / "run", ["text"], eval_texts=["text"], eval_file=str(tmp_path / "held.jsonl"))
    save_model(load_model("embedded"), run / "model", load_tokenizer("embedded"))
    (run / "report.html").write_text("an old page")
    api = HfApi(endpoint=f"http://127.0.0.1:{hub.server_address[1]}", token="hf_good")
    run_push(PushConfig(str(run), "me/thing", dry_run=True), api)
    assert hub.made == []
    run_push(PushConfig(str(run), "me/thing"), api)
    assert [(m["organization"], m["name"], m.get("visibility")) for m in hub.made] == [("me", "thing", "private")]
    wanted = {"README.md", "config.json", "model.safetensors", "recipe.yaml", "metrics.jsonl", "report.html"}
    assert wanted < hub.files.keys()
    assert json.loads(hub.files["config.json"])["architectures"] == ["LlamaForCausalLM"]
    assert len(hub.files["model.safetensors"]) > 5_000_000
    assert b"lfpo report" in hub.files["report.html"]
    assert not any(str(tmp_path).encode() in content for content in hub.files.values())
    (tmp_path / "recipe.yaml").write_bytes(hub.files["recipe.yaml"])
    assert load_yaml(tmp_path / "recipe.yaml")["eval_file"] == "held.jsonl"
    printed = capsys.readouterr().out
    assert re.search(r"model\.safetensors +5\.5 MB", printed)
    assert "nothing was uploaded" in printed


def test_push_to_hub_makes_the_repository_first_and_uploads_the_trained_model(hub: Any, tmp_path: Path, monkeypatch):
    endpoint = f"http://127.0.0.1:{hub.server_address[1]}"
    hub_keys = {"push_to_hub": True, "hub_model_id": "me/thing"}
    args = choice_config(tmp_path / "run", "embedded", max_steps=1, eval_steps=0, **hub_keys)
    monkeypatch.setattr("lfpo.train.export.HfApi", functools.partial(HfApi, endpoint=endpoint, token="hf_bad"))
    with pytest.raises(UserError, match=r"me/thing: the hub at http.* refused or could not be reached .*HF_TOKEN"):
        LFPOTrainer(args=args).train()
    assert not (tmp_path / "run").exists()  # before any training
    monkeypatch.setattr("lfpo.train.export.HfApi", functools.partial(HfApi, endpoint=endpoint, token="hf_good"))
    LFPOTrainer(args=args).train()
    assert [made["name"] for made in hub.made] == ["thing", "thing"]
    assert {"model.safetensors", "recipe.yaml", "metrics.jsonl"} < hub.files.keys()


LORA: dict[str, Any] = {
    "lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "up_proj"]},
    "average_decay": 0.9,
}


@pytest.mark.parametrize(
    "settings",
    [
        {"average_decay": 0.9},
        LORA,
        pytest.param({"load_in_4bit": True, **LORA}, marks=pytest.mark.long),
        pytest.param({"load_in_4bit": True, **LORA, "average_decay": 0.0}, marks=pytest.mark.long),
    ],
)
def test_the_last_checkpoint_becomes_the_same_model_as_the_run_s_own(settings: dict[str, Any], tmp_path: Path):
    """Which is the average of theta, onto the base as training held it."""
    base = tmp_path / "base"
    shape = {**LLADA_CONFIG, "d_model": 64, "mlp_hidden_size": 64, "init_std": 0.1}
    save_model(init_model(shape, seed=0), base, load_tokenizer(write_llada(tmp_path / "tokenizer")))
    LFPOTrainer(args=choice_config(tmp_path / "run", base, max_steps=1, eval_steps=0, **settings)).train()
    last = str(tmp_path / "run/checkpoints/step-1")
    assert main(["export", last, "--output", str(tmp_path / "own")]) == 0
    expected = load_file(tmp_path / "run/model/model.safetensors")
    start = load_file(base / "model.safetensors")
    assert any(not torch.equal(start[name], weight) for name, weight in expected.items())

    def same(folder: Path) -> None:
        for name, weight in load_file(folder / "model.safetensors").items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-6, msg=name)

    same(tmp_path / "own")
    if "lora" not in settings:
        shutil.rmtree(base)  # not needed for whole weights
        assert main(["export", last, "--output", str(tmp_path / "without base")]) == 0
        same(tmp_path / "without base")
    assert not list((tmp_path / "own").glob("tmp*"))
    if "lora" in settings:
        assert main(["export", str(tmp_path / "run"), "--dtype", "float32", "--output", str(tmp_path / "wide")]) == 0
        same(tmp_path / "wide")


def test_an_export_into_a_folder_of_the_model_itself_holds_the_model_alone(llada: Path, capsys: Any):
    assert main(["export", str(llada), "--output", str(llada / "copy")]) == 0
    assert not [p for p in (llada / "copy").rglob("*") if "partial" in p.name]
    assert torch.equal(load_model(llada / "copy")(random_ids(2, 12)), load_model(llada)(random_ids(2, 12)))


def test_an_upload_that_fails_says_where_the_trained_model_is(hub: Any, tmp_path: Path, monkeypatch):
    """As huggingface_hub raises it for a large file, and its Xet client."""
    api = functools.partial(HfApi, endpoint=f"http://127.0.0.1:{hub.server_address[1]}", token="hf_good")
    monkeypatch.setattr("lfpo.train.export.HfApi", api)
    cause: BaseException | None = None

    def upload_folder(self: HfApi, **arguments: Any) -> None:
        raise RuntimeError("Error while uploading 'model.safetensors' to the Hub.") from cause

    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    keys = {"push_to_hub": True, "hub_model_id": "me/thing"}
    args = choice_config(tmp_path / "run", "embedded", max_steps=1, eval_steps=0, **keys)
    folder = re.escape(str(tmp_path / "run"))
    failed = r"me/thing: the hub at .* \(Error while uploading 'model.safetensors' to the Hub.{}\); .*HF_TOKEN"
    with pytest.raises(
        UserError, match=rf"{failed.format('')}.* saved in {folder}/model: `lfpo push {folder} me/thing`"
    ):
        LFPOTrainer(args=args).train()
    cause = ConnectionError("storage answers 503")
    with pytest.raises(UserError, match=failed.format(": storage answers 503")):
        run_push(PushConfig(str(tmp_path / "run"), "me/thing"), api())


def test_export_adds_the_adapter_in_the_dtype_of_the_run_or_in_float32(tmp_path: Path, capsys):
    model = lora_run(tmp_path / "run", write_llada(tmp_path / "base"), "bfloat16", 0.03)
    base = {name: weight.detach().float().clone() for name, weight in saved_weights(model).items()}
    products = {}
    for name in base:
        layer = model.backbone.get_submodule(name.rpartition(".")[0])
        if hasattr(layer, "lora_A"):
            a, b = layer.lora_A[CURRENT].weight, layer.lora_B[CURRENT].weight
            products[name] = 2.0 * (b @ a).detach()  # lora_alpha / r
    assert products
    run = str(tmp_path / "run")
    assert main(["export", run, "--output", str(tmp_path / "narrow")]) == 0
    assert main(["export", run, "--dtype", "float32", "--output", str(tmp_path / "wide")]) == 0
    narrow, wide = (saved_weights(load_model(tmp_path / name)) for name in ("narrow", "wide"))
    for name, weight in base.items():
        exact = weight + products.get(name, 0.0)
        assert torch.allclose(wide[name], exact, atol=1e-6)
        assert torch.allclose(narrow[name].float(), exact, rtol=2**-8, atol=1e-6)
    assert main(["export", run, "--dtype", "float32", "--adapter", "true", "--output", str(tmp_path / "a")]) == 2
    assert "--dtype is that of the sum of base and LoRA adapter" in capsys.readouterr().err
    assert main(["export", "embedded", "--dtype", "float32", "--output", str(tmp_path / "b")]) == 2
    assert "--dtype needs the folder of a run with lora" in capsys.readouterr().err
