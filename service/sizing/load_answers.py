"""What is answered of a load: promises kept, people served, the curve over concurrency."""

from dataclasses import dataclass
from typing import Annotated

from service.sizing.quantities import Doc


@dataclass(frozen=True, slots=True)
class PromiseAnswer:
    """A promised time, held against the prediction with a margin."""

    promised_ms: Annotated[float, Doc("promised at most", "ms", 40.0)]
    predicted_ms: Annotated[float, Doc("central prediction under the load asked", "ms", 28.4)]
    margin: Annotated[float, Doc("factor on the prediction before it is held against the promise", example=1.15)]
    with_margin_ms: Annotated[float, Doc("what was held against the promise", "ms", 32.7)]
    over_promised_percent: Annotated[
        float, Doc("of decisions on measured runs, how many then promised more than was kept", "per cent", 4)
    ]
    measured_on: Annotated[str, Doc("those decisions")]


@dataclass(frozen=True, slots=True)
class ObjectivesAnswer:
    """What was promised and what the deployment carries within it."""

    tpot: Annotated[PromiseAnswer | None, Doc("time per output token; null: not promised")]
    ttft: Annotated[PromiseAnswer | None, Doc("time to first token; null: not promised")]
    requests_in_flight: Annotated[
        float, Doc("requests at once over all copies that this was judged at; of a rate, where it settles", example=16)
    ]
    concurrent_sequences: Annotated[
        int, Doc("most requests at once, over all copies, that run and keep the promises", example=41)
    ]
    requests_per_second: Annotated[
        float, Doc("most requests a second, arriving at random, that keep the promises", "1/s", 3.71)
    ]
    utilisation: Annotated[
        float | None,
        Doc("requests that arrive over what all copies complete at their limit; null without a rate", example=0.42),
    ]


@dataclass(frozen=True, slots=True)
class PeopleAnswer:
    """The load that people make of this deployment, and how it follows."""

    people: Annotated[int, Doc("all who may use it", example=50)]
    active: Annotated[float, Doc("of them, those who use it in the busy hour", example=25)]
    answer_seconds: Annotated[float, Doc("from a question to the end of its answer, at the mean load", "s", 9.6)]
    think_seconds: Annotated[float, Doc("from the end of an answer to the next question", "s", 40)]
    mean_concurrency: Annotated[float, Doc("requests in flight on average", example=4.8)]
    peak_concurrency: Annotated[
        int, Doc("requests in flight at a busy moment: what the plan holds and is timed at", example=11)
    ]
    requests_per_second: Annotated[float, Doc("questions asked on average", "1/s", 0.504)]
    how: Annotated[str, Doc("the rule in a sentence")]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load of the curve over concurrency, central values."""

    concurrent_sequences: Annotated[int, Doc("requests at once, over all copies", example=32)]
    tpot_ms: Annotated[float, Doc("time per output token", "ms", 21.3)]
    ttft_ms: Annotated[float, Doc("time to first token", "ms", 410.0)]
    output_tokens_per_second: Annotated[float, Doc("over all copies", "tokens/s", 1450.0)]
    keeps_objectives: Annotated[bool | None, Doc("whether the promises are kept; null: none were asked")]
