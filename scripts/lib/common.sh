# What every script here shares: where things are, and how to say what is being done.
# Sourced, never run.  Sets ROOT, STACK, VENV, CACHE; gives step, note, die, stack_versions, stack_in_turn, tensorflow_includes.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
DEFAULT_STACK=2.21                      # scripts/versions.txt; another has its differences in scripts/stacks
STACK="${HVD_SPARSE_STACK:-$DEFAULT_STACK}"
[ "$STACK" = "$DEFAULT_STACK" ] && VENV="$ROOT/.venv" || VENV="$ROOT/.venv-$STACK"
VENV="${HVD_SPARSE_VENV:-$VENV}"
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

# stack_versions: scripts/versions.txt as this stack has it, its differences first
stack_versions() {
    [ "$STACK" = "$DEFAULT_STACK" ] && cat "$ROOT/scripts/versions.txt" && return
    awk -F== 'FILENAME == ARGV[1] { changed[$1] = 1; print; next } !($1 in changed)' \
        "$ROOT/scripts/stacks/$STACK.txt" <(grep == "$ROOT/scripts/versions.txt")
}

stack_in_turn() { # stack_in_turn COUNT: the one stack that CI takes at the commit of that number; every eighth has the older one
    [ "$(($1 % 8))" = 7 ] && echo 2.18 || echo "$DEFAULT_STACK"
}

tensorflow_includes() { # what TensorFlow's own flags do not name and Horovod 0.28.1 includes, from 2.20 on
    local tensorflow
    tensorflow="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/tensorflow/include"
    [ -e "$tensorflow/tensorflow/compiler/xla/client/xla_builder.h" ] && return
    echo "$ROOT/scripts/stacks/include:$tensorflow/external/highwayhash:$tensorflow/external/farmhash_archive/src"
}

[ "$STACK" = "$DEFAULT_STACK" ] || [ -e "$ROOT/scripts/stacks/$STACK.txt" ] ||
    die "there is no stack '$STACK'" "HVD_SPARSE_STACK is TensorFlow's version: $DEFAULT_STACK or $(cd "$ROOT/scripts/stacks" && echo *.txt | sed 's/\.txt//g')"

# The variables under which tests, demo and examples run on a shared machine.
export TF_USE_LEGACY_KERAS=1        # Horovod's Keras wrapper knows Keras 2 only
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
export TF_ENABLE_ONEDNN_OPTS="${TF_ENABLE_ONEDNN_OPTS:-0}"
export PIP_DISABLE_PIP_VERSION_CHECK=1

# tools_environment: what scripts/docs and scripts/package need, in .venv-tools; no framework, again whenever pins change
tools_environment() {
    VENV="${HVD_SPARSE_TOOLS_VENV:-$ROOT/.venv-tools}"
    local key
    key="$(cat "$ROOT/pyproject.toml" "$ROOT/scripts/versions.txt" | sha256sum | cut -c1-16)"
    if [ "$(cat "$VENV/.setup-key" 2>/dev/null)" != "$key" ]; then
        step "Environment: $VENV"
        [ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV" ||
            die "could not create $VENV" "install python3-venv, or name an interpreter of 3.10 to 3.12: PYTHON=python3.11"
        "$VENV/bin/python" -m pip install --quiet --constraint "$ROOT/scripts/versions.txt" --editable "$ROOT[docs,release]" ||
            die "pip could not install hvd_sparse[docs,release]" "read what pip says above"
        echo "$key" >"$VENV/.setup-key"
    fi
    PATH="$VENV/bin:$PATH"
}
