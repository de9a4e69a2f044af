"""What a recipe says of learning stage by stage: values only, so that a recipe is read without PyTorch. The work is
done in `training.distillation.blockwise`.
"""

from dataclasses import dataclass

from training.errors import TrainingError


@dataclass(frozen=True)
class BlockwisePart:
    """Blocks `of` the teacher learnt by the student's blocks `by`, each `late` outputs later; none: no stages. Until
    step `given_steps` every stage is given what the teacher makes, from `own_steps` on none is, and in between some;
    `words` is how much the words count beside them.
    """

    teacher: str = ""
    of: tuple[int, ...] = ()
    by: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    given_steps: int = 0
    own_steps: int = 0
    words: float = 0.3

    def __post_init__(self) -> None:
        if not len(self.of) == len(self.by) == len(self.late) or bool(self.teacher) != bool(self.of):
            raise TrainingError(
                f"stages.of, stages.by and stages.late have {len(self.of)}, {len(self.by)} and {len(self.late)} "
                "values: expected one of each for every stage, and stages.teacher where there are any."
            )
        if any(list(blocks) != sorted(set(blocks)) for blocks in (self.of, self.by)):
            raise TrainingError("stages.of and stages.by name blocks from the first to the last, none twice.")
        if any(later < sooner for sooner, later in zip((0, *self.late), self.late, strict=False)):
            raise TrainingError(f"stages.late is {list(self.late)}: a later stage cannot be less late.")

    def given_share(self, step: int) -> float:
        """How many of the stages are given what the teacher makes at that step."""
        if step < self.given_steps:
            return 1.0
        return max(0.0, (self.own_steps - step) / max(1, self.own_steps - self.given_steps))
