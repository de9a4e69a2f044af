#!/bin/sh
# Everything from speech on disk to the model in the box in training, again after any stop: teacher, labels, student.
#   [PROCESSES=2] scripts/train_box.sh DATA RUN [any option of `silica train`]
# DATA holds `shared` (the developers' material) and `collected` (what its collect.py cuts; scripts/gather_speech.py makes
# both ready); labels are kept there too.
# PROCESSES: how many cores train, each its own part of a step.
set -eu
if [ $# -lt 2 ] || [ ! -d "$1/shared/speech" ]; then
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
fi
data=$(cd "$1" && pwd) run=$2
shift 2
cd "$(dirname "$0")/.."
silica=.venv/bin/silica teacher=quartznet15x5-en
export OMP_NUM_THREADS=1 # one process a core is quicker than two threads

if ! "$silica" models list --json | grep -q "\"$teacher\""; then
    "$silica" models import "$data/shared/models/$teacher" --name "$teacher"
    "$silica" calibrate "$teacher" "$data/shared/speech/train-librispeech"
fi
# The recipe learns words and a hidden layer of the teacher: every clip is labelled. What is labelled already is passed
# over, and what collect.py has not ended.
folders() {
    for folder in "$data"/shared/speech/train-* "$data/shared/speech/an4-train" "$data"/collected/*; do
        if [ -f "$folder/manifest.jsonl" ]; then
            printf '%s\n' "$folder"
        fi
    done
}
label() { # how xargs hands over the folders, and more options
    nice xargs -d '\n' "$@" --teacher "$teacher" --out "$data/labels" --hidden 15
}
if [ ! -f "$data/labels/hidden.npz" ]; then # what is kept of the layer: found in clips of all folders
    folders | label "$silica" label --limit 1
fi
folders | label -P "${PROCESSES:-1}" -I {} "$silica" label {}
# Batches differ in length: with glibc's allocator a fifth of the time goes into finding room for them.
allocator=/usr/lib/$(uname -m)-linux-gnu/libtcmalloc_minimal.so.4 # Debian's libtcmalloc-minimal4
if [ -f "$allocator" ]; then
    export LD_PRELOAD="$allocator${LD_PRELOAD:+:$LD_PRELOAD}" TCMALLOC_RELEASE_RATE=0
fi
# The recipe is meant for two processes; one alone takes each step in two pieces.
exec nice ${PROCESSES:+.venv/bin/torchrun --nproc-per-node "$PROCESSES" --no-python} \
    "$silica" train silica-attentive --data "$data" --out "$run" \
    --set run.processes="${PROCESSES:-1}" --set run.accumulation=$((${PROCESSES:-1} > 1 ? 1 : 2)) "$@"
