# The cases of scripts/docker-test on a cluster of containers, with one function for each kind of case.
# Source this file after engine.sh.  It needs WORK and SIZE.  Every wait has a time limit.

TRAIN_S=300 START_S=150 END_S=90        # time limits of a training, of its first steps, of its end after a fault
SILENCE_S=20                            # time after which an elastic run gives up a host; a new host must start faster

CASES=(
    "torch gloo" "torch mpi" "tensorflow gloo" "tensorflow mpi" "digits gloo"
    "stop gloo" "stop mpi" "kill gloo" "kill mpi" "pause gloo" "pause mpi" "cut gloo" "cut mpi"
    "elastic stop" "elastic kill" "elastic pause" "elastic cut" "elastic add"
)

cluster() { "$ROOT/docker/cluster" "$@"; }
seconds_since() { awk -v start="$1" -v now="$EPOCHREALTIME" 'BEGIN { printf "%.1f", now - start }'; }
last_host() { cluster containers | tail -n 1; }

fresh_cluster() { # start new containers, and copy the test programs to all of them
    cluster down >/dev/null 2>&1 || true
    limited 90 "$ROOT/docker/cluster" up "$SIZE" >"$WORK/up.log" 2>&1 || { cat "$WORK/up.log"; return 1; }
    ready_hosts
}

ready_hosts() {
    local container part
    for container in $(cluster containers); do
        for part in frontends/. docker/. harness.py; do
            "$DOCKER" cp "$ROOT/tests/$part" "$container:/hvd-sparse/tests" >/dev/null
        done
        for _ in $(seq 100); do # wait until the ssh server answers
            "$DOCKER" exec "$container" sh -c 'ss -ltn | grep -q :22' 2>/dev/null && break
            sleep 0.1
        done
    done
}

launch() { # launch LIMIT_S CONTROLLER PROGRAM...: run a program on all hosts, with one rank on each
    local limit_s="$1" controller="$2"
    shift 2
    # waiting ranks must yield, because all containers share this machine's cores, but do not know this
    limited "$limit_s" "$ROOT/docker/cluster" run sh -c \
        'exec env HOROVOD_GLOO_TIMEOUT_SECONDS=5 OMPI_MCA_mpi_yield_when_idle=1 scripts/launch -H "$HOSTS" --controller "$0" -- "$@"' \
        "$controller" python "$@"
}

launch_elastic() { # on the hosts of the file /cluster/hosts, which a discovery script reads every second
    cluster run sh -c 'echo "$HOSTS" | tr , "\n" >/cluster/hosts
        printf "#!/bin/sh\ncat /cluster/hosts\n" >/cluster/discover && chmod 755 /cluster/discover'
    limited $((START_S + 2 * END_S)) "$ROOT/docker/cluster" run horovodrun --gloo -np "$SIZE" --min-np 2 --max-np 8 \
        --host-discovery-script /cluster/discover --network-interfaces eth0 --gloo-timeout-seconds "$SILENCE_S" \
        python tests/elastic.py torch until /cluster/over
}

await() { # await PATTERN LIMIT_S PROCESS LOG: wait until the log has the pattern; fail if the process or the time ends first
    local started=$SECONDS is_over=0
    while :; do
        [ -e "/proc/$3" ] && [ $((SECONDS - started)) -lt "$2" ] || is_over=1
        ! grep -Eq "$1" "$4" || return 0
        [ "$is_over" = 0 ] || break
        sleep 0.1
    done
    tail -n 60 "$4"
    echo "no '$1' within $((SECONDS - started)) s"
    return 1
}

await_end() { # await_end LIMIT_S PROCESS LOG: wait for the end of the process
    local started=$SECONDS
    while [ -e "/proc/$2" ]; do
        if [ $((SECONDS - started)) -ge "$1" ]; then
            tail -n 60 "$3"
            echo "still running after $1 s"
            return 1
        fi
        sleep 0.1
    done
}

train() { # train CONTROLLER FRAMEWORK: train with every exchange; each rank must have written its log
    local rank=0 container
    launch "$TRAIN_S" "$1" tests/exchanges.py "$2" || return 1
    for container in $(cluster containers); do # the log is on the first host under Gloo, and on the rank's host under MPI
        [ "$1" = mpi ] || container="$(cluster containers | head -n 1)"
        "$DOCKER" exec "$container" grep -rq "rank $rank is done" logs --include=stdout ||
            { echo "no log of rank $rank on host ${container:0:12}"; return 1; }
        rank=$((rank + 1))
    done
}
case_torch() { train "$1" torch; }
case_tensorflow() { train "$1" tensorflow; }

commands_of_page() { # print the documentation's commands for a cluster of containers
    PYTHONPATH="$ROOT/tests" "$VENV/bin/python" -c 'from blocks import blocks_for
print(*[each.text for each in blocks_for("docker")], sep="\n")'
}

case_digits() { # run the documentation's commands, which are for four hosts, with its train.py
    local container
    commands_of_page >"$WORK/page" && [ -s "$WORK/page" ] || return 1
    [ "$SIZE" = 4 ] || { limited 60 "$ROOT/docker/cluster" up 4 2>&1 && ready_hosts; } || return 1
    for container in $(cluster containers); do
        "$DOCKER" cp "$ROOT/tests/train_as_documented.py" "$container:/hvd-sparse/train.py" >/dev/null || return 1
    done
    limited "$TRAIN_S" env -C "$ROOT" bash -ex "$WORK/page" >"$WORK/digits" 2>&1 || { cat "$WORK/digits"; return 1; }
    cat "$WORK/digits"
    grep -q "rank 3 of 4 has trained 3 steps" "$WORK/digits" || return 1
    grep -Eq 'test accuracy.*9[0-9]\.[0-9]+ ?%|accuracy 0\.9' "$WORK/digits"
}

befall() { # befall WHAT: stop, kill, pause or cut off the last host, or add a host
    local victim
    victim="$(last_host)"
    case "$1" in
        stop) "$DOCKER" stop --time 1 "$victim" ;;
        kill) "$DOCKER" kill "$victim" ;;
        pause) "$DOCKER" pause "$victim" ;;
        cut) "$DOCKER" network disconnect "${HVD_SPARSE_CLUSTER}_wire" "$victim" ;;
        add)
            limited 60 "$ROOT/docker/cluster" up $((SIZE + 1)) 2>&1 && ready_hosts
            cluster run sh -c 'echo "$HOSTS" | tr , "\n" >/cluster/hosts'
            ;;
    esac
}

ERRORS='HorovodInternalError|ExchangeTimeout|lost communication|unable to reliably start|[Ee]xit(ed)?.*(code|status|signal)'

fault() { # fault WHAT CONTROLLER: if a run that is not elastic loses its last host, it must end with an error on the others
    local output="$WORK/fault" launcher code=0 started error_s
    : >"$output" # remove the output of an earlier case now, because await may read the file before the launch
    launch $((START_S + END_S)) "$2" tests/endless.py >"$output" 2>&1 &
    launcher=$!
    await 'step 30$' "$START_S" "$launcher" "$output" || return 1
    started=$EPOCHREALTIME
    befall "$1" >/dev/null || return 1
    await "$ERRORS" "$END_S" "$launcher" "$output" || return 1
    error_s="$(seconds_since "$started")"
    await_end "$END_S" "$launcher" "$output" || return 1
    wait "$launcher" || code=$?
    tail -n 25 "$output"
    echo "ended with $code $(seconds_since "$started") s after the fault, its first error came after $error_s s"
    [ "$code" != 0 ]
}
case_stop() { fault stop "$1"; }
case_kill() { fault kill "$1"; }
case_pause() { fault pause "$1"; }
case_cut() { fault cut "$1"; }

case_elastic() { # case_elastic WHAT: the run must continue on the changed hosts, and lose only the entries of a lost host
    local output="$WORK/elastic" launcher started now=$((SIZE - 1))
    [ "$1" != add ] || now=$((SIZE + 1))
    : >"$output"
    launch_elastic >"$output" 2>&1 &
    launcher=$!
    await "step 1[0-9] on $SIZE ranks" "$START_S" "$launcher" "$output" || return 1
    started=$EPOCHREALTIME
    befall "$1" || return 1
    await "begins on $now ranks" "$END_S" "$launcher" "$output" || return 1
    echo "ended: on $now ranks $(seconds_since "$started") s after it$(grep "begins on $now ranks" "$output" | sed 's/.*: step/, step/')"
    sleep 4 # of training in the new world
    cluster run touch /cluster/over
    await_end "$END_S" "$launcher" "$output" || return 1
    wait "$launcher" || { tail -n 60 "$output"; return 1; }
    grep 'all alike' "$output"
    [ "$(grep -c "$now\] ranks, all alike" "$output")" = "$now" ]
}
