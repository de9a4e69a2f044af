"""openapi.yaml against the server, with requests that schemathesis generates: no server error, documented responses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

import service
from tests.e2e.server_process import ServerProcess

schema = schemathesis.openapi.from_path(Path(service.__file__).parent / "openapi.yaml")


def test_the_document_is_valid_openapi() -> None:
    schema.validate()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        yield made


@pytest.mark.filterwarnings("ignore")
@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_a_server_error(
    case: schemathesis.Case, server: ServerProcess, session: requests.Session
) -> None:
    case.call_and_validate(
        base_url=server.address,
        session=session,
        timeout=30,
        checks=[not_a_server_error, response_schema_conformance, status_code_conformance],
    )
