"""When, at which commit and on which machine a result was measured; part of every result file."""

import os
import platform
import subprocess
import time
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")


def provenance() -> dict[str, str]:
    """Date, commit, machine and PyTorch version."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or "unknown",
        "machine": machine(),
        "torch": torch.__version__,
    }


def machine() -> str:
    """Processor or GPU, vector instructions, and number of CPU cores."""
    info = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    features = {"vnni": "VNNI", "avx512f": "AVX-512", "avx2": "AVX2"}
    vector = next((label for flag, label in features.items() if flag in info), "no AVX2")
    return f"{name}, {vector}, {os.cpu_count()} cores"
