"""Generated requests: whatever the contract allows is answered, whatever it forbids is a problem."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from schemathesis import AuthContext, Case, GenerationMode
from schemathesis.schemas import BaseSchema

from service.api.operation import Operation
from service.app import OPERATIONS, build_app
from service.storage import keys
from service.storage.engine import create_engine
from tests.conftest import Databases

EXAMPLES = int(os.environ.get("SHARDWISE_FUZZ_EXAMPLES", "4"))
"""Examples of each operation and mode; `make fuzz` asks for many."""

CALM = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="session")
def contract(databases: Databases, seeded_template: str) -> BaseSchema:
    """The contract of an application of its own, on a database of its own: schemathesis runs the lifespan itself."""
    settings = databases.make(seeded_template)
    with create_engine(settings, pooled=False).begin() as connection:
        key = keys.create(connection, "fuzz", "admin")
    contract = schemathesis.openapi.from_asgi("/openapi.json", build_app(settings))

    @contract.auth()
    class Bearer:
        """Sends a key with every request."""

        def get(self, case: Case, context: AuthContext) -> str:
            return f"Bearer {key}"

        def set(self, case: Case, data: str, context: AuthContext) -> None:
            case.headers["Authorization"] = data

    return contract


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_keeps_the_contract(contract: BaseSchema, operation: Operation, mode: GenerationMode) -> None:
    """All checks of schemathesis hold for requests within the contract and beside it."""
    described = contract[operation.path][operation.method]
    if mode is GenerationMode.NEGATIVE and not (
        operation.body or (operation.query and operation.query.model_fields) or operation.path_parameters
    ):
        return

    @given(case=described.as_strategy(generation_mode=mode))
    @examples(max_examples=EXAMPLES, suppress_health_check=CALM, deadline=None)
    def check(case: Case) -> None:
        case.call_and_validate()

    check()


WORKED = [(operation, title) for operation in OPERATIONS for title in operation.examples]


@pytest.mark.parametrize(("operation", "title"), WORKED, ids=[f"{each.name}-{title}" for each, title in WORKED])
def test_the_worked_examples_are_answered(contract: BaseSchema, operation: Operation, title: str) -> None:
    """Every body that the contract shows; all checks hold, that of ignored keys among them."""
    described = contract[operation.path][operation.method]

    @given(case=described.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @examples(max_examples=1, suppress_health_check=CALM, deadline=None)
    def check(case: Case) -> None:
        case.body, case.media_type = operation.examples[title], operation.body_media_type
        assert 200 <= case.call_and_validate().status_code < 300

    check()


def test_sequences_of_operations_keep_the_contract(contract: BaseSchema) -> None:
    """All checks hold along links from one operation to the next."""
    contract.as_state_machine().run(
        settings=examples(
            max_examples=EXAMPLES, stateful_step_count=5, suppress_health_check=CALM, deadline=None, derandomize=True
        )
    )
