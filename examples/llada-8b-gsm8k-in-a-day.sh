#!/usr/bin/env bash
# LLaDA-8B-Instruct on GSM8K in a day, on one GPU of 80 GiB: LoRA with LFPO, measured before and after.
#   examples/llada-8b-gsm8k-in-a-day.sh                  (further arguments are keys of `lfpo train`, as --seed 1)
# Start it again after an interruption: every part goes on where it stopped. The result is $OUT/result.json.
set -euo pipefail

OUT=${OUT:-runs/a-day}
MODEL=${MODEL:-GSAI-ML/LLaDA-8B-Instruct}
TASK=${TASK:-gsm8k}
RECIPE=${RECIPE:-llada-8b-gsm8k-lora}
EVAL=${EVAL:-}        # further options of lfpo eval, as --n 200
ANYWAY=${ANYWAY:-}    # set it to train although the base model is far from what is published
# Untrained LLaDA-8B-Instruct, 256 tokens, 128 steps, no examples (SPG, arXiv 2510.09541, Table 1, its own measurement).
PUBLISHED=77.2
FAR=10                # percentage points
# Training ends, with a checkpoint, when one of these begins to hold (docs/troubleshooting.md).
STOP_ON='[groups_agree, reward_falls, kl_runs_away, entropy_runs_away]'

say() { printf '\n== %s\n' "$1"; }

evaluate() { # folder of the result, model
    # shellcheck disable=SC2086
    lfpo eval --task "$TASK" --model "$2" --protocol d1 --sampler.early_stop eos --dtype bfloat16 \
        --rollout_tokens 65536 --output "$OUT/$1" $EVAL
}

train() {
    lfpo train "$RECIPE" --model "$MODEL" --task "$TASK" --output_dir "$OUT/run" --stop_on "$STOP_ON" "$@"
}

say "1 of 5: does it fit, and does it start? (memory and hours are estimates)"
mkdir -p "$OUT"
lfpo doctor
lfpo plan "$RECIPE" --model "$MODEL" --task "$TASK" --output "$OUT/plan.json" "$@"
python - "$OUT/plan.json" <<'PYTHON'
import json, sys

if not json.load(open(sys.argv[1]))["fits"]:
    sys.exit("The recipe does not fit this GPU as it stands. Add the keys of a command above to this script's arguments.")
PYTHON

[ -e "$OUT/run" ] || train --dry_run "$@"

say "2 of 5: the base model; published: $PUBLISHED %"
evaluate base "$MODEL"
python - "$OUT/base" "$PUBLISHED" "$FAR" "$ANYWAY" <<'PYTHON'
import json, pathlib, sys

folder, published, far, anyway = sys.argv[1:]
(file,) = pathlib.Path(folder).glob("*.json")
accuracy = 100 * json.loads(file.read_text())["accuracy"]
print(f"base model: {accuracy:.1f} %, published: {published} %")
if abs(accuracy - float(published)) > float(far) and not anyway:
    sys.exit(f"They differ by more than {far} points. Find out why before a day is spent; ANYWAY=1 goes on.")
PYTHON

say "3 of 5: training"
if [ ! -e "$OUT/run/model/config.json" ]; then
    train --resume "$@"
fi

say "4 of 5: the trained model"
evaluate trained "$OUT/run/model"

say "5 of 5: the result"
python - "$OUT" "$PUBLISHED" "$RECIPE" "$@" <<'PYTHON'
import json, pathlib, sys

out, published, recipe, *arguments = sys.argv[1:]
out = pathlib.Path(out)
lines = [json.loads(line) for line in (out / "run/metrics.jsonl").read_text().splitlines()]
(before,), (after,) = ((json.loads(f.read_text()) for f in (out / name).glob("*.json")) for name in ("base", "trained"))
trained = [line for line in lines if "reward" in line]
result = {
    "recipe": recipe,
    "arguments": arguments,
    "published_base_accuracy": float(published) / 100,
    "base": before,
    "trained": after,
    "iterations": trained[-1]["step"],
    "training_hours": trained[-1]["time/total"] / 3600,
    "first_rewards": [line["reward"] for line in trained[:5]],
    "last_rewards": [line["reward"] for line in trained[-5:]],
    "config": (out / "run/config.yaml").read_text(),
    "run": json.loads((out / "run/run.json").read_text()),
}
(out / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def told(found):
    low, high = found["interval"]
    return f"{100 * found['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f}, {found['n']} problems)"


print(f"base     {told(before)}; published {published} %\ntrained  {told(after)}")
print(f"{result['training_hours']:.1f} hours of training. To share: {out}/result.json. To look at: {out}/run/report.html")
PYTHON
