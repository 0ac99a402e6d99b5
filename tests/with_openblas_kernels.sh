#!/usr/bin/env bash
# with_openblas_kernels.sh KERNELS TEST_PROGRAM ARGUMENT...: runs a test with OpenBLAS's kernels for another kind of
# processor. Their sums differ in the last bit, and no result that is given to a user may depend on it. Says in a line
# what is missing, and ends with status 77, where this processor cannot run them or this OpenBLAS has none.
set -euo pipefail
kernels=$1
shift

case $kernels in
  Prescott) needed=(pni) ;; # SSE3
  Haswell | Zen) needed=(avx2 fma) ;;
  SkylakeX) needed=(avx512f avx512cd avx512bw avx512dq avx512vl) ;;
  *) echo "with_openblas_kernels.sh: kernels are Prescott, Haswell, Zen or SkylakeX, not '$kernels'" >&2; exit 2 ;;
esac
flags=" $(sed -n '/^flags/{s/.*://p;q}' /proc/cpuinfo) "
for flag in "${needed[@]}"; do
  if [[ $flags != *" $flag "* ]]; then
    echo "skipped: OpenBLAS's $kernels kernels need $flag, which this processor does not have"
    exit 77
  fi
done

export OPENBLAS_CORETYPE=$kernels
if [[ $(OPENBLAS_VERBOSE=2 "$1" --version 2>&1) != *"Core: $kernels"* ]]; then
  echo "skipped: this OpenBLAS has no $kernels kernels"
  exit 77
fi
exec "$@"
