"""Which of a server's models will hear. Other vendors' clients send names of their own, so a server takes any name and
hears it with its default; whoever asks for one of ours by a name that is not there is told here instead.
"""

import sys

from service.clients.http import HttpClient, with_retries
from service.errors import ErrorCode, ServiceError


class ModelsClient(HttpClient):
    """`async with ModelsClient(server, key) as client: name = await client.resolve(requested)`."""

    async def resolve(self, requested: str | None) -> str:
        """The model asked for, or the default; a name that the server does not have is refused."""
        served = {str(model["name"]): model for model in (await self._request("GET", "/v1/models"))["models"]}
        found = [
            name for name, model in served.items() if (name == requested if requested else model["default"])
        ]
        if found:
            return found[0]
        try:
            await self._request("GET", "/readyz")
        except ServiceError as error:
            if error.code == ErrorCode.NETWORK:
                raise
            raise ServiceError(
                ErrorCode.STARTING,
                f"{self.server} is still loading its models.",
                "Try again soon.",
                retry_after_s=2.0,
            ) from None
        raise ServiceError(
            ErrorCode.MODEL, f"{self.server} has no model {requested!r}.", f"It serves {', '.join(served)}."
        )


async def resolve_model(server: str, key: str | None, requested: str | None) -> str:
    """One question to a server; one that is still starting is waited for."""

    def on_wait(error: ServiceError) -> None:
        sys.stderr.write(f"silica: {error.message} Waiting for it.\n")

    async with ModelsClient(server, key) as client:
        return await with_retries(lambda: client.resolve(requested), on_wait)
