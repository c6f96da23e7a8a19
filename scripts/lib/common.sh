# What every script here shares: where things are, and how to say what is being done.
# Sourced, never run.  Sets ROOT, VENV, CACHE; gives step, note, die.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
VENV="${HVD_SPARSE_VENV:-$ROOT/.venv}"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/hvd-sparse"

if [ -t 1 ]; then BOLD=$'\e[1m' RED=$'\e[31m' PLAIN=$'\e[0m'; else BOLD='' RED='' PLAIN=''; fi

step() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN"; }
note() { printf '    %s\n' "$*"; }

# die WHAT REMEDY: every failure says what to do about it
die() {
    printf '%serror: %s%s\n' "$RED" "$1" "$PLAIN" >&2
    [ $# -lt 2 ] || printf '    what to do: %s\n' "$2" >&2
    exit 1
}

# The variables under which tests, demo and examples run on a shared machine.
export TF_USE_LEGACY_KERAS=1        # Horovod's Keras wrapper knows Keras 2 only
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
export TF_ENABLE_ONEDNN_OPTS="${TF_ENABLE_ONEDNN_OPTS:-0}"
export PIP_DISABLE_PIP_VERSION_CHECK=1
