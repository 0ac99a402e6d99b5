#!/usr/bin/env bash
# no_serialised_products.sh COMPILER ARGUMENTS...: runs the compiler, and fails if ptxas says that a kernel waits for each
# tensor-core product before it goes on (messages C7510 to C7519), or that it ignores a change of the number of registers
# (C7508). Such a kernel gives right results but is several times slower. A small change can cause this in a kernel that
# uses almost all registers.
messages=$("$@" 2>&1)
status=$?
[ -z "$messages" ] || printf '%s\n' "$messages" >&2
if [ $status -eq 0 ] && grep -q '(C75[01][0-9])' <<<"$messages"; then
  echo "error: the compiler serialises products of this kernel, see above; gpu/kernels/README.md says what brings it about" >&2
  exit 1
fi
exit $status
