"""Generated requests: whatever the contract allows is answered, whatever it forbids is a problem."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from schemathesis import Case, GenerationMode
from schemathesis.schemas import BaseSchema

from service.api.operation import Operation
from service.app import OPERATIONS, build_app
from service.settings import Settings

EXAMPLES = int(os.environ.get("SHARDWISE_FUZZ_EXAMPLES", "12"))
"""Examples of each operation and mode; `make fuzz` asks for many."""

CALM = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="session")
def contract(settings: Settings) -> BaseSchema:
    """The contract of an application of its own: schemathesis runs the lifespan itself."""
    return schemathesis.openapi.from_asgi("/openapi.json", build_app(settings))


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_keeps_the_contract(contract: BaseSchema, operation: Operation, mode: GenerationMode) -> None:
    """All checks of schemathesis hold for requests within the contract and beside it."""
    described = contract[operation.path][operation.method]
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
        return

    @given(case=described.as_strategy(generation_mode=mode))
    @examples(max_examples=EXAMPLES, suppress_health_check=CALM, deadline=None)
    def check(case: Case) -> None:
        case.call_and_validate()

    check()


def test_sequences_of_operations_keep_the_contract(contract: BaseSchema) -> None:
    """All checks hold along links from one operation to the next."""
    contract.as_state_machine().run(
        settings=examples(
            max_examples=EXAMPLES, stateful_step_count=5, suppress_health_check=CALM, deadline=None, derandomize=True
        )
    )
