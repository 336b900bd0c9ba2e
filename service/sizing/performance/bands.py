"""How far off the model was, by kind of case, and what was never measured.

Errors are those of the development rows predicted by fits that had not seen them: held out by configuration for
covered cases, by family of models, by generation of GPUs, and by both. Each band holds the middle 80 % of
measured over predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from service.sizing.hardware import Gpu, Link
from service.sizing.layouts import Layout
from service.sizing.model.shape import ModelShape
from service.sizing.performance.calibration import Tier
from service.sizing.performance.collectives import WORST_PCIE

COVERED_GPUS = frozenset({"h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm"})
"""GPUs whose runs the model was fitted to."""

COVERED_ARCHITECTURES = frozenset(
    {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "GptOssForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Families whose runs it was fitted to, and those made of the same layers as Llama."""

MOST_MEASURED_CONCURRENCY = 512
MOST_MEASURED_CONTEXT = 9216
"""Largest load and longest request of the development rows."""


@dataclass(frozen=True, slots=True)
class Range:
    """Ends of a band as factors of the prediction."""

    low: float
    high: float

    def widened(self, low: float, high: float) -> "Range":
        """The same, wider by two factors."""
        return Range(self.low * low, self.high * high)


@dataclass(frozen=True, slots=True)
class Error:
    """Bands of the three predictions."""

    tpot: Range
    ttft: Range
    throughput: Range

    def widened(self, low: float, high: float) -> "Error":
        """Wider by two factors; throughput falls where times rise."""
        return Error(
            self.tpot.widened(low, high), self.ttft.widened(low, high), self.throughput.widened(1 / high, 1 / low)
        )


COLD: Mapping[tuple[bool, bool, bool], Error] = {
    (True, True, False): Error(Range(0.86, 1.20), Range(0.58, 2.00), Range(0.83, 1.13)),
    (True, True, True): Error(Range(0.83, 1.28), Range(0.57, 1.75), Range(0.78, 1.20)),
    (True, False, False): Error(Range(0.86, 1.30), Range(0.55, 1.90), Range(0.76, 1.15)),
    (True, False, True): Error(Range(0.80, 1.40), Range(0.52, 1.80), Range(0.72, 1.24)),
    (False, True, False): Error(Range(0.82, 1.30), Range(0.55, 1.90), Range(0.76, 1.20)),
    (False, True, True): Error(Range(0.79, 1.44), Range(0.52, 1.80), Range(0.71, 1.26)),
    (False, False, False): Error(Range(0.77, 1.35), Range(0.50, 1.90), Range(0.75, 1.29)),
    (False, False, True): Error(Range(0.75, 1.45), Range(0.40, 1.80), Range(0.70, 1.33)),
}
"""Bands without a measurement, by whether GPU and family are covered and whether there are experts.

Unseen cards and families of dense models are given a little more than was found: few kinds stand for many.
"""

CALIBRATED: Mapping[Tier, Error] = {
    Tier.SIBLINGS: Error(Range(0.84, 1.22), Range(0.58, 1.80), Range(0.82, 1.19)),
    Tier.ONE_POINT: Error(Range(0.86, 1.12), Range(0.60, 1.50), Range(0.89, 1.16)),
    Tier.POINTS: Error(Range(0.92, 1.17), Range(0.55, 1.45), Range(0.85, 1.09)),
}
"""Bands with measured points: of the points left out of the correction."""


@dataclass(frozen=True, slots=True)
class Off:
    """Absolute error of held-out points, per cent: median, mean and 90th percentile."""

    median: float
    mean: float
    p90: float

    def __str__(self) -> str:
        return f"median error {self.median:g} %, mean {self.mean:g} %, 90th percentile {self.p90:g} %"


@dataclass(frozen=True, slots=True)
class Measured:
    """Errors of the three predictions."""

    tpot: Off
    ttft: Off
    throughput: Off


MEASURED: Mapping[tuple[bool, bool], Measured] = {
    (True, True): Measured(Off(9.0, 12.2, 25), Off(26, 36, 73), Off(8.8, 12.6, 27)),
    (True, False): Measured(Off(11.6, 15.1, 32), Off(29, 40, 83), Off(11.3, 16.2, 37)),
    (False, True): Measured(Off(11.1, 15.4, 33), Off(28, 41, 83), Off(10.4, 15.8, 37)),
    (False, False): Measured(Off(11.9, 16.5, 37), Off(32, 53, 121), Off(11.3, 15.5, 33)),
}
"""Errors without a measurement, by whether GPU and family are covered: of points that the fit had not seen."""

CALIBRATED_MEAN_PERCENT: Mapping[Tier, float] = {Tier.SIBLINGS: 11, Tier.ONE_POINT: 9, Tier.POINTS: 6}
"""Mean error of the time per output token with measured points; the other two were not measured apart."""

NOT_VALIDATED_LOW, NOT_VALIDATED_HIGH = 0.8, 1.3
"""How much wider a band is where no measured run stands behind a part of the formula; assumed."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the three predictions come from and how far off such predictions were."""

    tpot: str
    ttft: str
    throughput: str


@dataclass(frozen=True, slots=True)
class Confidence:
    """How a deployment relates to what was measured: its bands, their description, and notes for its reader."""

    error: Error
    sources: Sources
    notes: tuple[str, ...]


@lru_cache(maxsize=4096)
def confidence(
    model: ModelShape,
    layout: Layout,
    gpu: Gpu,
    link: Link,
    gpus_per_node: int,
    beyond_measured: bool,
    tier: Tier,
    all_reduce_measured: bool = False,
) -> Confidence:
    """The bands of a case.

    Parameters
    ----------
    beyond_measured : bool
        Whether the load or the requests are larger than any measured.
    tier : Tier
        What measured points there are of the configuration.
    all_reduce_measured : bool
        Whether a link test tells of its all-reduces.
    """
    missing = tuple(_not_validated(model, layout, link, gpus_per_node, beyond_measured, all_reduce_measured))
    notes = missing
    if tier is not Tier.NONE:
        error, kind = CALIBRATED[tier], tier.value
        mean = f"mean error {CALIBRATED_MEAN_PERCENT[tier]:g} %"
        errors = mean, "", ""
    else:
        gpu_covered = gpu.slug in COVERED_GPUS and (link is gpu.link or layout.gpu_count == 1)
        family_covered = model.architecture in COVERED_ARCHITECTURES
        error, measured = COLD[gpu_covered, family_covered, model.experts > 0], MEASURED[gpu_covered, family_covered]
        errors = str(measured.tpot), str(measured.ttft), str(measured.throughput)
        kind = (
            f"a {'measured' if gpu_covered else 'never measured'} GPU and a "
            f"{'measured' if family_covered else 'never measured'} family of models"
            f"{' with experts' if model.experts else ''}"
        )
        if not gpu_covered:
            notes += (f"not validated: no serving run on {gpu.name} was measured",)
        if not family_covered:
            notes += (f"not validated: no serving run of {model.architecture} was measured",)
    if missing:
        error = error.widened(NOT_VALIDATED_LOW, NOT_VALIDATED_HIGH)
    return Confidence(error, Sources(*(_source(each, kind, bool(missing)) for each in errors)), notes)


def _source(error: str, kind: str, part_not_validated: bool) -> str:
    """What a figure says of itself: the error measured where such cases were held out of the fit, and its band."""
    known = f"{error} of points held out; " if error else ""
    wider = ", wider because a part is not validated" if part_not_validated else ""
    return f"performance model for {kind}: {known}band: the middle 80 % of such runs{wider}"


def _not_validated(
    model: ModelShape,
    layout: Layout,
    link: Link,
    gpus_per_node: int,
    beyond_measured: bool,
    all_reduce_measured: bool,
) -> Iterator[str]:
    """Parts of the formula that no measured run stands behind."""
    tensor = layout.tensor_parallel_size
    group = tensor * (layout.data_parallel_size if model.experts else 1)
    if layout.pipeline_parallel_size > 1:
        yield (
            "not validated: no serving run with pipeline stages was measured; requests are taken to be spread evenly "
            "over the batches on their way"
        )
    if group > tensor:
        yield "not validated: hardly any run that exchanges tokens between expert ranks was measured"
    if group > gpus_per_node:
        yield "not validated: no serving run across nodes was measured"
    if layout.decode_context_parallel_size > 1:
        yield "not validated: no serving run with decode context parallelism was measured"
    if link is Link.PCIE and tensor > 2:
        if all_reduce_measured:
            yield "not validated: no serving run with tensor parallel over more than two PCIe cards was measured"
        else:
            yield (
                "not validated: tensor parallel over PCIe assumes that the cards reach each other; a host without peer "
                f"access between its sockets took up to {WORST_PCIE:.0f} times longer for each exchange"
            )
    if beyond_measured:
        yield (
            f"not validated: no serving run above {MOST_MEASURED_CONCURRENCY} requests at once or "
            f"{MOST_MEASURED_CONTEXT} tokens a request was measured"
        )
