"""The OpenAPI description: its examples are valid, and generated requests are never answered with a failure of the server.

The environment variable RESID_FAULT_TRIALS sets the number of requests for every operation, valid and invalid.
"""

import os

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from resid.serve import create_app
from resid.serve.models import Branch, Item, RecommendRequest, RecommendResponse

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "3"))


@pytest.mark.parametrize("model", [RecommendRequest, RecommendResponse, Item])
def test_examples_are_valid(model):
    examples = model.model_json_schema()["examples"]
    assert examples
    for example in examples:
        model.model_validate(example)


def test_every_route_is_described(app):
    paths = app.openapi()["paths"]
    assert set(paths) == {
        *("/recommend", "/items", "/items/{item}", "/ids", "/ids/{prefix}", "/similar/{item}", "/reload"),
        *("/health/live", "/health/ready", "/version", "/metrics"),
    }
    for operations in paths.values():
        for operation in operations.values():
            assert operation["summary"]
            assert {"401", "422", "503"} <= set(operation["responses"])
    assert Branch.__name__ in app.openapi()["components"]["schemas"]


def test_generated_requests(holders):
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(holders), headers={"host": "localhost"})
    for operation in schema.get_all_operations():
        asked = operation.ok()
        answer_without_failure(asked, GenerationMode.POSITIVE)
        if {"parameters", "requestBody"} & set(asked.definition.raw):
            answer_without_failure(asked, GenerationMode.NEGATIVE)


def answer_without_failure(operation, mode):
    @hypothesis.settings(
        max_examples=TRIALS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        response = case.call(headers={"host": "localhost"})
        case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])

    check()
