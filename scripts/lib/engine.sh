# A Docker engine for the tests.  If none answers, one is installed, started on its own socket, and stopped at the end.
# Source this file after common.sh.  It sets DOCKER, and defines limited, engine_up, engine_down, base_image.

ENGINE_DIR="$CACHE/docker/engine"      # images are kept here for the next run
ENGINE_RUN=""                          # socket, process and logs of an engine that we started

limited() { # limited SECONDS COMMAND...: in the background, because a shell handles signals while it waits, but not while it runs a command
    timeout -k 5 "$@" <&0 &
    wait "$!"
}

engine_answers() { timeout -k 5 20 "$DOCKER" info >/dev/null 2>&1; }

find_docker() {
    DOCKER="$(command -v docker || true)"
    [ -n "$DOCKER" ] && engine_answers
}

engine_up() { # return 0 if an engine answers; otherwise print the reason and return 1
    if find_docker; then
        note "engine: the one that runs here"
        return 0
    fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        note "no Docker engine answers, and without root and apt-get none can be installed"
        return 1
    fi
    install_engine && start_engine
}

install_engine() {
    local missing=""
    command -v dockerd >/dev/null 2>&1 || missing+=" docker.io"
    command -v debootstrap >/dev/null 2>&1 || missing+=" debootstrap"
    command -v iptables >/dev/null 2>&1 || missing+=" iptables"
    command -v docker-compose >/dev/null 2>&1 || missing+=" docker-compose"
    [ -n "$missing" ] || return 0
    mkdir -p "$CACHE/logs"
    # shellcheck disable=SC2086
    if ! DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 limited 600 bash -c "apt-get update && apt-get install -y --no-install-recommends $missing" \
        >"$CACHE/logs/engine-apt.log" 2>&1; then
        note "apt-get could not install$missing: see $CACHE/logs/engine-apt.log"
        return 1
    fi
    note "installed$missing"
}

start_engine() {
    mkdir -p "$ENGINE_DIR"
    exec 9>"$ENGINE_DIR/../engine.lock"
    if ! flock --nonblock 9; then
        note "another run has its engine up, and both would use $ENGINE_DIR: wait for its end, or set XDG_CACHE_HOME"
        return 1
    fi
    local left
    for left in /run/hvd-sparse-engine.*/started; do # nobody holds the lock, so this run was killed
        [ -e "$left" ] && [ "$(cat "$left")" = "$ENGINE_DIR" ] || continue
        note "stopping the engine that a killed run left behind"
        ENGINE_RUN="$(dirname "$left")" DOCKER=/usr/bin/docker
        DOCKER_HOST="unix://$ENGINE_RUN/socket" engine_down
    done
    ENGINE_RUN="$(mktemp -d /run/hvd-sparse-engine.XXXXXX)"
    cat /proc/sys/net/ipv4/ip_forward >"$ENGINE_RUN/forward"
    iptables-save >"$ENGINE_RUN/firewall" 2>/dev/null || true
    echo "$ENGINE_DIR" >"$ENGINE_RUN/started"
    # in a session of its own, because Ctrl-C must not end the engine before its networks are removed
    setsid dockerd --storage-driver=overlay2 --data-root "$ENGINE_DIR" --exec-root "$ENGINE_RUN/exec" --bridge none \
        --pidfile "$ENGINE_RUN/pid" --host "unix://$ENGINE_RUN/socket" >"$ENGINE_RUN/log" 2>&1 9>&- &
    local attempt engine=$!
    disown "$engine" # so that it is not among the jobs that clean_up ends
    export DOCKER_HOST="unix://$ENGINE_RUN/socket"
    DOCKER=/usr/bin/docker
    for attempt in $(seq 120); do
        engine_answers && { note "engine: started for this run (overlay2)"; return 0; }
        [ -e "/proc/$engine" ] || break
        sleep 0.5
    done
    note "the engine did not start: $(tail -n 3 "$ENGINE_RUN/log")"
    return 1
}

engine_down() { # stop the engine, but only if engine_up started it
    [ -n "$ENGINE_RUN" ] || return 0
    local pid
    # remove containers and networks of an interrupted run, because networks would stay on this machine after the engine's end
    timeout 20 "$DOCKER" ps -aq | timeout -k 5 60 xargs -r "$DOCKER" rm --force >/dev/null 2>&1 || true
    timeout -k 5 30 "$DOCKER" network prune --force >/dev/null 2>&1 || true
    pid="$(cat "$ENGINE_RUN/pid" 2>/dev/null || true)"
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 60); do [ -e "/proc/$pid" ] || break; sleep 0.5; done
        [ -e "/proc/$pid" ] && kill -KILL "$pid"
    fi
    restore_firewall
    cat "$ENGINE_RUN/forward" >/proc/sys/net/ipv4/ip_forward
    umount "$ENGINE_RUN"/exec/netns/* 2>/dev/null || true
    rm -rf "$ENGINE_RUN"
    ENGINE_RUN=""
}

restore_firewall() { # to its state before the engine; tables that did not exist then are emptied
    local table
    for table in filter nat; do
        grep -q "^\*$table" "$ENGINE_RUN/firewall" && continue
        [ "$table" != filter ] || iptables -P FORWARD ACCEPT 2>/dev/null || true
        iptables -t "$table" -F 2>/dev/null || true
        iptables -t "$table" -X 2>/dev/null || true
    done
    iptables-restore <"$ENGINE_RUN/firewall" 2>/dev/null || true
}

base_image() { # base_image NAME: make an image of Debian 12 with debootstrap, unless the image exists
    "$DOCKER" image inspect "$1" >/dev/null 2>&1 && return 0
    local folder="$CACHE/docker/base"
    rm -rf "$folder"
    mkdir -p "$folder"
    limited 900 debootstrap --variant=minbase --include=ca-certificates bookworm "$folder" >"$CACHE/logs/debootstrap.log" 2>&1 || return 1
    tar -C "$folder" -c . | "$DOCKER" import - "$1" >/dev/null
    rm -rf "$folder"
}
