"""The recipe section [blockwise]. Values only, so that a recipe is read without PyTorch; the objective is in
`training.distillation.blockwise`.
"""

from dataclasses import dataclass

from training.errors import TrainingError


@dataclass(frozen=True)
class BlockwiseConfig:
    """Blockwise distillation: each of `student_blocks` learns the output of the teacher's block at the same place in
    `teacher_blocks`, delayed by `delay_outputs` outputs. An empty `teacher` switches it off.

    Until step `teacher_input_steps` every group of student blocks takes the teacher's output as its input; from step
    `student_input_steps` on every group takes the student's own; in between, a shrinking random part takes the
    teacher's. `ctc_weight` is the weight of the CTC loss relative to the distillation losses.
    """

    teacher: str = ""
    teacher_blocks: tuple[int, ...] = ()
    student_blocks: tuple[int, ...] = ()
    delay_outputs: tuple[int, ...] = ()
    teacher_input_steps: int = 0
    student_input_steps: int = 0
    ctc_weight: float = 0.3

    def __post_init__(self) -> None:
        blocks = (self.teacher_blocks, self.student_blocks)
        lengths = [len(values) for values in (*blocks, self.delay_outputs)]
        if len(set(lengths)) > 1 or bool(self.teacher) != bool(self.teacher_blocks):
            raise TrainingError(
                "blockwise.teacher_blocks, blockwise.student_blocks and blockwise.delay_outputs have "
                f"{lengths[0]}, {lengths[1]} and {lengths[2]} values: expected lists of one length, and "
                "blockwise.teacher where they are not empty."
            )
        if any(list(values) != sorted(set(values)) for values in blocks):
            raise TrainingError(
                "blockwise.teacher_blocks and blockwise.student_blocks: expected ascending block numbers, each once."
            )
        if any(
            later < sooner
            for sooner, later in zip((0, *self.delay_outputs), self.delay_outputs, strict=False)
        ):
            raise TrainingError(
                f"blockwise.delay_outputs is {list(self.delay_outputs)}: expected values of 0 or more that never fall."
            )

    def teacher_input_share(self, step: int) -> float:
        """The share of the groups that take the teacher's output as input at that step."""
        if step < self.teacher_input_steps:
            return 1.0
        ramp = max(1, self.student_input_steps - self.teacher_input_steps)
        return max(0.0, (self.student_input_steps - step) / ramp)
