#!/usr/bin/env bash
# Installs what Ringlab builds and draws with, where it is missing: Debian 12 or 13, Ubuntu 24.04 and their relatives.
# Does nothing, at once, when everything is there. On other systems it names what is needed and leaves it to you.
#
#   cmake/install_packages.sh [--cuda]
set -euo pipefail

usage() { sed -n '2,5s/^# \{0,1\}//p' "$0"; }

cuda=0
for argument in "$@"; do
  case $argument in
    --cuda) cuda=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install_packages.sh: unknown option '$argument'; known: --cuda, --help" >&2; exit 2 ;;
  esac
done

has() { command -v "$1" >/dev/null 2>&1; }

cmake_is_new_enough() {
  has cmake || return 1
  local version oldest=3.25
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  [ "$(printf '%s\n' "$oldest" "$version" | sort -V | head -n 1)" = "$oldest" ]
}

some_python_draws() {
  local python
  for python in python3 /usr/bin/python3; do
    has "$python" && "$python" -c \
      'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("numpy", "h5py", "matplotlib"))))' && return
  done
  return 1
}

# A tool counts wherever it comes from; libraries are those of the distribution. OpenBLAS comes in several flavours, of
# which the one with threads of its own has the highest priority once it is installed.
wanted=(
  libboost-dev libboost-program-options-dev libboost-test-dev
  libfmt-dev libhdf5-dev liblapacke-dev libopenblas-dev libopenblas-pthread-dev libopenmpi-dev libtomlplusplus-dev
  libssl-dev libxsimd-dev libxtensor-dev nlohmann-json3-dev openmpi-bin
)
cmake_is_new_enough || wanted+=(cmake)
has ninja || wanted+=(ninja-build)
has g++ || wanted+=(g++)
has ccache || wanted+=(ccache)
some_python_draws || wanted+=(python3 python3-numpy python3-h5py python3-matplotlib)

if [ "$cuda" = 1 ]; then
  if has nvcc || [ -x /usr/local/cuda/bin/nvcc ]; then
    echo "CUDA toolkit: found"
  else
    echo "CUDA toolkit: not found. It is not installed from here: see https://developer.nvidia.com/cuda-downloads"
  fi
fi

if ! has dpkg-query || ! has apt-get; then
  echo "install_packages.sh: no apt-get on this system, so nothing was installed. Needed, by their Debian names:" \
    "${wanted[*]}" >&2
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! has sudo; then
    echo "install_packages.sh: not root and no sudo here. As root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }
if ! apt update || ! apt install --yes --no-install-recommends "${missing[@]}" >/dev/null; then
  echo "install_packages.sh: apt-get could not install ${missing[*]}; what it says is above" >&2
  exit 1
fi

if [[ " ${missing[*]} " == *" cmake "* ]] && ! cmake_is_new_enough; then
  echo "install_packages.sh: cmake here is $(cmake --version | sed -n '1s/[^0-9]*//p'); Ringlab needs 3.25 or newer" >&2
  exit 1
fi
