# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Read by the other scripts of this folder (bash).
# shellcheck shell=bash disable=SC2034
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf 'distx: %s\n' "$*"; }
fail() {
  printf 'distx: %s\n' "$*" >&2
  exit 1
}

# Packages that build the library's example programs and test programs.
build_packages=(g++ meson ninja-build pkg-config libopenmpi-dev openmpi-bin libboost-mpi-dev libeigen3-dev libcli11-dev
  libfmt-dev nlohmann-json3-dev zlib1g-dev libdeflate-dev doctest-dev)
# Further packages of the tests; a clang is added to these.
test_packages=(cmake cppcheck doxygen python3-venv libgloo-dev iproute2 mpich libmpich-dev)
clang_format_version=18.1.8
conan_version=2.34.0
clang_versions=(16 17 18 19 20 21)

clang_command() {
  local version
  for version in "${clang_versions[@]}"; do
    if command -v "clang++-$version"; then return 0; fi
  done
  return 1
}

# werror_of COMPILER: whether its warnings are errors. A newer compiler may warn of more than the ones distx is developed with.
werror_of() {
  case $1-$("$1" -dumpversion) in
    *clang++*-16.*) echo true ;;
    *clang++*) echo false ;;
    *g++*-12 | *g++*-12.*) echo true ;;
    *) echo false ;;
  esac
}

are_installed() {
  local package
  for package in "$@"; do is_installed "$package" || return 1; done
}
is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Says what the command of apt-get printed only where it failed.
apt_get() {
  local log
  log=$(mktemp)
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# install_missing PACKAGE…: installs those that are not there. `clang` stands for the first clang that will do.
install_missing() {
  local package beside clang missing=() wanted=("$@")
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    local program absent=()
    for program in g++ meson ninja pkg-config mpirun; do
      command -v "$program" >/dev/null || absent+=("$program")
    done
    [ ${#absent[@]} -eq 0 ] || fail "there is no ${absent[*]}, and only Debian's and Ubuntu's packages are known here:" \
      "install what Debian calls ${wanted[*]}, then run this again."
    return 0
  fi
  for package in "${wanted[@]}"; do
    if [ "$package" = clang ]; then
      if ! clang=$(clang_command); then
        missing+=(clang)
        continue
      fi
      for beside in $(beside_clang "${clang##*-}"); do is_installed "$beside" || missing+=("$beside"); done
      continue
    fi
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    fail "these packages are missing, and installing them needs root or sudo: ${missing[*]}."
  fi
  say "fetching the list of packages (apt-get update)"
  apt_get update || say "the list of packages could not be brought up to date: trying with the one that is here"
  for package in "${!missing[@]}"; do
    if [ "${missing[package]}" = clang ]; then
      clang=$(clang_package)
      missing[package]=$clang
      # shellcheck disable=SC2207
      missing+=($(beside_clang "${clang##*-}"))
    fi
  done
  say "about to install: ${missing[*]}"
  apt_get install --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install these packages: ${missing[*]}."
}

# from_pypi PROGRAM VERSION: installs it into build/PROGRAM/ unless this version is here; without it, tests that need it are skipped.
from_pypi() {
  local folder=build/$1 log
  if [ -x "$folder/bin/$1" ]; then return 0; fi
  case "$("$1" --version 2>/dev/null) " in *" $2 "*) return 0 ;; esac
  mkdir -p build
  log=$(mktemp)
  if ! { python3 -m venv "$folder" && "$folder/bin/pip" install -q "$1==$2"; } >"$log" 2>&1; then
    say "$1 $2 cannot be installed ($(tail -n 1 "$log"))"
    rm -rf "$folder"
  fi
  rm -f "$log"
}

# PyPI's torch is linked with CUDA's libraries, which a CPU needs as well: 3 GB to download, 5 GB on the disk.
torch_packages=(torch==2.15.0 transformers==5.24.0 safetensors numpy)
torch_folder=$root/build/torch
torch_installer=

# Starts to install them into build/torch/, in the background.
start_torch() {
  local free
  if python3 -c 'from importlib.metadata import version; version("torch"), version("transformers")' 2>/dev/null; then return 0; fi
  if [ "$(cat "$torch_folder/installed" 2>/dev/null)" = "${torch_packages[*]}" ]; then return 0; fi
  mkdir -p build
  free=$(df --output=avail -k build | tail -n 1)
  if [ "$free" -lt 10000000 ]; then
    say "PyPI's torch needs 10 GB of disk space to be installed, and $((free / 1000000)) GB are free"
    return 0
  fi
  say "installing ${torch_packages[*]} into build/torch (3 GB to download)"
  rm -rf "$torch_folder"
  # shellcheck disable=SC2016
  TMPDIR=$root/build timeout -k 10 1200 bash -c 'python3 -m venv "$0" && "$0/bin/pip" install -q --no-cache-dir --no-compile "$@" && echo "$*" >"$0/installed"' \
    "$torch_folder" "${torch_packages[@]}" >build/torch.log 2>&1 </dev/null &
  torch_installer=$!
  trap 'kill "$torch_installer" 2>/dev/null' EXIT
}

# Waits for the installation, and lets tests find what is installed; without it they are skipped.
finish_torch() {
  if [ -n "$torch_installer" ]; then
    say "waiting for the installation of PyPI's torch"
    wait "$torch_installer" || say "PyPI's torch cannot be installed ($(tail -n 1 build/torch.log))"
    torch_installer=
    trap - EXIT
  fi
  if [ -f "$torch_folder/installed" ] && [[ $PATH != *:$torch_folder/bin ]]; then
    export PATH=$PATH:$torch_folder/bin PYTHONPATH
    PYTHONPATH=$(echo "$torch_folder"/lib/python3*/site-packages)${PYTHONPATH:+:$PYTHONPATH}
  fi
}

# Prints the folder of LibTorch, which PyPI's torch contains, if it is installed.
libtorch() {
  python3 -c 'from importlib.util import find_spec; print(find_spec("torch").submodule_search_locations[0])' 2>/dev/null
}

# The packages that go with a version of clang: the runtime of its sanitizers, and clang-tidy.
beside_clang() { echo "libclang-rt-$1-dev clang-tidy-$1"; }

clang_package() {
  local version
  for version in "${clang_versions[@]}"; do
    if apt-cache show "clang-$version" >/dev/null 2>&1; then
      echo "clang-$version"
      return 0
    fi
  done
  fail "this distribution has no clang 16 or newer, which the tests compile everything with once more."
}

# The oldest versions that will do, checked once all is installed.
check_versions() {
  local have
  have=$(meson --version)
  [ "$(printf '%s\n' 1.0.1 "$have" | sort -V | head -n 1)" = 1.0.1 ] ||
    fail "Meson is version $have here, and 1.0.1 is the oldest that will do (pip install meson has a newer one)."
  have=$(g++ -dumpversion)
  [ "${have%%.*}" -ge 12 ] || fail "g++ is version $have here, and 12 is the oldest that will do."
}

# The options that make the absence of a module an error if the packages that it needs are installed.
demanded_options() {
  local option packages
  while read -r option packages; do
    # shellcheck disable=SC2086
    if are_installed $packages; then echo "-D$option=enabled"; fi
  done <<<"mpi libopenmpi-dev libboost-mpi-dev
gloo libgloo-dev
eigen libeigen3-dev
checkpoint nlohmann-json3-dev libdeflate-dev"
}

# configure FOLDER OPTION…: makes a build folder, or brings an old one up to date. If packages have been installed since it
# looked for them, it looks again, for all: Meson remembers also what a compiler did not find. Objects are kept.
package_status=/var/lib/dpkg/status
configure() {
  local folder=$1 log kept=()
  shift
  log=$(mktemp)
  if {
    if [ ! -f "$folder/build.ninja" ]; then
      meson setup "$folder" "$@" && touch "$folder/.looked_for_packages"
    elif [ "$package_status" -nt "$folder/.looked_for_packages" ]; then
      mapfile -t kept < <(sed -n '/^\[options\]$/,/^\[properties\]$/s/^\([^ =]*\) = /-D\1=/p' "$folder/meson-private/cmd_line.txt")
      rm -f "$folder/meson-private/coredata.dat"
      meson setup "$folder" "${kept[@]}" "$@" && touch "$folder/.looked_for_packages"
    else
      # An older folder may know fewer options.
      meson configure "$folder" "$@" || meson setup --reconfigure "$folder" "$@"
    fi
  } >"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
}

# As many compilers at once as there are cores, and 1.5 GB of memory for each.
compilers_at_once() {
  local jobs memory
  jobs=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null || true)
  if [ -n "$memory" ] && [ "$memory" -lt "$jobs" ]; then jobs=$((memory > 0 ? memory : 1)); fi
  echo "$jobs"
}

# build FOLDER TARGET…
build() {
  local folder=$1
  shift
  ninja -C "$folder" -j "$(compilers_at_once)" "$@" </dev/null
}
