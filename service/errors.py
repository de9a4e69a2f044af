"""What the service raises and tells its clients: a code for machines, a message and advice for people."""


class ServiceError(Exception):
    """One failure that a client or operator is told about."""

    def __init__(
        self, code: str, message: str, advice: str = "", *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{message} {advice}".strip())
        self.code = code
        self.message = message
        self.advice = advice
        self.retry_after_s = retry_after_s
