#!/bin/bash
# What docs/gpu.md says has not been run on a GPU, in about ten minutes on a machine that has one.
# Build first:
#
#   ./meshwright build --preset cuda && scripts/gpu_session.sh results
#
# A second word is a pattern of steps: "verify-*".
set -uo pipefail
cd "$(dirname "$0")/.." || exit
folder=${1:?the folder of the logs}
only=${2:-*}
program=${MESHWRIGHT:-build-cuda/bin/meshwright}
device=device=${MESHWRIGHT_DEVICE:-cuda}
mkdir -p "$folder"
failed=0 steps=0

# step NAME SECONDS COMMAND…: runs it with a time limit, its output in FOLDER/NAME.log.
step() {
  local name=$1 limit=$2 code=0
  shift 2
  # shellcheck disable=SC2053  # a pattern
  [[ $name == $only ]] || return
  steps=$((steps + 1))
  timeout "$limit" "$@" >"$folder/$name.log" 2>&1 || code=$?
  printf '%-22s %s\n' "$name" "$([[ $code == 0 ]] && echo ok || echo "exit code $code, see $folder/$name.log")"
  [[ $code == 0 ]] || failed=1
}

step doctor 60 "$program" doctor
# Each mix must train, with all ranks' copies alike.
for plan in 'zero { 2, stage = 3, hook = "int8" }' 'tp(2), sp()' 'sp { 2, form = "ring" }' 'pp { 2, schedule = "zbv" }' 'diloco { 2, every = 2 }'; do
  name=$(printf %s "$plan" | tr -c 'a-z0-9' '-' | tr -s '-')
  step "train-$name" 60 "$program" run scripts/quickstart.lua --set "plan={ $plan }" --set "$device" --set steps=4 --set log=nil --set check=true
done
# Each mix must equal one rank: by fused kernels, and by ATen's.
for plan in 'zero { 2, stage = 3 }, tp(2)' 'pp { 2, schedule = "dualpipev" }'; do
  name=$(printf %s "$plan" | tr -c 'a-z0-9' '-' | tr -s '-')
  step "verify-$name" 60 "$program" verify scripts/quickstart.lua --set "plan={ $plan }" --set "$device"
  step "verify-aten-$name" 60 env MESHWRIGHT_FUSED=off "$program" verify scripts/quickstart.lua --set "plan={ $plan }" --set "$device"
done
step train-muon 60 "$program" run scripts/quickstart.lua --set 'optimizer=mw.ema { mw.muon { lr = 1e-3, matrices = "shards" } }' --set 'plan={ tp(2) }' --set "$device" \
  --set steps=4 --set log=nil
step repeats 60 env MESHWRIGHT_DETERMINISTIC=1 "$program" compare scripts/quickstart.lua scripts/quickstart.lua --set "$device"
step label-gpu 240 ./meshwright test --preset cuda --label gpu
step speed 150 python3 bench/gpu.py --program "$program" --cluster dgx-h100 --json "$folder/speed.json"
((steps > 0)) || { echo "no step is called $only" >&2; failed=2; }
exit $failed
