"""Commands that need no model do not import PyTorch, ONNX Runtime or Numba, which take seconds."""

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
def test_slow_packages_are_not_imported(line: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "SILICA_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout != ""
    assert result.stderr == ""


def test_the_server_process_imports_no_model_runtime() -> None:
    """The engine processes do."""
    program = f"import sys, service.http.server; print({{*sys.modules}} & {{*{SLOW}}})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
