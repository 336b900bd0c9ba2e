"""Every number of the performance model that was fitted or assumed, in one place.

Fitted to public serving runs: 1,008 points of 71 configurations (H100, H200, B200, B300; vLLM, SGLang, TensorRT-LLM;
10 models), published by SemiAnalysis InferenceX and NVIDIA and collected in `silicon_sample.csv` of the package
aiconfigurator-core 0.12.0. Robust least squares of log TPOT and log TTFT, each configuration weighted by the root of
its points, with weak priors at what the operators alone reach. One set serves every model: none has a factor of its
own. What a single number means is less certain than what they predict together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from service.sizing.engine.profile import release
from service.sizing.model.schemes import Compute


def by_type(*, sixteen_bit: float, eight_bit: float, four_bit: float) -> Mapping[Compute, float]:
    """A share of the rated operations for each type; integers of 8 bits were not measured and count as FP8."""
    return {
        Compute.SIXTEEN_BIT: sixteen_bit,
        Compute.FP8: eight_bit,
        Compute.INT8: eight_bit,
        Compute.FP4: four_bit,
    }


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """Shares of what a GPU is rated for, and what is not on its data sheet.

    Attributes
    ----------
    weight_read, expert_read, cache_read : float
        Share of the rated memory bandwidth that reading dense weights, routed experts and cache reaches. The last is
        the measured share of the decode attention kernels over at least 1 GB.
    dense_flops, expert_flops : dict
        Share of the rated operations that a matrix multiplication reaches, by the type it computes in.
    decode_attention_flops, prompt_attention_flops : float
        The same for attention, of the 16-bit rate.
    dequantised_bytes_per_s : float
        Most bytes a second of integer experts that are widened before they are multiplied.
    activation_passes, expert_passes : float
        Times the residual stream of a token crosses memory in a layer; in an expert layer, for each expert visited.
    collective_start : float
        How many times longer a collective takes to start inside the engine than in a loop of its own.
    mixer_s, mlp_s, experts_s, quantised_s, state_s, indexer_s : float
        Seconds a step spends on launches and small kernels for each attention or recurrent block, dense MLP, expert
        layer, layer with quantised activations, recurrent block and indexer (the last three on top).
    group_step_s : float
        Seconds of a step to keep the copies of an expert-sharing group in lockstep.
    first_token_steps : float
        Decode steps that pass before a waiting prompt is scheduled.
    """

    weight_read: float = 0.836
    expert_read: float = 0.973
    cache_read: float = 0.87
    dense_flops: Mapping[Compute, float] = field(
        default_factory=lambda: by_type(sixteen_bit=0.803, eight_bit=0.527, four_bit=0.194)
    )
    expert_flops: Mapping[Compute, float] = field(
        default_factory=lambda: by_type(sixteen_bit=0.273, eight_bit=0.0837, four_bit=0.234)
    )
    decode_attention_flops: float = 0.60
    prompt_attention_flops: float = 0.58
    dequantised_bytes_per_s: float = 3.24e12
    activation_passes: float = 12.0
    expert_passes: float = 4.11
    activation_read: float = 0.80
    collective_start: float = 2.95
    mixer_s: float = 1.02e-5
    mlp_s: float = 6.25e-6
    experts_s: float = 6.33e-5
    quantised_s: float = 1.85e-5
    state_s: float = 2.20e-5
    indexer_s: float = 1.06e-4
    group_step_s: float = 2.48e-3
    first_token_steps: float = 1.47


FITTED = Parameters()


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """What one serving engine adds.

    Attributes
    ----------
    hopper, blackwell : float
        Its launches and small kernels against `Parameters`, on Hopper and older cards, and on data-centre Blackwell.
    step_s : float
        Seconds of a step outside the model.
    first_token_s : float
        Seconds from a request's arrival to the scheduler and from the first token to the client.
    bunching : float
        Share of the other requests' prompts that a prompt waits for when clients send one request after the other.
    prompt_step : float
        What a step with prompt tokens spends on launches and small kernels on top of its own, as a multiple: it runs
        outside full CUDA graphs.
    sequence_s : float
        Seconds of sampling and scheduling for each sequence of a step.
    """

    name: str
    hopper: float
    blackwell: float
    step_s: float
    first_token_s: float
    bunching: float
    prompt_step: float = 2.62
    sequence_s: float = 1.76e-5


VLLM = Engine(
    "vllm",
    hopper=1.0,
    blackwell=0.605,
    step_s=8.8e-5,
    first_token_s=0.0209,
    bunching=0.0599,
    prompt_step=1.5,
    sequence_s=1.0e-5,
)
"""The last two were fitted to all engines together, then to the runs of vLLM alone: its second engine runs steps with
prompts in piecewise graphs, the others in none. Families of models and generations of cards left out agree.
"""

BEFORE_V1 = replace(VLLM, step_s=VLLM.step_s + 2.5e-3, prompt_step=2.62, sequence_s=1.76e-5)
"""vLLM before 0.8 ran its first engine, whose step took 2 to 4 ms more (Llama-3 8B on five cards, vLLM 0.7.3, from
AccelMark), and which had no piecewise graphs."""

V1_RELEASE = (0, 8, 0)
"""The first release whose default is the second engine."""

SGLANG = Engine("sglang", hopper=0.831, blackwell=0.716, step_s=3.35e-4, first_token_s=0.176, bunching=0.145)
TENSORRT_LLM = Engine("trtllm", hopper=1.26, blackwell=0.0871, step_s=1.91e-4, first_token_s=0.0488, bunching=0.0926)

ENGINES = {engine.name: engine for engine in (VLLM, SGLANG, TENSORRT_LLM)}
"""Plans are for vLLM; the others are here because two thirds of what the model was fitted to ran on them."""


@lru_cache(maxsize=256)
def vllm(version: str | None) -> Engine:
    """The engine of a vLLM release; None: the newest."""
    number = None if version is None else release(version)
    return VLLM if number is None or number >= V1_RELEASE else BEFORE_V1
