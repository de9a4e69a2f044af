"""`silica mic` keeps what was understood, however the session ends."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from service.clients import terminal_display
from service.commands import main
from service.errors import ErrorCode, ServiceError

WORD = {"word": "hello", "start": 0.5, "end": 0.9, "confidence": 0.9}
SETTLED = {
    "type": "Results",
    "is_final": True,
    "speech_final": False,
    "channel": {"alternatives": [{"transcript": "hello", "words": [WORD]}]},
}


@pytest.mark.parametrize("form", ["txt", "srt", "json"])
def test_words_before_the_network_went_are_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_session(
        microphone: object, client: object, display: terminal_display.TerminalDisplay, seconds: object
    ) -> None:
        display.add_lines(display.transcript.add_message(SETTLED))
        raise ServiceError(ErrorCode.NETWORK, "No server for 60 s.", "Is it running?")

    monkeypatch.setattr(terminal_display, "run_session", run_session)
    sound, kept = tmp_path / "a.wav", tmp_path / f"kept.{form}"
    soundfile.write(sound, np.zeros(1600), 16_000)
    assert main(["mic", "--from", str(sound), "--output", form, "--out", str(kept)]) == 2
    assert "hello" in kept.read_text()
    assert "No server for 60 s." in capsys.readouterr().err
    assert main(["mic", "--from", str(sound)]) == 2
    assert capsys.readouterr().out == "hello\n"
