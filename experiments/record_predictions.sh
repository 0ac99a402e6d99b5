#!/usr/bin/env bash
# Makes records of predictions, which notebooks draw and experiments/results does not keep, but for ablation and
# packings_cpu.
#
#   experiments/record_predictions.sh [--programs DIR] [--output DIR] [RECORD...]
#
#   --programs DIR   where the experiments are [build/$RINGLAB_PRESET/experiments, the preset cpu if it is not set]
#   --output DIR     where records go; what lies there is replaced [out/quickstart]
#
# RECORD is a name without .h5, as predict. Without one, all records: 12 minutes on two idle cores.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")"
export RINGLAB_DATA=.  # so that records name files by their place in the repository

# The program and its options, by the name of the record.
known=()
declare -A commands
makes() { known+=("$1"); commands[$1]=${*:2}; }

disturbed="predict --layouts zigzag --schedules ring bidirectional pull all-gather --machines h200_nvswitch_copy_engine
  --tokens-per-rank 512 2048 8192 32768 --span-ranks 0"
hosts="predict --masks causal window:4096,0 --layouts zigzag --ranks 8 16 32 64 --machines h200_cluster
  --tokens-per-rank 512 1024 2048 4096 8192 16384 32768 --compute-model rate --span-ranks 0
  --schedules ring bidirectional double-ring:8 ulysses:8 pass-q all-gather pull seen"
latent="predict --preset deepseek-v3 --layouts zigzag --masks causal --tokens-per-rank 1024 2048 4096 8192 16384 32768"
rings="--layouts zigzag --tokens-per-rank 2Ki 8Ki 32Ki --schedules ring joined-ring pull all-gather"
packed="--layouts zigzag striped:32 --schedules ring joined-ring pull all-gather --masks window:2048,0"
llama="predict --preset llama-3.1-8b --layouts striped --masks causal --ranks 8 --machines h200_nvswitch_copy_engine"

makes predict predict
makes schedules_llama-3.1-8b "$hosts" --preset llama-3.1-8b
makes schedules_deepseek-v3 "$hosts" --heads 128 --head-dim 192 --value-dim 128  # K and V travel, not the latent
makes jitter_slow_gpu "$disturbed" --slow-gpus 1
makes jitter_slow_link "$disturbed" --slow-links 1
makes jitter_noise "$disturbed" --compute-noise 0.05 --transfer-noise 0.2 --start-skew 20
makes latent_predicted "$latent" --ranks 8 --machines h200_nvswitch_copy_engine \
  --schedules ring expanded:ring all-gather ulysses expanded:ulysses
makes latent_predicted_cluster "$latent" --ranks 32 --machines h200_cluster --span-ranks 8 \
  --schedules ring expanded:ring all-gather ulysses:8 expanded:ulysses:8
makes decode_predicted "$llama" --queries 1 --compute-model rate --schedules merge merge:tree pass-q ring all-gather \
  --tokens 8Ki 16Ki 32Ki 64Ki 128Ki 256Ki 512Ki 1Mi
makes suffix_predicted "$llama" --queries 0 64 --schedules ring all-gather merge:tree pass-q \
  --tokens 8Ki 16Ki 32Ki 64Ki 128Ki 256Ki
makes predicted_4xh200 validate --measured results/validate_4xh200.h5 --machines 4xh200_calibrated
makes predicted_2cpus validate --measured results/validate_2cpus.h5 --machines 2cpus_calibrated
makes predicted_schedules validate --measured results/throughput_4xh200_schedules.h5 --transports copy \
  --machines 4xh200_calibrated
makes predicted_schedules_nccl validate --measured results/throughput_4xh200_schedules.h5 --transports nccl \
  --machines 4xh200_calibrated_nccl
makes published validate --published ring_flash_attention_8xh800 peers_4xh200 peers_8xh200
makes predicted_cp_h100_16_64 validate --published cp_h100_16_64
makes explain validate --explain --measured results/validate_4xh200.h5 --machines 4xh200_calibrated
makes ablation validate --measured all --without each
# Rings of two H100 that no record has, predicted before they were measured.
makes predicted_2xh100 predict_each.py --ranks 2 --machines 2xh100_calibrated \
  --each "$rings" --head-dim 64 --each "$rings" --heads 24:4 --each "$rings" --head-dim 192 --value-dim 128 --each "$rings" --head-dim 256 \
  --each "$packed" causal+documents:108,478,70,797,452,753,618,451,369 --tokens 4Ki \
  --each "$packed" causal+documents:1362,43,481,302,911,913,279,4294,793,1233,1044,1251,1747,1330,401 --tokens 16Ki \
  --each "$packed" causal+documents:447,929,781,1046,784,1370,38,635,570,767,435,816,635,2657,537,4374,646,669,1222,1514,387,770,420,568,302,1604,1140,448,701,167,1122,1286,2376,978,683,315,4715,526,723,289,891,7707,1172,1000,280,3498,622,2304,560,1591,275,723,1099,891,1168,932,431 --tokens 64Ki \
  --each --heads 128 --head-dim 192 --value-dim 128 --latent 512+64 --layouts zigzag --tokens-per-rank 2Ki 8Ki --schedules ring joined-ring expanded:ring
makes packings_planned packings.py --lengths document_lengths_training --tokens 524288 --ranks 64 --heads 64:8 --head-dim 128 \
  --machines h200_cluster --layouts planned balanced striped:64 zigzag --schedules seen:64:8 --packings 20 --span-ranks 0
makes packings_cpu packings.py --program compare_layouts --packings 20 --tokens 8192 --ranks 8 --heads 1:1 --head-dim 64 --arithmetic fp32 \
  --layouts contiguous zigzag striped:64 balanced --schedules ring --machines 2cpus_calibrated --repeats 1 --judge-limit none --input normal --span-ranks 0

refuse() { echo "record_predictions.sh: $*" >&2; exit 2; }
programs=../build/${RINGLAB_PRESET:-cpu}/experiments output=../out/quickstart records=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$(basename "$0")"; exit 0 ;;
    --programs | --output)
      [ $# -gt 1 ] || refuse "$1 lacks its value; see --help"
      path=$(cd "$here" && realpath --canonicalize-missing --relative-to="$OLDPWD" -- "$2")
      case $1 in
        --programs) programs=$path ;;
        --output) output=$path ;;
      esac
      shift 2 ;;
    -*) refuse "unknown option '$1'; see --help" ;;
    *)
      [ -n "${commands[$1]:-}" ] || refuse "unknown record '$1'; known: ${known[*]}"
      records+=("$1"); shift ;;
  esac
done
[ ${#records[@]} -gt 0 ] || records=("${known[@]}")
[ -x "$programs/predict" ] || refuse "no program predict in $programs; build them, or name --programs"

mkdir -p "$output"
python=python3
"$python" -c "import h5py" 2>/dev/null || python=/usr/bin/python3
for record in "${records[@]}"; do
  printf '\n== %s\n' "$record"
  begin=$SECONDS
  read -r -d '' -a words <<<"${commands[$record]}" || true
  if [[ ${words[0]} == *.py ]]; then
    "$python" "${words[0]}" "$output/$record.h5" --programs "$programs" "${words[@]:1}" --overwrite
  else
    "$programs/${words[0]}" "${words[@]:1}" --output "$output/$record.h5" --overwrite
  fi
  printf '(%d s)\n' $((SECONDS - begin))
done
