#!/usr/bin/env bash
# Makes the records of GPUs that lie in experiments/results anew, on the GPUs of this machine.
#
#   experiments/record_gpus.sh [OPTION...] [PART...]
#
#   calibrate  machine files of these GPUs; with `validate` after it, 5 minutes of two H200
#   validate   rings that the calibration has not seen, over copy engines and NCCL
#   schedules  all schedules beside as much work on one GPU, matrix products and links
#   short      rings of 512 to 2Ki tokens per GPU, beside as much work on one GPU
#   planned    packings of real lengths in layout planned and in others, on two GPUs
#   layouts    rings by layout, and under a window and packed documents
#   alone      one GPU in two protocols, and its portable kernels (`python -m ringlab.peers --systems alone` times others')
#   uses       timelines, a token and a suffix after long caches, latents, rotary embedding
#   judged     gradients and bf16 errors against fp64, over both transports
#   context    the longest sequences that fit, run
#
#   --programs DIR       where the experiments are [build/ci/experiments]
#   --output DIR         where records go; what lies there is replaced [out/gpus]
#   --gpus N             of this machine's, the first N [all]
#   --calibrate-on N     of those, what `calibrate` may use: rings over all are then predicted from N [all, at most 4]
#
# Without a PART, all of them in this order. One that fails does not end the others; their number is the exit status.
# What is printed goes to DIR/log, the score or table of each to the terminal.
set -uo pipefail
here=$PWD
cd "$(dirname "$0")/.." || exit 2

usage() { sed -n '2,25s/^# \{0,1\}//p' "$0"; }
refuse() { echo "record_gpus.sh: $*" >&2; exit 2; }
count() { [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "$1 '$2': a whole number from 1 is wanted"; }

known=(calibrate validate schedules short planned layouts alone uses judged context)
programs=build/ci/experiments output=out/gpus gpus='' calibrate_on='' parts=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --programs | --output | --gpus | --calibrate-on)
      [ $# -gt 1 ] || refuse "$1 lacks its value; see --help"
      case $1 in
        --programs) programs=$(cd "$here" && realpath --canonicalize-missing -- "$2") ;;
        --output) output=$(cd "$here" && realpath --canonicalize-missing -- "$2") ;;
        --gpus) count "$1" "$2"; gpus=$2 ;;
        --calibrate-on) count "$1" "$2"; calibrate_on=$2 ;;
      esac
      shift 2 ;;
    -*) refuse "unknown option '$1'; see --help" ;;
    *)
      [[ " ${known[*]} " == *" $1 "* ]] || refuse "unknown part '$1'; known: ${known[*]}"
      parts+=("$1"); shift ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${known[@]}")
there=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || refuse "nvidia-smi finds no GPU; records of GPUs need one"
IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((there - 1)))}"
found=${#visible[@]}
gpus=${gpus:-$found}
[ "$gpus" -le "$found" ] || refuse "--gpus $gpus: $found are visible"
calibrate_on=${calibrate_on:-$((gpus < 4 ? gpus : 4))}
[ "$calibrate_on" -le "$gpus" ] || refuse "--calibrate-on $calibrate_on: $gpus GPUs are used; give as many or fewer"
[ -x "$programs/throughput" ] || refuse "no program throughput in $programs; build preset ci, or name --programs"

PATH=$(realpath "$programs"):$PATH  # so that records name programs without their folder
export RINGLAB_DATA=$PWD/experiments CUDA_VISIBLE_DEVICES
first() { local IFS=,; echo "${visible[*]:0:$1}"; }  # so many of the GPUs
CUDA_VISIBLE_DEVICES=$(first "$gpus")
# "NVIDIA H200" is h200 in names of records.
device=$(nvidia-smi -i "${visible[0]}" --query-gpu=name --format=csv,noheader | tr '[:upper:]' '[:lower:]' |
  sed 's/^nvidia //; s/ .*//')
of=${gpus}x$device one=$device
mkdir -p "$output/log"
cd "$output" || exit 2

# Of a transport ("" for copy engines): the machine file of this very run, else the one that comes with Ringlab, else
# that of data sheets.
machine() {
  local name=${of}_calibrated${1:+_$1}
  if [ -e "$name.toml" ]; then
    echo "./$name.toml"
  elif [ -e "$RINGLAB_DATA/machines/$name.toml" ]; then
    echo "$name"
  elif [ -z "$1" ]; then
    echo h200_nvswitch_copy_engine
  else
    echo h200_nvswitch_nccl
  fi
}

failed=0
# step NAME SECONDS PROGRAM ARGUMENTS: its output to log/NAME.txt, its last lines here.
step() {
  local name=$1 limit=$2 program=$3 begin=$SECONDS status=0
  shift 3
  timeout --kill-after=10 "$limit" "$program" "$@" --overwrite >"log/$name.txt" 2>&1 || status=$?
  printf '\n== %s: status %d, %d s\n' "$name" "$status" $((SECONDS - begin))
  grep -v '^\[' "log/$name.txt" | cut -c1-160 | tail -"${lines:-40}"
  [ "$status" -eq 0 ] || failed=$((failed + 1))
}

timing=(--seconds 0.15 --warm-up 0.12 --timeout 20)
documents=causal+documents:3584,256,1344,1792,2688,2816,1856,704,1856,4224,1024,512,896,4672,704,2176,768,128,768
long_documents=causal+documents:24576,8192,16384,12288,20480,16384,4096,28672

part_calibrate() {
  CUDA_VISIBLE_DEVICES=$(first "$calibrate_on") lines=6 \
    step calibrate 290 calibrate --backend cuda --gpus-per-host "$gpus" -o "${of}_calibrated.toml"
}

part_validate() {
  local rings=(--ranks "$gpus" --layouts contiguous zigzag striped:64 "${timing[@]}")
  lines=12 step validate 280 throughput --beside none "${rings[@]}" --tokens-per-rank 512 1024 2048 4096 8192 16384 \
    --masks causal full window:4096,0 --schedules ring joined-ring --transports copy \
    -o "validate_$of.h5"
  lines=12 step validate_nccl 100 throughput --beside none "${rings[@]}" --tokens-per-rank 512 2048 8192 16384 --masks causal full \
    --schedules ring --transports nccl -o "validate_${of}_nccl.h5"
}

part_schedules() {
  lines=70 step throughput_schedules 240 throughput --ranks "$gpus" --tokens-per-rank 2048 8192 32768 --layouts zigzag \
    --transports copy nccl --schedules ring joined-ring pull bidirectional seen ulysses pass-q all-gather \
    --beside work ceilings "${timing[@]}" -o "throughput_${of}_schedules.h5"
}

part_short() {
  lines=40 step throughput_short 90 throughput --ranks "$gpus" --tokens-per-rank 512 1024 2048 --layouts zigzag \
    --transports copy --schedules ring joined-ring pull --beside work "${timing[@]}" \
    -o "throughput_${of}_short.h5"
}

# On two GPUs, the packings of the committed records of two.
part_planned() {
  local here masks tokens=8192
  here=$(machine '')
  for length in 8k 32k; do
    mapfile -t masks < <(python3 -c 'import h5py, sys
for mask in sorted(set(h5py.File(sys.argv[1])["runs/mask"].asstr()[:])): print(mask)' \
      "$RINGLAB_DATA/results/planned_2xh100_$length.h5")
    [ ${#masks[@]} -gt 0 ] || { echo "planned: no packings; python3 with h5py reads them from a record"; failed=$((failed + 1)); return; }
    CUDA_VISIBLE_DEVICES=$(first 2) lines=40 step "planned_$length" 110 throughput --beside none --ranks 2 --tokens-per-rank "$tokens" \
      --layouts "planned:$here" zigzag contiguous balanced striped:64 --masks "${masks[@]}" --schedules seen pull \
      --transports copy "${timing[@]}" -o "planned_2x${one}_$length.h5"
    tokens=32768
  done
}

part_layouts() {
  step throughput_layouts 90 throughput --ranks "$gpus" --tokens-per-rank 2048 8192 32768 \
    --layouts zigzag striped contiguous --transports copy --schedules ring joined-ring --beside work "${timing[@]}" \
    -o "throughput_${of}_layouts.h5"
  step throughput_masks 90 throughput --ranks "$gpus" --tokens 32768 --layouts zigzag contiguous striped:64 \
    --transports copy --schedules ring joined-ring seen pull --masks window:4096,0 "$documents" --beside work \
    "${timing[@]}" -o "throughput_${of}_masks.h5"
  step throughput_long_documents 60 throughput --ranks "$gpus" --tokens 131072 --layouts zigzag contiguous \
    --transports copy --schedules joined-ring pull --masks "$long_documents" --beside work "${timing[@]}" \
    -o "throughput_${of}_long_documents.h5"
}

part_alone() {
  local kernels=(--ranks 1 --seconds 0.25 --warm-up 0.2)
  CUDA_VISIBLE_DEVICES=$(first 1)
  local both=(--protocol sustained burst)
  step alone_bursts 110 throughput "${kernels[@]}" "${both[@]}" --beside ceilings --masks causal \
    --shapes 32:8/128 64:8/128 --tokens-per-rank 1024 2048 4096 8192 16384 32768 -o "throughput_${one}_bursts.h5"
  step alone_bursts_full 60 throughput "${kernels[@]}" "${both[@]}" --beside none --masks full \
    --shapes 32:8/128 64:8/128 32:32/128 32:8/64 32:8/192-128 32:8/256 --tokens-per-rank 8192 \
    -o "throughput_${one}_bursts_full.h5"
  step alone_bursts_shapes 60 throughput "${kernels[@]}" "${both[@]}" --beside none --masks causal \
    --shapes 32:32/128 32:8/64 32:8/192-128 32:8/256 --tokens-per-rank 8192 -o "throughput_${one}_bursts_shapes.h5"
  step alone_bursts_masks 60 throughput "${kernels[@]}" "${both[@]}" --beside none --tokens 32768 \
    --masks window:4096,0 "$documents" -o "throughput_${one}_bursts_masks.h5"
  step alone_portable 60 throughput "${kernels[@]}" --kernels portable --beside none --masks causal \
    --shapes 32:8/64 32:8/128 32:8/192-128 32:8/256 --tokens-per-rank 2048 8192 -o "throughput_${one}_portable.h5"
  step alone_dropout 60 throughput --ranks 1 --tokens-per-rank 8192 --layouts contiguous --masks full causal \
    --dropout 0.1 --beside none "${timing[@]}" -o "throughput_${one}_dropout.h5"
  CUDA_VISIBLE_DEVICES=$(first "$gpus")
}

part_uses() {
  local cuda=(--backend cuda --ranks "$gpus")
  local copy=("${cuda[@]}" --transport copy --machines "$(machine '')")
  local rings=("${copy[@]}" --heads 32:8 --input normal --judge-limit none)
  lines=12 step compare_layouts 60 compare_layouts "${rings[@]}" --tokens-per-rank 8192 --masks causal \
    --layouts zigzag striped contiguous --schedules ring joined-ring -o "compare_layouts_$of.h5"
  lines=12 step compare_layouts_rotary 40 compare_layouts "${rings[@]}" --tokens-per-rank 8192 --masks causal \
    --rotary 500000 --schedules ring -o "compare_layouts_${of}_rotary.h5"
  step decode 75 decode "${copy[@]}" --heads 32:8 --head-dim 128 --layouts striped --tokens 8Ki 64Ki 256Ki \
    --steps 2 --repeats 20 --schedules joined-merge merge merge:tree pass-q ring all-gather -o "decode_$of.h5"
  step suffix 75 compare_layouts "${rings[@]}" --layouts striped --tokens 32Ki 128Ki --queries 0 64 --masks causal \
    --schedules ring all-gather merge:tree --repeats 5 -o "suffix_$of.h5"
  local latent=(--heads 128 --head-dim 192 --value-dim 128 --latent 512+64)
  latent+=(--rotary 10000+dims:64+first:128+pairs:interleaved --input normal --masks causal --layouts zigzag)
  latent+=(--judge-limit none --repeats 10)
  step latent 80 compare_layouts "${copy[@]}" "${latent[@]}" --tokens-per-rank 2048 4096 8192 \
    --schedules ring expanded:ring all-gather ulysses -o "latent_$of.h5"
  step latent_nccl 60 compare_layouts "${cuda[@]}" "${latent[@]}" --transport nccl --machines "$(machine nccl)" \
    --tokens-per-rank 2048 8192 --schedules ring expanded:ring -o "latent_${of}_nccl.h5"
}

part_judged() {
  local real=(--backend cuda --input real --ranks "$gpus" --tokens 2048) transport
  for transport in copy nccl; do
    lines=12 step "gradient_equivalence_$transport" 150 gradient_equivalence "${real[@]}" --transport "$transport" \
      --arithmetic bf16 --layouts contiguous zigzag striped --schedules ring joined-ring pull all-gather \
      --masks full causal window:100,0+sink:4 causal+documents:input -o "gradient_equivalence_${of}_$transport.h5"
  done
  lines=20 step bf16_error 100 bf16_error --backend cuda --input real normal --tokens 2048 --ranks 1 "$gpus" \
    --policies carry partials running --layouts contiguous zigzag striped -o "bf16_error_$of.h5"
}

part_context() {
  lines=12 step longest_context 240 longest_context --confirm --layers 32 --ranks 1 "$gpus" --keep everything output \
    --schedules ring all-gather --machines "$(machine '')" -o "longest_context_$of.h5"
}

for part in "${parts[@]}"; do "part_$part"; done
printf '\n%d of the steps failed; records are in %s\n' "$failed" "$output"
exit "$failed"
