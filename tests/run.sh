#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests that this machine can run. Any other arguments go to ctest:
#
#   tests/run.sh                     everything
#   tests/run.sh -L layouts          the tests of one folder
#   tests/run.sh --asan              everything under the address and undefined-behaviour sanitizers instead
#   tests/run.sh --tsan              what has threads for ranks under the thread sanitizer instead
#   tests/run.sh --preset gpu        with another preset of CMakePresets.json than cpu
#   tests/run.sh --target unit_tests -LE 'cli|mpi'      builds and runs all but the tests of whole programs
#   tests/run.sh --python            and those of the Python package, for which it installs PyTorch into build/torch
set -euo pipefail
cd "$(dirname "$0")/.."

preset=cpu
target=all
arguments=()
python=()
while [ $# -gt 0 ]; do
  case $1 in
    --asan) preset=asan ;;
    --tsan) preset=tsan; arguments+=(-L "cpu|processes|gpu_host") ;;
    --preset) preset=${2:?tests/run.sh: --preset needs a name}; shift ;;
    --target) target=${2:?tests/run.sh: --target needs a name}; shift ;;
    --python) python=(--install) ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# Tests run in folders of their own, on the data of this checkout.
unset RINGLAB_DATA

cmake/install_packages.sh
cmake --preset "$preset" -DRINGLAB_TESTS=ON
cmake --build --preset "$preset" --target "$target"
# Tests that measure time or start many ranks say so themselves (PROCESSORS, RUN_SERIAL).
ctest --preset "$preset" --parallel "$(nproc)" "${arguments[@]}"
# What is left out under the sanitizers, as the tests say it (tests/thinning.hpp).
sed -n 's/^[a-z_/]*: [0-9]* of [0-9]* cases ran$/thinned: &/p' "build/$preset/Testing/Temporary/LastTest.log"
# Not where a part was asked for, nor under the sanitizers, which Python does not load.
if [ ${#python[@]} -gt 0 ] || { [ ${#arguments[@]} = 0 ] && [[ $preset != *san ]]; }; then
  python/tests/run.sh "${python[@]}" "build/$preset"
fi
