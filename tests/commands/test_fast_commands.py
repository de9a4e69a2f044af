"""Verbs that only tell something answer at once: PyTorch, which takes seconds, comes only with weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = ("torch", "onnxruntime", "numba")
PROGRAM = """
import sys
from service.commands import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print({name for name in SLOW if name in sys.modules} or "", file=sys.stderr, end="")
""".replace("SLOW", str(SLOW))


@pytest.mark.parametrize(
    "line",
    [
        ("--help",),
        ("transcribe", "--help"),
        ("models", "list"),
        ("models", "show", "quartznet15x5"),
        ("models", "show", "silica-streaming-en"),
        ("train", "--list"),
        ("keys", "list"),
    ],
    ids=" ".join,
)
def test_it_answers_without_what_takes_long(line: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "SILICA_HOME": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout != ""
    assert told.stderr == ""


def test_the_process_that_serves_loads_no_network() -> None:
    """Its workers do: several fronts would hold as many copies."""
    program = f"import sys, service.http.server; print({{*sys.modules}} & {{*{SLOW}}})"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"
