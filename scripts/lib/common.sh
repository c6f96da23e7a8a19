# Shared by all scripts here: paths, and functions that print messages.  Source this file, do not run it.
# It sets ROOT, STACK, VENV, CACHE, and defines step, note, die, stack_versions, stack_in_turn, tensorflow_includes.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
DEFAULT_STACK=2.21                      # its versions are in scripts/versions.txt; scripts/stacks has the differences of others
STACK="${HVD_SPARSE_STACK:-$DEFAULT_STACK}"
[ "$STACK" = "$DEFAULT_STACK" ] && VENV="$ROOT/.venv" || VENV="$ROOT/.venv-$STACK"
VENV="${HVD_SPARSE_VENV:-$VENV}"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/hvd-sparse"

if [ -t 1 ]; then BOLD=$'\e[1m' RED=$'\e[31m' PLAIN=$'\e[0m'; else BOLD='' RED='' PLAIN=''; fi

step() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN"; }
note() { printf '    %s\n' "$*"; }

# die WHAT REMEDY: print the error and what to do, and exit
die() {
    printf '%serror: %s%s\n' "$RED" "$1" "$PLAIN" >&2
    [ $# -lt 2 ] || printf '    what to do: %s\n' "$2" >&2
    exit 1
}

# stack_versions: print this stack's versions, those that differ from scripts/versions.txt first
stack_versions() {
    [ "$STACK" = "$DEFAULT_STACK" ] && cat "$ROOT/scripts/versions.txt" && return
    awk -F== 'FILENAME == ARGV[1] { changed[$1] = 1; print; next } !($1 in changed)' \
        "$ROOT/scripts/stacks/$STACK.txt" <(grep == "$ROOT/scripts/versions.txt")
}

stack_in_turn() { # stack_in_turn COUNT: print the stack with which CI tests commit number COUNT; every eighth commit gets the older one
    [ "$(($1 % 8))" = 7 ] && echo 2.18 || echo "$DEFAULT_STACK"
}

tensorflow_includes() { # from TensorFlow 2.20 on, print folders of headers that Horovod 0.28.1 includes and TensorFlow's flags lack
    local tensorflow
    tensorflow="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/tensorflow/include"
    [ -e "$tensorflow/tensorflow/compiler/xla/client/xla_builder.h" ] && return
    echo "$ROOT/scripts/stacks/include:$tensorflow/external/highwayhash:$tensorflow/external/farmhash_archive/src"
}

[ "$STACK" = "$DEFAULT_STACK" ] || [ -e "$ROOT/scripts/stacks/$STACK.txt" ] ||
    die "there is no stack '$STACK'" "HVD_SPARSE_STACK is TensorFlow's version: $DEFAULT_STACK or $(cd "$ROOT/scripts/stacks" && echo *.txt | sed 's/\.txt//g')"

export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ "${0##*/}" != launch ]; then       # scripts/launch leaves the settings of the user's program alone
    export TF_USE_LEGACY_KERAS=1        # Horovod's Keras wrapper supports only Keras 2
    export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
    export TF_ENABLE_ONEDNN_OPTS="${TF_ENABLE_ONEDNN_OPTS:-0}"
fi

# tools_environment: .venv-tools for scripts/docs and scripts/package, without frameworks; installed again when versions change
tools_environment() {
    VENV="${HVD_SPARSE_TOOLS_VENV:-$ROOT/.venv-tools}"
    local key
    key="$(cat "$ROOT/pyproject.toml" "$ROOT/scripts/versions.txt" | sha256sum | cut -c1-16)"
    if [ "$(cat "$VENV/.setup-key" 2>/dev/null)" != "$key" ]; then
        step "Environment: $VENV"
        [ -x "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV" ||
            die "could not create $VENV" "rm -rf '$VENV', and install python3-venv, or name an interpreter of 3.10 to 3.12: PYTHON=python3.11"
        "$VENV/bin/python" -m pip install --quiet --constraint "$ROOT/scripts/versions.txt" --editable "$ROOT[docs,release]" ||
            die "pip could not install hvd_sparse[docs,release]" "read what pip says above; to use another Python: rm -rf '$VENV', and name it, PYTHON=python3.11"
        echo "$key" >"$VENV/.setup-key"
    fi
    PATH="$VENV/bin:$PATH"
}
