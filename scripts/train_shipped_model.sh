#!/bin/sh
# Everything from speech on disk to the model in the box in training, again after any stop: teacher, labels, student.
#   [PROCESSES=2] scripts/train_shipped_model.sh DATA RUN [any option of `silica train`]
# DATA holds `shared` (the developers' material) and `collected` (what its collect.py cuts; scripts/gather_speech.py makes
# both ready); what a machine says (a quarter of an hour, once) and labels are kept there too.
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
for seed in 1 2; do
    spoken=$data/collected/spoken-$seed
    if [ ! -f "$spoken/manifest.jsonl" ]; then
        nice .venv/bin/python scripts/speak_text.py "$data" "$spoken" --hours 12 --seed "$seed"
    fi
done
# The recipe learns words, and the teacher's stages on the spot: clips without a transcript are labelled. What is
# labelled already is passed over, and what collect.py has not ended.
folders() {
    for folder in "$data"/shared/speech/train-* "$data/shared/speech/an4-train" "$data"/collected/*; do
        if [ -f "$folder/manifest.jsonl" ]; then
            printf '%s\n' "$folder"
        fi
    done
}
folders | nice xargs -d '\n' -P "${PROCESSES:-1}" -I {} \
    "$silica" pseudo-label {} --teacher "$teacher" --out "$data/labels"
# Batches differ in length: with glibc's allocator a fifth of the time goes into finding room for them.
allocator=/usr/lib/$(uname -m)-linux-gnu/libtcmalloc_minimal.so.4 # Debian's libtcmalloc-minimal4
if [ -f "$allocator" ]; then
    export LD_PRELOAD="$allocator${LD_PRELOAD:+:$LD_PRELOAD}" TCMALLOC_RELEASE_RATE=0
fi
# The recipe is meant for two processes; one alone takes each step in two pieces. It begins with random weights; here the
# model in the box goes on, which needs nothing given any more, at a quarter of the rate, with all alteration and more noise
# (training/experiments.csv: run AG-long). Average what comes out with the box (scripts/average_checkpoints.py).
exec nice ${PROCESSES:+.venv/bin/torchrun --nproc-per-node "$PROCESSES" --no-python} \
    "$silica" train silica-streaming --data "$data" --out "$run" \
    --set model.start=silica-streaming-en --set blockwise.teacher_input_steps=0 --set blockwise.student_input_steps=0 --set augment.ramp_start=1.0 \
    --set optimizer.learning_rate=0.0008 --set schedule.steps=3600 \
    --set augment.noise=0.45 --set augment.noise_snr_db='[4.0, 25.0]' --set augment.level_db='[-12.0, 18.0]' \
    --set run.processes="${PROCESSES:-1}" --set run.accumulation=$((${PROCESSES:-1} > 1 ? 1 : 2)) "$@"
