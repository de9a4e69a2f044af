"""Figures of the steps between two lines of the log."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepResult:
    """What one step gave: means over its utterances, and what it cost."""

    means: dict[str, float]
    rows: float
    audio_s: float
    grad_norm: float
    rate: float
    finite: bool


@dataclass
class Meters:
    """What happened since the last line of the log."""

    rows: float = 0.0
    audio_s: float = 0.0
    grad_norm: float = 0.0
    rate: float = 0.0
    weighted: dict[str, float] = field(default_factory=dict)
    counted: float = 0.0

    def add(self, result: StepResult) -> None:
        """One more step."""
        self.rows += result.rows
        self.audio_s += result.audio_s
        self.rate = result.rate
        if result.finite:
            self.grad_norm = result.grad_norm
            self.counted += result.rows
            for name, value in result.means.items():
                self.weighted[name] = self.weighted.get(name, 0.0) + value * result.rows

    def means(self) -> dict[str, float]:
        """Each figure's mean over the utterances of the finite steps."""
        if not self.counted:
            return {"loss": float("nan")}
        return {name: value / self.counted for name, value in self.weighted.items()}
