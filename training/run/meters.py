"""Accumulated metrics of the steps between two log lines."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepResult:
    """The result of one step; `means` holds the loss and other metrics, averaged over its utterances."""

    means: dict[str, float]
    rows: float
    audio_s: float
    grad_norm: float
    learning_rate: float
    finite: bool


@dataclass
class Meters:
    """Metrics since the last log line: sums, and the newest learning rate and gradient norm."""

    rows: float = 0.0
    audio_s: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    weighted: dict[str, float] = field(default_factory=dict)
    finite_rows: float = 0.0

    def add(self, result: StepResult) -> None:
        """Add one step."""
        self.rows += result.rows
        self.audio_s += result.audio_s
        self.learning_rate = result.learning_rate
        if result.finite:
            self.grad_norm = result.grad_norm
            self.finite_rows += result.rows
            for name, value in result.means.items():
                self.weighted[name] = self.weighted.get(name, 0.0) + value * result.rows

    def means(self) -> dict[str, float]:
        """The mean of each metric over the utterances of the finite steps."""
        if not self.finite_rows:
            return {"loss": float("nan")}
        return {name: value / self.finite_rows for name, value in self.weighted.items()}
