#!/usr/bin/env bash
# no_serialised_products.sh COMPILER ARGUMENTS...: runs the compiler and fails if ptxas says that it waits for every
# tensor-core product before it goes on (messages C7510 to C7519), or leaves registers as they are (C7508): such a kernel
# is right and several times slower, and small changes to a kernel at its last register bring it about.
messages=$("$@" 2>&1)
status=$?
[ -z "$messages" ] || printf '%s\n' "$messages" >&2
if [ $status -eq 0 ] && grep -q '(C75[01][0-9])' <<<"$messages"; then
  echo "error: the compiler serialises products of this kernel, see above; gpu/kernels/README.md says what brings it about" >&2
  exit 1
fi
exit $status
