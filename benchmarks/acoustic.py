"""How fast a model is heard: each CPU backend as a ratio to eager PyTorch in the same run; `--gpu`: latency tables.

    python benchmarks/acoustic.py [--model NAME] [--manifest FOLDER --limit 60]   word errors in the same run
    python benchmarks/acoustic.py --gpu                                           the tables of DeepLearningExamples
    python benchmarks/acoustic.py --streams [--model NAME]                        streams a core, by hop

Processor time, not the clock: on a busy machine the ratios still hold. Speed needs no trained weights: without
--model it is QuartzNet 15x5 with random ones.
"""

import argparse
import json
import os
import pickle
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# A script finds its own folder first, where this very file would be taken for the package `acoustic`.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from acoustic import catalogue  # noqa: E402
from acoustic.architectures import ARCHITECTURES  # noqa: E402
from acoustic.checkpoint import Checkpoint  # noqa: E402
from acoustic.network.folding import fold  # noqa: E402
from acoustic.quantization.calibration import calibrate  # noqa: E402
from acoustic.quantization.ranges import find_ranges, with_ranges  # noqa: E402
from acoustic.runtime.backend import recording_features, streaming_config  # noqa: E402
from acoustic.runtime.cpu import CpuBackend  # noqa: E402
from acoustic.runtime.gpu import GpuBackend  # noqa: E402
from acoustic.windows import StreamWindows, Window, WindowPlan, default_plan, with_hop  # noqa: E402

Line = dict[str, Any]
RATE = 16_000
GPU_MODELS = ("jasper10x5dr", "quartznet15x5")
GPU_SECONDS = (2.0, 7.0, 16.7)
GPU_BATCHES = (1, 2, 4, 8, 16)


def provenance() -> Line:
    """When, of what, on what."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    flags = Path("/proc/cpuinfo").read_text()
    vector = (
        "VNNI"
        if "vnni" in flags
        else "AVX-512"
        if "avx512f" in flags
        else "AVX2"
        if "avx2" in flags
        else "SSE"
    )
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or "unknown",
        "machine": f"{machine}, {vector}, {os.cpu_count()} cores",
        "torch": torch.__version__,
    }


def sound(seconds: float) -> np.ndarray:
    """Noise: no layer is faster on it than on speech."""
    return np.random.default_rng(1).normal(0, 0.05, int(seconds * RATE)).astype(np.float32)


def best_s(action: Callable[[], object], runs: int) -> float:
    """The least processor time of several runs: whatever else runs can only add to it."""
    action()
    took = []
    for _ in range(runs):
        began = time.process_time()
        action()
        took.append(time.process_time() - began)
    return min(took)


def cpu_table(checkpoint: Checkpoint, manifest: Path | None, limit: int, runs: int) -> Line:
    """Eager PyTorch and the CPU backends, on a whole recording and on one window, interleaved."""
    torch.set_num_threads(1)
    ranges = find_ranges(checkpoint) or calibrate(checkpoint, [sound(70)], store=False)
    ready = with_ranges(checkpoint, ranges)
    backends = {name: CpuBackend(ready, name) for name in ("fp32", "int8")}  # type: ignore[arg-type]
    network = fold(checkpoint).network()
    plan = default_plan(streaming_config(checkpoint.config))
    rows: dict[str, Line] = {"eager": {}, "fp32": {}, "int8": {}}
    for label, seconds in (("whole", 15.0), ("window", plan.frames / checkpoint.config.frames_per_second)):
        features = recording_features(backends["fp32"].front_end, checkpoint.config.features, sound(seconds))
        with torch.inference_mode():
            took = {"eager": best_s(lambda: network(features[None]), runs)}  # noqa: B023
        for name, backend in backends.items():
            took[name] = best_s(lambda: backend.run(features), runs)  # noqa: B023
        for name, value in took.items():
            rows[name][f"{label}_times_real_time"] = seconds / value
            rows[name][f"{label}_times_eager"] = took["eager"] / value
    if manifest is not None:
        for name, backend in backends.items():
            rows[name]["wer"], rows[name]["words"] = word_error_rate(backend, manifest, limit)
    return {**provenance(), "model": checkpoint.config.name, "runs": runs, "backends": rows}


STREAM_HOPS_S = (0.16, 0.32, 0.64, 1.28)
EXPECTED_BATCH = 8


def stream_table(checkpoint: Checkpoint, runs: int) -> Line:
    """Seconds of processor a second of one stream, features included: overlapping windows and carried state."""
    torch.set_num_threads(1)
    ranges = find_ranges(checkpoint) or calibrate(checkpoint, [sound(70)], store=False)
    rows = []
    for precision in ("fp32", "int8"):
        backend = CpuBackend(with_ranges(checkpoint, ranges), precision)  # type: ignore[arg-type]
        config = backend.config
        if not backend.plan.stateful:
            raise SystemExit(f"{config.name} is not streamed with carried state.")
        overlapping = default_plan(config)
        exact = replace(
            overlapping, left_frames=-(-config.left_frames // config.stride_frames) * config.stride_frames
        )
        for hop_s in STREAM_HOPS_S:
            row: Line = {"precision": precision, "hop_s": hop_s}
            for name, plan in (("overlapping", overlapping), ("exact", exact), ("carried", backend.plan)):
                window = full_window(backend, with_hop(config, plan, hop_s))
                for windows in (1, EXPECTED_BATCH):
                    took = best_s(partial(backend.forward, [window] * windows), runs) / windows
                    row[f"{name}_{windows}"] = hop_s / took
                    row[f"{name}_{windows}_ms"] = took * 1000
            row["state_bytes"] = len(pickle.dumps(window.state, protocol=pickle.HIGHEST_PROTOCOL))
            row["transport_ms"] = transport_s(window, runs) * 1000
            rows.append(row)
    return {**provenance(), "model": checkpoint.config.name, "runs": runs, "streams": rows}


def full_window(backend: CpuBackend, plan: WindowPlan) -> Window:
    """A window from within a stream, with all its context."""
    stream = StreamWindows(backend.config, plan)
    window = None
    for window in stream.push(sound(12.0)):
        window = stream.with_current_state(window)
        stream.update_state(backend.forward([window])[0])
    assert window is not None and window.span.frames == plan.frames
    return window


def transport_s(window: Window, runs: int) -> float:
    """Processor time of the state's way to a worker and back: pickled and written to a pipe, twice."""
    import socket

    ours, theirs = socket.socketpair()

    def there() -> None:
        body = pickle.dumps(window.state, protocol=pickle.HIGHEST_PROTOCOL)
        for first in range(0, len(body), 65_536):
            ours.sendall(body[first : first + 65_536])
            wanted = min(65_536, len(body) - first)
            while wanted:
                wanted -= len(theirs.recv(wanted))
        pickle.loads(body)

    with ours, theirs:
        return 2 * best_s(lambda: [there() for _ in range(20)], runs) / 20


def word_error_rate(backend: CpuBackend, manifest: Path, limit: int) -> tuple[float, int]:
    """Greedy, whole recordings."""
    from lm.decoders import open_decoder
    from lm.score import ErrorCounts, word_errors
    from lm.text.normalize import normalize
    from service.audio.files import read_mono

    lines = [json.loads(line) for line in (manifest / "manifest.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["text"]]
    decoder, total = open_decoder("greedy", backend.config.alphabet), ErrorCounts()
    for line in lines[:: max(1, len(lines) // limit)][:limit]:
        utterance = decoder.start()
        utterance.push(backend.recording_log_probs(read_mono(manifest / line["audio"])))
        total += word_errors(normalize(line["text"]), utterance.finish()[0].text)
    return total.rate, total.words


def gpu_table(device: str, models: Sequence[str], iterations: int) -> Line:
    """Latency in ms of a whole batch: sound on the host to log-probabilities on the host, and the graph alone."""
    rows = []
    for name in models:
        config = ARCHITECTURES[name]
        backend = GpuBackend(
            catalogue.untrained(config),
            device,  # type: ignore[arg-type]
            batches=(1,),
            hops_s=(),
        )
        for seconds in GPU_SECONDS:
            window = whole_window(backend, seconds)
            for batch in GPU_BATCHES:
                bucket = backend.bucket(batch, window.span.frames)
                windows = [window] * batch
                everything = latencies_ms(lambda: bucket.forward(windows), iterations)  # noqa: B023
                arithmetic = latencies_ms(lambda: synchronized(bucket.run), iterations)  # noqa: B023
                rows.append(
                    {
                        "model": name,
                        "seconds": seconds,
                        "batch": batch,
                        "precision": backend.precision,
                        **everything,
                        "graph_avg": arithmetic["avg"],
                    }
                )
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {**provenance(), "iterations": iterations, "latency_ms": rows}


def synchronized(action: Callable[[], None]) -> None:
    """Until the device is done."""
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def whole_window(backend: GpuBackend, seconds: float) -> Window:
    """One window that is a whole recording."""
    stream = StreamWindows(backend.config, WindowPlan(0, 100_000, 0))
    stream.push(sound(seconds))
    return stream.finish()[0]


def latencies_ms(action: Callable[[], object], iterations: int) -> dict[str, float]:
    """Average and the percentiles that DeepLearningExamples prints."""
    for _ in range(5):
        action()
    took = np.empty(iterations)
    for index in range(iterations):
        began = time.perf_counter()
        action()
        took[index] = (time.perf_counter() - began) * 1000
    p90, p95, p99 = np.percentile(took, (90, 95, 99))
    return {"avg": float(took.mean()), "p90": float(p90), "p95": float(p95), "p99": float(p99)}


def shown(table: Line) -> str:
    """For a reader."""
    lines = [f"{table['date']}, {table['commit']}, {table['machine']}, PyTorch {table['torch']}"]
    if "streams" in table:
        lines.append(
            f"{table['model']}, streams a core by processor time, alone / {EXPECTED_BATCH} windows together"
        )
        lines.append(
            "| precision | hop s | overlapping | exactly overlapping | carried | state bytes | transport ms |"
        )
        lines.append("|---|--:|--:|--:|--:|--:|--:|")
        for row in table["streams"]:
            figures = " | ".join(
                f"{row[f'{name}_1']:.0f} / {row[f'{name}_{EXPECTED_BATCH}']:.0f}"
                for name in ("overlapping", "exact", "carried")
            )
            lines.append(
                f"| {row['precision']} | {row['hop_s']} | {figures} | {row['state_bytes']} | "
                f"{row['transport_ms']:.3f} |"
            )
        return "\n".join(lines)
    if "latency_ms" in table:
        lines.append(
            "| model | seconds | batch | avg ms | p90 | p95 | p99 | graph alone |\n|---|--:|--:|--:|--:|--:|--:|--:|"
        )
        for row in table["latency_ms"]:
            lines.append(
                f"| {row['model']} {row['precision']} | {row['seconds']} | {row['batch']} | {row['avg']:.2f} | "
                f"{row['p90']:.2f} | {row['p95']:.2f} | {row['p99']:.2f} | {row['graph_avg']:.2f} |"
            )
        return "\n".join(lines)
    lines.append(f"{table['model']}, one thread, best of {table['runs']} runs by processor time")
    lines.append("| backend | whole 15 s, x real time | x eager | one window, x real time | x eager | WER |")
    lines.append("|---|--:|--:|--:|--:|--:|")
    for name, row in table["backends"].items():
        wer = f"{row['wer']:.2%} of {row['words']}" if "wer" in row else "–"
        lines.append(
            f"| {name} | {row['whole_times_real_time']:.1f} | {row['whole_times_eager']:.2f} | "
            f"{row['window_times_real_time']:.1f} | {row['window_times_eager']:.2f} | {wer} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="name or path (default: quartznet15x5 with random weights)")
    parser.add_argument("--manifest", type=Path, help="folder with manifest.jsonl: word errors too")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--streams", action="store_true", help="streams a core; the model carries state (silica-small)"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses --gpu without one"
    )
    parser.add_argument("--gpu-models", nargs="+", default=list(GPU_MODELS))
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.gpu:
        table = gpu_table(arguments.device, arguments.gpu_models, arguments.iterations)
    elif arguments.streams:
        model = arguments.model
        checkpoint = catalogue.find(model) if model else catalogue.untrained(ARCHITECTURES["silica-small"])
        table = stream_table(checkpoint, arguments.runs)
    else:
        model = arguments.model
        checkpoint = catalogue.find(model) if model else catalogue.untrained(ARCHITECTURES["quartznet15x5"])
        table = cpu_table(checkpoint, arguments.manifest, arguments.limit, arguments.runs)
    print(json.dumps(table) if arguments.json else shown(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
