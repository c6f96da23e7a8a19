# Build the image of the tests, with wheels that this machine's pip can find.
# Source this file after engine.sh.  It needs WORK and IMAGE, and defines build_image.

packages_of_image() { sed -n 's/^ARG PACKAGES="\(.*\)"$/\1/p' "$ROOT/docker/Dockerfile"; }

gather_wheels() { # into a folder named after the versions; none if this machine's Python is not the image's 3.11
    local folder key horovod
    key="$({ packages_of_image; stack_versions; } | sha256sum | cut -c1-12)"
    folder="$CACHE/docker/wheels-$STACK-$key"
    mkdir -p "$WORK/wheels" "$CACHE/docker"
    echo "wheels for docker/Dockerfile" >"$WORK/wheels/README"
    [ "$("$VENV/bin/python" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)" = "3 11" ] || return 0
    if ! [ -d "$folder" ]; then
        note "gathering wheels (log: $CACHE/logs/docker-wheels.log)"
        rm -rf "$folder.partial"
        stack_versions >"$WORK/versions.txt"
        # shellcheck disable=SC2046
        limited 1200 "$VENV/bin/python" -m pip download --only-binary :all: --dest "$folder.partial" \
            --constraint "$WORK/versions.txt" $(packages_of_image) \
            >"$CACHE/logs/docker-wheels.log" 2>&1 || return 1
        mv "$folder.partial" "$WORK/gathered"
        rm -rf "$CACHE"/docker/wheels-"$STACK"-*     # the wheels of earlier versions
        mv "$WORK/gathered" "$folder"
    fi
    cp -al "$folder"/. "$WORK/wheels/" 2>/dev/null || cp -a "$folder"/. "$WORK/wheels/"
    horovod="$CACHE/wheels/horovod-$(stack_versions | sed -n 's/^horovod==//p')-$(cat "$VENV/.horovod-key")"
    cp "$horovod"/horovod-*.whl "$WORK/wheels/"
    PIP_OPTIONS=--no-index
}

build_image() {
    local base="${HVD_SPARSE_BASE:-}" log="$CACHE/logs/docker-build.log"
    if [ -z "$base" ]; then
        base=debian:bookworm-slim
        if [ -n "$ENGINE_RUN" ]; then
            base=hvd-sparse-base
            base_image "$base" || not_run "no base image can be made here (read $CACHE/logs/debootstrap.log)"
        fi
    fi
    PIP_OPTIONS=""
    gather_wheels || not_run "the wheels cannot be gathered here (read $CACHE/logs/docker-wheels.log)"
    tar -C "$ROOT" -cf "$WORK/context.tar" docker scripts pyproject.toml README.md LICENSE hvd_sparse examples -C "$WORK" wheels
    limited 1800 "$DOCKER" build --network host -f docker/Dockerfile -t "$IMAGE" --build-arg "BASE=$base" \
        --build-arg WHEELS=wheels --build-arg "STACK=$STACK" --build-arg "PIP_OPTIONS=$PIP_OPTIONS" - <"$WORK/context.tar" >"$log" 2>&1 ||
        die "the image could not be built: $(tail -n 3 "$log")" "read $log"
    rm "$WORK/context.tar"
    note "image: $IMAGE, $("$DOCKER" image inspect --format '{{.Size}}' "$IMAGE" | awk '{printf "%.1f GB", $1 / 1e9}')"
}
