#!/usr/bin/env bash
# The tests of the Python package, on CPU processes; and on GPUs, where there is one and BUILD has the CUDA backend:
#
#   python/tests/run.sh BUILD              with the first Python that has PyTorch 2.6 or newer and pytest, if one is there
#   python/tests/run.sh --install [BUILD]  fills an environment of its own from PyPI first, build/torch: 100 s, 5 GB
#
# BUILD is a build of the tree, as build/cpu, that the package takes its library and programs from. Python is looked for
# in RINGLAB_PYTHON, build/torch and on the PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."

environment=$PWD/build/torch

has_torch() {
  "$1" -c 'import pytest, torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)' >/dev/null 2>&1
}

if [ "${1:-}" = --install ]; then
  shift
  if ! has_torch "$environment/bin/python"; then
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet 'torch>=2.6' 'transformers>=5' h5py numpy pytest 'scikit-build-core>=0.10'
  fi
  [ $# -gt 0 ] || exit 0
fi
case ${1:-} in
  "" | -*) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
build=$(realpath "$1")

python=
for candidate in "${RINGLAB_PYTHON:-}" "$environment/bin/python" python3 /usr/bin/python3; do
  if [ -n "$candidate" ] && has_torch "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "Python package: skipped, as no Python with PyTorch 2.6 or newer and pytest is here; tests/run.sh --python" \
    "installs them into build/torch (100 s, 5 GB)"
  exit 0
fi

libraries=(ringlab_cpu)
! grep -q '^RINGLAB_CUDA:BOOL=ON' "$build/CMakeCache.txt" || libraries+=(ringlab_cuda)
cmake --build "$build" --target "${libraries[@]}"
if [ "$python" = "$environment/bin/python" ]; then
  # As a user installs it; what is installed is tested from where the tree's own folder is not in sight.
  RINGLAB_BUILD=$build "$python" -m pip install --quiet --force-reinstall --no-deps \
    --no-build-isolation ./python
else
  export PYTHONPATH=$PWD/python RINGLAB_LIBRARY=$build/python/library/libringlab_cpu.so
  export RINGLAB_CUDA_LIBRARY=$build/python/library/libringlab_cuda.so
fi
[ ! -x "$build/experiments/advise" ] || export RINGLAB_PROGRAMS=$build/experiments
export OMP_NUM_THREADS=1
pytest=(pytest -p no:cacheprovider -q --durations=5)
"$python" -m torch.distributed.run --nproc_per_node=2 --local-ranks-filter=0 --module "${pytest[@]}" python/tests/ranks
"$python" -m "${pytest[@]}" python/tests/alone
