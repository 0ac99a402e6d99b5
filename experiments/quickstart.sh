#!/usr/bin/env bash
# The main job: installs what is missing, builds, compares layouts on the real input that lies in the repository, and
# draws the figures.
#
#   experiments/quickstart.sh [OUTPUT]       records (HDF5) and figures go to OUTPUT (out/quickstart)
#
# RINGLAB_PRESET names another preset of CMakePresets.json than cpu to build.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
export RINGLAB_DATA=experiments  # so that records name files by their place in the repository

case ${1:-} in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "quickstart.sh: unknown option '$1'; give a folder for the results, or nothing" >&2; exit 2 ;;
esac
out=out/quickstart
[ $# -eq 0 ] || out=$(cd "$here" && realpath --canonicalize-missing -- "$1")

# 1. Install, configure, build. Where the tests are built already they stay as they are: one build folder serves both.
cmake/install_packages.sh
preset=${RINGLAB_PRESET:-cpu}
tests=()
[ -e "build/$preset/CMakeCache.txt" ] || tests=(-DRINGLAB_TESTS=OFF)
experiments=(calibrate compare_layouts gradient_equivalence bf16_error predict validate)
cmake --preset "$preset" "${tests[@]}"
cmake --build --preset "$preset" --target "${experiments[@]}"

# 2. Every experiment answers its question on its default input.
mkdir -p "$out"
bin=build/$preset/experiments
run() {
  printf '\n== %s\n' "$1"
  local begin=$SECONDS
  "$bin/$@" --overwrite
  printf '(%d s)\n' $((SECONDS - begin))
}
run calibrate --output "$out/this_cpu.toml"
run compare_layouts --output "$out/compare_layouts.h5" --trace "$out/trace.json" \
  --machines "$out/this_cpu.toml" h200_nvswitch_copy_engine h200_nvswitch_nccl
# Nothing of what follows is timed: the longest figures are drawn with what it leaves of the processors.
python=/usr/bin/python3
if python3 -c 'import numpy, h5py, matplotlib' 2>/dev/null; then python=python3; fi
export MPLBACKEND=Agg
nice "$python" notebooks/timelines.py "$out" >"$out/timelines.log" 2>&1 &
drawing=$!
trap 'kill "$drawing" 2>/dev/null || true' EXIT
run gradient_equivalence --output "$out/gradient_equivalence.h5"
# Half the tokens of the record in experiments/results: a quarter of its time.
run bf16_error --tokens 1024 --output "$out/bf16_error.h5"
# What is predicted for a machine that is not here; what stragglers and noise cost; rings that were measured elsewhere, and
# those of other programs.
predictions=(predict jitter_{slow_gpu,slow_link,noise} predicted_{4xh200,2cpus,schedules,schedules_nccl} published)
experiments/record_predictions.sh --programs "$bin" --output "$out" "${predictions[@]}"

# 3. Somebody else's arithmetic agrees: NumPy recomputes one run from its saved tensors.
run gradient_equivalence --output "$out/saved.h5" --save-tensors "$out/tensors" \
  --masks causal --layouts zigzag --ranks 8 --schedules ring
"$python" experiments/check_tensors.py "$out"/tensors/causal_zigzag*.h5

# 4. Every notebook draws its figures from the records alone.
printf '\n== figures\n'
# One process for each processor; each says what it has drawn.
printf '%s\n' attention_maps balance bf16_error crossover gradient_equivalence |
  xargs --max-procs="$(nproc)" --replace "$python" notebooks/{}.py "$out"
"$python" notebooks/jitter.py "$out"/jitter_{slow_gpu,slow_link,noise}.h5
# What only GPUs can measure comes from the records that lie in the repository.
"$python" notebooks/throughput.py experiments/results/throughput_{2,4}xh100_schedules.h5 --figures "$out/figures"
"$python" notebooks/validation.py "$out"/{predicted_{4xh200,2cpus,schedules,schedules_nccl},published}.h5
wait "$drawing" || { cat "$out/timelines.log" >&2; exit 1; }
cat "$out/timelines.log"
rm "$out/timelines.log"
printf '\nRecords and figures are in %s\n' "$out"
