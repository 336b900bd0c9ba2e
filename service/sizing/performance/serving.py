"""A copy under load: time between tokens, time to the first, throughput, as functions of requests at once.

One scheduler step decodes every running sequence and, where a prompt waits, takes in a chunk of it. Closed loop:
`concurrency` clients each send a request as soon as the last is answered. Open loop: requests arrive at a rate.

The time per output token and the time to the first never fall as concurrency rises, and neither rises with a faster
GPU; the tests hold the formulas to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import Generic, TypeVar

from service.sizing.crossing import crossing
from service.sizing.performance.calibration import UNCORRECTED, Correction
from service.sizing.performance.collectives import Collective
from service.sizing.performance.costs import StageCost
from service.sizing.performance.parameters import Engine

MOST_UTILISATION = 0.95
"""Share of what a copy can complete beyond which an arrival rate is refused: queues then grow without a bound that
can be promised."""

Part = TypeVar("Part")

SETTLED = 1e-5
"""Relative width within which the concurrency that an arrival rate settles at is known well enough."""


@dataclass(frozen=True, slots=True)
class State:
    """A copy in steady state; seconds.

    Attributes
    ----------
    concurrency : float
        Requests in the copy, running or waiting.
    sequences : float
        Sequences decoded together.
    step_s : float
        A step without prompts, before any correction.
    tpot_s, ttft_s : float
        Time per output token after the first; time to the first.
    requests_per_second : float
        Completed by the copy.
    """

    concurrency: float
    sequences: float
    step_s: float
    tpot_s: float
    ttft_s: float
    requests_per_second: float

    def answer_s(self, output_tokens: int) -> float:
        """Seconds from a request to the end of its answer."""
        return self.ttft_s + (output_tokens - 1) * self.tpot_s


@dataclass(frozen=True, slots=True)
class Pace:
    """A stage serving requests of one size: what a step takes, by what grows it.

    Attributes
    ----------
    step_s, sequence_s, token_s : float
        Seconds of any step, for each decoded sequence and for each token.
    attention_read_s, attention_multiply_s : float
        Of `sequence_s`: reading what a sequence attends to, and multiplying with it.
    chunk_tokens : float
        Tokens of a prompt that one step takes in.
    chunk_step_s, chunk_s : float
        Seconds that a step with such chunks takes on top, and for each of them.
    """

    cost: StageCost
    step_s: float
    sequence_s: float
    token_s: float
    attention_read_s: float
    attention_multiply_s: float
    chunk_tokens: float
    chunk_step_s: float
    chunk_s: float

    @classmethod
    def of(cls, cost: StageCost, prompt_tokens: int, output_tokens: int, chunks: int) -> "Pace":
        """The pace at the mean context of a request, `prompt_tokens + output_tokens / 2`."""
        start, token = cost.collectives_s
        read, multiply = cost.attention_s(prompt_tokens + output_tokens / 2)
        return cls(
            cost=cost,
            step_s=cost.fixed_s + start,
            sequence_s=cost.sequence_s + hypot(read, multiply),
            token_s=cost.pass_s + token,
            attention_read_s=read,
            attention_multiply_s=multiply,
            chunk_tokens=prompt_tokens / chunks,
            chunk_step_s=cost.prompt_fixed_s,
            chunk_s=cost.prompt_attention_s(prompt_tokens) / chunks,
        )

    @property
    def attention_s(self) -> float:
        """Seconds of attention of one decoded sequence."""
        return hypot(self.attention_read_s, self.attention_multiply_s)

    def seconds(self, sequences: float, chunks: float = 0.0, carriers: float = 1.0) -> float:
        """Seconds of a step that decodes `sequences` and takes in `chunks` of prompts.

        `carriers` is the share of the copies that route together which take such chunks in; the experts see all.
        """
        cost = self.cost
        tokens = sequences + chunks * self.chunk_tokens
        total = (
            hypot(cost.dense_read_s, cost.dense_token_s * tokens)
            + hypot(cost.head_read_s, cost.head_sequence_s * sequences)
            + sequences * self.sequence_s
            + tokens * self.token_s
            + self.step_s
        )
        routed = sequences + chunks * carriers * self.chunk_tokens
        for experts in cost.experts:
            total += experts.seconds(routed)
        return total + self.chunk_step_s + chunks * self.chunk_s if chunks else total


@dataclass(frozen=True, slots=True)
class Parts(Generic[Part]):
    """Parts in a row, many of them the same object.

    Attributes
    ----------
    kinds : tuple
        The objects, each once.
    pattern : tuple of int
        Which of them each part is.
    """

    kinds: tuple[Part, ...]
    pattern: tuple[int, ...]

    @classmethod
    def of(cls, parts: tuple[Part, ...]) -> "Parts[Part]":
        """The kinds of some parts."""
        kinds = {id(part): part for part in parts}
        numbers = {key: number for number, key in enumerate(kinds)}
        return cls(tuple(kinds.values()), tuple(numbers[id(part)] for part in parts))

    def total(self, values: Sequence[float]) -> float:
        """The sum over all parts of a value of each kind."""
        return sum([values[kind] for kind in self.pattern])


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """One copy of a deployment, or a group of copies that share experts, serving requests of one size.

    Compared by identity. Of stages and handoffs that are one object, the seconds are worked out once.

    Attributes
    ----------
    paces : tuple of Pace
        Pipeline stages.
    handoffs : tuple of Collective
        What passes between them.
    handoff_bytes : int
        Bytes of it a token.
    prompt_tokens, output_tokens : int
        Of a request.
    chunks : int
        Steps that a prompt takes.
    most_chunks : float
        Chunks that one step may take in.
    limit : float
        Most sequences that run at once.
    correction : Correction
        Factors on its times from measured points.
    stages, links : Parts
        The paces and the handoffs, by which are alike.
    in_lockstep : int
        Copies that share experts, and so take every step together.
    fixed_s : float
        Seconds of a token that no load changes.
    alone_s : float
        Seconds of a prompt on an idle copy: what it keeps others waiting.
    """

    paces: tuple[Pace, ...]
    handoffs: tuple[Collective, ...]
    handoff_bytes: int
    engine: Engine
    first_token_steps: float
    prompt_tokens: int
    output_tokens: int
    chunks: int
    most_chunks: float
    limit: float
    correction: Correction = UNCORRECTED
    stages: Parts[Pace] = field(init=False)
    links: Parts[Collective] = field(init=False)
    in_lockstep: int = field(init=False)
    fixed_s: float = field(init=False)
    alone_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", Parts[Pace].of(self.paces))
        object.__setattr__(self, "links", Parts[Collective].of(self.handoffs))
        object.__setattr__(
            self, "in_lockstep", max(kind.cost.copies if kind.cost.exchanges else 1 for kind in self.stages.kinds)
        )
        object.__setattr__(self, "fixed_s", sum(pace.step_s for pace in self.paces))
        object.__setattr__(self, "alone_s", self.chunks * max(pace.seconds(0.0, 1.0) for pace in self.stages.kinds))

    def at(self, concurrency: float) -> State:
        """Closed loop of `concurrency` requests; those above the limit wait for a place.

        Every request inside counts as decoding, those whose prompt is being taken in too: an upper bound.
        """
        inside = min(concurrency, self.limit)
        step, tpot, ttft = self.times(max(1.0, inside))
        whole = ttft + (self.output_tokens - 1) * tpot
        return State(
            concurrency=concurrency,
            sequences=max(1.0, inside),
            step_s=step,
            tpot_s=tpot,
            ttft_s=ttft + (concurrency - inside) / inside * whole,
            requests_per_second=inside / whole,
        )

    def times(self, sequences: float) -> tuple[float, float, float]:
        """Seconds of a step without prompts, per output token and to the first, with `sequences` in the copy.

        As many prompts begin as answers end, one in `output` steps for each sequence; those of the others make a step
        longer, chunk by chunk; several share it up to the engine's token budget. What does not fit waits before its
        first token. Copies that share experts take their steps together, so that each waits for the chunks of all. The
        first token comes after the request reached the scheduler, its own chunks, and a share of the prompts of
        others. The correction is of the last two.
        """
        together = min(float(len(self.paces)), sequences)
        each = sequences / together
        step, _ = self._through(together, each)
        prompt_step, slowest = self._through(together, each, 1.0)
        chunks = (sequences - 1) * self.chunks / (self.output_tokens * together)
        tpot, late = step + min(1.0, chunks) * (prompt_step - step), 0.0
        if 0 < chunks < 1 and self.in_lockstep > 1:
            waits = 1 - (1 - chunks) ** self.in_lockstep
            waited, _ = self._through(together, each, 1.0, chunks / waits)
            tpot = step + waits * (waited - step)
        if chunks > 1:
            wanted, _ = self._through(together, each, chunks)
            tpot, _ = self._through(together, each, min(chunks, self.most_chunks))
            late = (self.output_tokens - 1) * (wanted - tpot)
        ttft = (
            self.engine.first_token_s
            + self.first_token_steps * step
            + prompt_step
            + (self.chunks - 1) * slowest
            + self._bunch_s(sequences)
            + late
        )
        return step, self.correction.tpot(self.fixed_s, tpot), self.correction.ttft * ttft

    def _bunch_s(self, requests: float) -> float:
        """What others' prompts keep a prompt waiting where clients send in bunches, before a correction."""
        return self.engine.bunching * max(0.0, requests - 1) * self.alone_s

    def _through(
        self, together: float, sequences: float, chunks: float = 0.0, carriers: float = 1.0
    ) -> tuple[float, float]:
        """Seconds from one token of a sequence to its next, and of the slowest stage.

        `together` batches of `sequences` are on their way at once: a token passes every stage, or waits until the
        slowest has served the others.
        """
        if len(self.paces) == 1:
            seconds = self.paces[0].seconds(sequences, chunks, carriers)
            return seconds, seconds
        steps = [pace.seconds(sequences, chunks, carriers) for pace in self.stages.kinds]
        slowest = max(steps)
        bytes_ = (sequences + chunks * self.prompt_tokens / self.chunks) * self.handoff_bytes
        handed = self.links.total([link.seconds(bytes_) for link in self.links.kinds])
        return max(self.stages.total(steps), together * slowest) + handed, slowest

    def at_rate(self, requests_per_second: float) -> State | None:
        """Open loop; None where more than `MOST_UTILISATION` of what the copy completes at its limit arrives.

        Concurrency settles where as many requests are completed as arrive (Little's law): between the rate times the
        time of an answer alone and the rate times that at the limit.
        """
        full = self.at(self.limit)
        if requests_per_second > MOST_UTILISATION * full.requests_per_second:
            return None
        settled = crossing(
            lambda concurrency: self.at(concurrency).requests_per_second - requests_per_second,
            min(self.limit, requests_per_second / self.at(1.0).requests_per_second),
            min(self.limit, requests_per_second * self.limit / full.requests_per_second),
            SETTLED,
        )
        return self.open_at(settled, requests_per_second)

    def open_at(self, concurrency: float, requests_per_second: float | None = None) -> State:
        """Open loop that has settled at a concurrency, at most the limit, by arrivals at a rate (None: its own).

        A prompt waits for others as in a queue with random arrivals and fixed service (M/D/1), instead of for a bunch.
        """
        state = self.at(concurrency)
        rate = state.requests_per_second if requests_per_second is None else requests_per_second
        busy = min(MOST_UTILISATION, rate * self.alone_s)
        queued = busy / (2 * (1 - busy)) * self.alone_s
        waiting = self.correction.ttft * (queued - self._bunch_s(state.concurrency))
        return State(
            state.concurrency,
            state.sequences,
            state.step_s,
            state.tpot_s,
            state.ttft_s + waiting,
            state.requests_per_second,
        )
