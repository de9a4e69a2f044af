"""Figures of the steps between two lines of the log."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepResult:
    """What one step gave: means over its utterances, and what it cost."""

    means: dict[str, float]
    rows: float
    sound_s: float
    gradient: float
    rate: float
    finite: bool
    again: bool
    """Whether its sound was used before (`data.uses`)."""


@dataclass
class Sums:
    """What happened since the last line of the log. What is heard again is known better, for a while: it is counted
    apart, or a run that learns its last minutes by heart looks like one that learns (training/LOG.md, run R)."""

    rows: float = 0.0
    sound_s: float = 0.0
    gradient: float = 0.0
    rate: float = 0.0
    weighted: dict[str, float] = field(default_factory=dict)
    counted: float = 0.0
    loss_again: float = 0.0
    counted_again: float = 0.0

    def add(self, result: StepResult) -> None:
        """One more step."""
        self.rows += result.rows
        self.sound_s += result.sound_s
        self.rate = result.rate
        if result.finite:
            self.gradient = result.gradient
            if result.again:
                self.loss_again += result.means["loss"] * result.rows
                self.counted_again += result.rows
                return
            self.counted += result.rows
            for name, value in result.means.items():
                self.weighted[name] = self.weighted.get(name, 0.0) + value * result.rows

    def means(self) -> dict[str, float]:
        """Each figure's mean over the utterances heard for the first time; beside it the loss of those heard again."""
        again = {"loss_again": self.loss_again / self.counted_again} if self.counted_again else {}
        if not self.counted:
            return {"loss": again.get("loss_again", float("nan"))}
        return {name: value / self.counted for name, value in self.weighted.items()} | again
