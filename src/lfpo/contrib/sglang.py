"""Rollouts by SGLang servers: `engine: {name: sglang, urls: [http://HOST:30000]}`.

It was never run against a real server, only against one of the same contract in the tests. Models: LLaDA2.x and SDAR,
full weights or LoRA, which is merged. A server returns tokens alone, so it gives objectives that need no more than
tokens, as LFPO with its default states. Released servers decode greedily; one with SGLang's pull request 27943 samples.

    python -m sglang.launch_server --model-path MODEL --trust-remote-code --dllm-algorithm LowConfidence \
        --dllm-algorithm-config FILE --max-running-requests 64

The server's own file says block size and threshold; of `sampler` it gets temperature, top_p and top_k. New weights are
written to `output_dir`/sglang, which every server must be able to read under the same path.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from lfpo.config.errors import ProcessLost, UserError, first_line
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.completions import SpecialTokens
from lfpo.core.denoise import Finished, Forwarded
from lfpo.core.engine import Request, Version
from lfpo.core.forward import completion_columns, left_pad
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM
from lfpo.models.loading import save_model

AT_ONCE = 64  # requests that this rank keeps open at each server


class SGLangEngine:
    """An engine (lfpo.core.engine.Engine) of the servers at `args.engine.urls`. Each rank sends requests for its own
    rows, one for each rollout; rank 0 sends weights."""

    gives: Collection[str] = ()
    forwarded: Forwarded | None = None  # servers run them

    def __init__(self, args: LFPOConfig):
        self.urls, self.timeout = [url.rstrip("/") for url in args.engine.urls], args.engine.unit_timeout or None
        self.folder = user_path(args.output_dir).absolute() / "sglang"
        self.version: Version = 0
        self.policy: MaskedDiffusionLM | None = None
        self.samples = False  # whether rollouts of a prompt were seen to differ
        self.threshold = args.sampler.threshold
        self.measured: dict[str, float] = {}
        self.threads = ThreadPoolExecutor(AT_ONCE * len(self.urls), "sglang")

    def update(self, version: Version, policy: MaskedDiffusionLM) -> None:
        """Write the weights under the checkpoint's own names, and let every server read them. Raises UserError for a
        model that SGLang does not sample, and where a server refuses the weights."""
        if policy.block_length is None or policy.causal_context:
            raise UserError(
                f"engine sglang: SGLang samples LLaDA2.x and SDAR, and the model is {policy.family.name}; take the "
                "engine local or ray"
            )
        started, self.version, self.policy = time.perf_counter(), version, policy
        folder = self.folder / str(version).replace(" ", "-")
        save_model(policy, folder)  # a collective; LoRA is added to the weights
        collectives.raise_on_all(lambda: None if collectives.rank() else self._load(folder))
        self.measured["engine/weights_seconds"] = time.perf_counter() - started

    def _load(self, folder: Path) -> None:
        """Let every server load a checkpoint, and remove it."""
        body = {"model_path": str(folder), "weight_version": str(self.version), "flush_cache": True}
        for url in self.urls:
            self._post(url, "pause_generation", {"mode": "abort"})
            try:
                answer = self._post(url, "update_weights_from_disk", body)
            finally:
                self._post(url, "continue_generation", {})
            if not answer.get("success"):
                raise UserError(
                    f"engine sglang: {url} refused the weights in {folder} ({answer.get('message', 'no reason')}); can "
                    "it read that folder, and does it serve this model?"
                )
        shutil.rmtree(folder)

    def sample(self, request: Request, finished: Finished | None = None) -> Trajectory:
        """Tokens of each row, with reveal_step 0 where a server returned one. What servers do not tell, as forwards and
        confidence, is 0. Raises UserError for another threshold than that of the run's `sampler`, and where all
        rollouts of each prompt are equal in the first batch."""
        if request.sampler.threshold != self.threshold:
            raise UserError(
                f"engine sglang: a server has one threshold, that of `sampler` is {self.threshold}, and that of an "
                f"evaluation {request.sampler.threshold}; give eval_samplers the same one"
            )
        tokens = collectives.raise_on_all(lambda: self._tokens(request))
        trajectory = self._trajectory(request, tokens).to(collectives.device())
        if finished is not None:
            finished(list(range(len(trajectory))), trajectory)
        return trajectory

    def idle(self) -> None:
        collectives.raise_on_all(lambda: None)

    def metrics(self) -> dict[str, float]:
        metrics, self.measured = self.measured, {}
        return metrics

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        self.policy = None

    def _tokens(self, request: Request) -> list[list[int]]:
        bodies = list(map(self._body, request.prompts, request.seeds, itertools.repeat(request)))
        servers = itertools.islice(itertools.cycle(self.urls), len(bodies))
        tokens = list(self.threads.map(self._generate, servers, bodies))
        n = request.generations
        if n > 1 and not self.samples:
            groups = [tokens[i : i + n] for i in range(0, len(tokens), n)]
            self.samples = any(row != group[0] for group in groups for row in group)
            if not self.samples:
                raise UserError(
                    f"engine sglang: all {n} rollouts of each prompt are equal, so the server decodes greedily and "
                    "nothing can be learned; run an SGLang with pull request 27943, which samples"
                )
        return tokens

    def _body(self, prompt: Sequence[int], seed: int, request: Request) -> Json:
        """A request for one rollout. Its length ends with a whole block, counted from the prompt's first token."""
        sampler, policy = request.sampler, self.policy
        assert policy is not None and policy.block_length
        end = len(prompt) + sampler.gen_length
        length = end + -end % policy.block_length - len(prompt)
        wanted: Json = {"max_new_tokens": length, "n": 1, "temperature": sampler.temperature, "sampling_seed": seed}
        wanted |= {name: v for name in ("top_p", "top_k") if (v := getattr(sampler, name)) is not None}
        return {"input_ids": list(prompt), "sampling_params": wanted, "stream": False}

    def _generate(self, url: str, body: Json) -> list[int]:
        answer = self._post(url, "generate", body)
        found = answer["meta_info"].get("weight_version")
        if found != str(self.version):
            raise UserError(
                f"engine sglang: {url} sampled with weights {found!r}, and the run is at {str(self.version)!r}; does "
                "another run use this server?"
            )
        ids: list[int] = answer["output_ids"]
        return ids

    def _trajectory(self, request: Request, tokens: Sequence[Sequence[int]]) -> Trajectory:
        policy = self.policy
        assert policy is not None
        prompt_ids, prompt_mask = left_pad(request.prompts, policy.pad_id)
        shape = (len(tokens), completion_columns(request.sampler, policy))
        ids, step = torch.full(shape, policy.pad_id), torch.full(shape, -1)
        for row, found in enumerate(tokens):
            ids[row, : len(found)] = torch.tensor(found)
            # A server stops at the first EOS. The rest of its block was there when the block was made, and is EOS in
            # what these models write.
            end = len(request.prompts[row]) + len(found)
            whole = len(found) + -end % (policy.block_length or 1)
            ids[row, len(found) : whole] = policy.eos_id
            step[row, :whole] = 0
        unknown, none = torch.zeros(shape), torch.zeros(len(tokens), dtype=torch.long)
        return Trajectory(
            prompt_ids,
            prompt_mask,
            ids,
            step,
            confidence=unknown,
            entropy=unknown,
            scheduled_steps=none,
            nfe=none,
            queries=none,
            sampler=request.sampler,
            special=SpecialTokens(policy.mask_id, policy.eos_id),
            structure=policy.sampling_structure(request.sampler.block_length),
        )

    def _post(self, url: str, path: str, body: Json) -> Any:
        """A server's answer. Raises UserError for one that it refuses, and ProcessLost where it does not answer."""
        data = json.dumps(body).encode()
        asked = urllib.request.Request(f"{url}/{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise UserError(f"engine sglang: {url}/{path} refused ({error.code}: {text[:200]})") from error
        except OSError as error:
            raise ProcessLost(
                f"engine sglang: the server at {url} does not answer ({first_line(error)}); checkpoints are intact: "
                "start it again, then continue with --resume"
            ) from error
