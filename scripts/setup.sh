#!/usr/bin/env bash
# Makes the environment: Debian packages (when root), a virtual environment, the pinned Python packages.
#   scripts/setup.sh run|dev|docs cpu|cuda [python3]
# `run` is what serving needs, `docs` adds what builds the documentation, `dev` adds that and what the tests need.
# Each step says what it does; a second call is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
what=${1:-run} device=${2:-cpu} python=${3:-python3}
run_packages=(libportaudio2 g++) # kenlm comes as source: pip compiles it
dev_packages=(chromium nodejs flite espeak-ng asterisk-core-sounds-en-g722 cmake
    libboost-program-options-dev libboost-system-dev libboost-thread-dev libboost-test-dev)

name=silica
[ -t 2 ] && name=$'\033[1msilica\033[0m'
say() { printf '%s %s\n' "$name" "$*" >&2; }
fail() { say "$*"; exit 1; }

# A step that takes long. On a terminal seconds and megabytes are counted while it runs; what it prints is shown only
# if it fails.
step() {
    local label=$1 log began=$SECONDS failed=0
    shift
    log=$(mktemp)
    [ -t 2 ] || say "$label"
    set -m # a process group of its own, so that Ctrl-C ends all of it
    "$@" >"$log" 2>&1 </dev/null &
    local job=$!
    set +m
    trap 'kill -- -"$job" 2>/dev/null; rm -f "$log"; fail "stopped; the same command goes on from here"' INT TERM
    while [ -t 2 ] && kill -0 "$job" 2>/dev/null; do
        printf '\r\033[K%s %s: %d s, %s in .venv' "$name" "$label" $((SECONDS - began)) \
            "$(du -sh .venv 2>/dev/null | cut -f1)" >&2
        sleep 1
    done
    wait "$job" || failed=$?
    trap - INT TERM
    [ -t 2 ] && printf '\r\033[K' >&2
    if [ "$failed" -eq 0 ]; then say "$label: done in $((SECONDS - began)) s"; else cat "$log" >&2; fi
    rm -f "$log"
    return "$failed"
}

have_package() { # a Debian package, or a program of the same purpose that is there already
    case $1 in
        nodejs) command -v node >/dev/null && return 0 ;;
        cmake | g++ | chromium | flite | espeak-ng) command -v "$1" >/dev/null && return 0 ;;
    esac
    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

debian_packages() {
    local missing=() package
    command -v dpkg-query >/dev/null || { say "not a Debian system: if something is missing, its message says what"; return 0; }
    for package in "$@"; do have_package "$package" || missing+=("$package"); done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "these Debian packages are missing: ${missing[*]}"
        say "install them with:  sudo apt-get install --no-install-recommends ${missing[*]}"
        [ "${missing[*]}" = libportaudio2 ] && { say "going on: only the microphone client needs it"; return 0; }
        fail "then run the same command again"
    fi
    say "installing Debian packages: ${missing[*]}"
    step "reading Debian's package lists" apt-get update -qq \
        || say "apt-get update failed; trying with the lists that are here"
    DEBIAN_FRONTEND=noninteractive step "installing Debian packages" \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        || fail "apt-get could not install them; install them by hand, then run the same command again"
}

check_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
        || fail "Python 3.11 or newer is needed; $python is $("$python" --version 2>&1). Try: make PYTHON=python3.12 ..."
}

python_packages() { # what Debian leaves out of its Python: environments, and the headers that kenlm is compiled with
    "$python" - <<'PY'
import importlib.util, os, sys, sysconfig
name = "python%d.%d" % sys.version_info[:2]
if importlib.util.find_spec("ensurepip") is None:
    print(name + "-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(name + "-dev")
PY
}

environment() {
    pip --version >/dev/null 2>&1 && return 0
    step "making the environment in .venv" "$python" -m venv --clear .venv \
        || fail "could not make .venv; on Debian: apt-get install python3-venv"
}

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

torch_build() { # the CPU build on Linux is named outright, so that gigabytes of CUDA never arrive by accident
    if .venv/bin/python - "$device" "$torch_version" <<'PY' 2>/dev/null; then return 0; fi
import sys, torch
cuda = torch.version.cuda is not None
sys.exit(not (torch.__version__.split("+")[0] == sys.argv[2] and cuda == (sys.argv[1] == "cuda")))
PY
    step "installing PyTorch $torch_version for $device, the largest piece" install_torch \
        || fail "PyTorch could not be installed: see above. Without a network, put its wheel where pip finds it"
}

install_torch() {
    if [ "$device" = cuda ] || [ "$(uname -s)" != Linux ]; then
        pip install -q "torch==$torch_version"
    else
        pip install -q --retries 1 --timeout 10 "torch==$torch_version+cpu" 2>/dev/null \
            || pip install -q "torch==$torch_version+cpu" --extra-index-url https://download.pytorch.org/whl/cpu
    fi
}

install_packages() {
    local list=(-r requirements/run.txt)
    [ "$what" = dev ] && list+=(-r requirements/dev.txt)
    [ "$what" != run ] && list+=(-r requirements/docs.txt)
    pip install -q "${list[@]}" && pip install -q --no-deps --no-build-isolation -e .
}

case $what in run | dev | docs) ;; *) fail "what to set up? run, dev or docs, not '$what'" ;; esac
case $device in cpu | cuda) ;; *) fail "DEVICE is cpu or cuda, not '$device'" ;; esac

check_python
mapfile -t packages < <(python_packages)
packages+=("${run_packages[@]}")
[ "$what" = dev ] && packages+=("${dev_packages[@]}")
debian_packages "${packages[@]}"
environment
torch_build
step "installing the pinned Python packages ($what)" install_packages || fail "see above for what pip could not do"
