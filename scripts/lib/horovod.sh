# The build of Horovod from its unmodified release, for the frameworks of an environment.
# Sourced, after common.sh; gives VERSIONS, WHOLE, run_logged, pinned, horovod_key, build_horovod.

VERSIONS="$VENV/versions.txt"       # what the stack pins, for pip
WHOLE=(HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1)

run_logged() { # run_logged LOG WHAT COMMAND...: quiet when it works, the end of the log when it does not
    local log="$1" what="$2" started=$SECONDS pid
    shift 2
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        [ -t 1 ] && printf '\r    %s ... %ds' "$what" $((SECONDS - started))
        sleep 1
    done
    [ -t 1 ] && printf '\r\e[K'
    if ! wait "$pid"; then
        tail -n 30 "$log" >&2
        return 1
    fi
    note "$what: done in $((SECONDS - started)) s"
}

pinned() { stack_versions | sed -n "s/^$1==//p"; }

horovod_key() { # everything that the compiled wheel depends on
    {
        grep -E '^(horovod|torch|tensorflow|numpy|setuptools)==' "$VERSIONS" | sort   # whichever stack is the default
        "$VENV/bin/python" -c 'import sys, platform; print(sys.version_info[:2], platform.machine(), platform.libc_ver())'
        "${HVD_SPARSE_CXX:-g++}" -dumpfullversion
        mpirun --version | head -n 1
        cat "$ROOT/scripts/lib/cxx20"
        [ -z "$(tensorflow_includes)" ] || find "$ROOT/scripts/stacks/include" -type f -exec cat {} +
    } | sha256sum | cut -c1-16
}

build_horovod() { # build_horovod FOLDER SWITCH...: a wheel of what the switches say, as HOROVOD_WITH_MPI=1
    local folder="$1" partial="$1.partial"
    shift
    rm -rf "$partial"
    note "compiling Horovod $(pinned horovod) (about 4 minutes on 2 cores; log: $CACHE/logs/horovod.log)"
    # no cache of pip's: it goes by name and version alone, and would hand over a wheel built for other frameworks
    run_logged "$CACHE/logs/horovod.log" "Horovod wheel" \
        env PATH="$VENV/bin:$PATH" CXX="$ROOT/scripts/lib/cxx20" MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" \
        CPLUS_INCLUDE_PATH="$(tensorflow_includes)${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}" \
        CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        HOROVOD_WITHOUT_MXNET=1 "$@" \
        "$VENV/bin/python" -m pip wheel --no-cache-dir --no-build-isolation --no-deps \
        --wheel-dir "$partial" "horovod==$(pinned horovod)" ||
        die "Horovod did not compile" "read $CACHE/logs/horovod.log; a compiler of g++ 11 or newer and MPI's headers are needed (HVD_SPARSE_CXX names another compiler)"
    rm -rf "$folder" && mv "$partial" "$folder"      # an interrupted build leaves no half wheel behind
}
