# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of this folder: steps that say what they do and how long it took.
# shellcheck shell=bash

# say TEXT...: one line to the user.
say() { printf '%s\n' "$*"; }

# die TEXT...: the reason, then exit status 1.
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# usage_of FILE: the comment at the head of a script, without the SPDX line.
usage_of() { awk 'NR > 2 && !/^#/ { exit } NR > 2 { sub(/^# ?/, ""); print }' "$1"; }

# step TITLE COMMAND...: runs the command, prints the title before and the time after.
step() {
  local title=$1 start=$SECONDS
  shift
  say "== $title"
  "$@"
  say "   done in $((SECONDS - start)) s"
}

# use_python_with_numpy: Debian's python3, for which tools/setup installs numpy, where another one in PATH stands before it without.
use_python_with_numpy() {
  if ! python3 -c 'import numpy' 2> /dev/null && /usr/bin/python3 -c 'import numpy' 2> /dev/null; then PATH=/usr/bin:$PATH; fi
}

# have_gpu: is an NVIDIA GPU usable here?
have_gpu() {
  if command -v nvidia-smi > /dev/null 2>&1; then
    [[ $(nvidia-smi -L 2> /dev/null) == GPU* ]]
  else
    [[ -e /dev/nvidia0 ]]
  fi
}

# fetched_cuda: the folder of CUDA libraries that tools/setup --cuda fetched; fails if there is none.
fetched_cuda() {
  local folder
  for folder in "${XDG_CACHE_HOME:-$HOME/.cache}"/tfcc/cuda/lib/python3*/site-packages/nvidia/cu[0-9]*; do
    [[ -e $folder/include/cuda.h ]] && printf '%s\n' "$folder" && return 0
  done
  return 1
}

# use_fetched_cuda: lets programs started from here find those libraries.
use_fetched_cuda() {
  local folder
  folder=$(fetched_cuda) || return 0
  export CUDA_HOME=${CUDA_HOME:-$folder}
  export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
