"""Rules on the quantisation: whether the release knows it, the card runs it, and the split keeps its groups whole.

Source: vLLM 0.33 `layers/quantization/`, `utils/fp8_utils.py: validate_fp8_block_shape`, `fused_moe/oracle/fp8.py`,
`distributed/utils.py: verify_group_size_divides_partition`, `kernels/linear/mixed_precision/`.
"""

from functools import lru_cache
from math import gcd

from service.sizing.engine.refusal import Fix, Refusal
from service.sizing.engine.validity.setting import Rule, Setting, by_layout, in_build_order
from service.sizing.layouts import Layout
from service.sizing.model.modules import Experts, Linear, Split
from service.sizing.model.schemes import Compute, Scheme
from service.sizing.model.shape import ModelShape
from service.sizing.weights import intermediate_on_rank, sizes_on_rank

MINIMUM_CAPABILITY = {
    "auto_awq": 75,
    "auto_gptq": 60,
    "compressed-tensors": 70,
    "deepseek_v4_fp8": 75,
    "experts_int8": 80,
    "fbgemm_fp8": 80,
    "fp8": 75,
    "gpt_oss_mxfp4": 80,
    "inc": 60,
    "modelopt": 80,
    "modelopt_fp4": 75,
    "modelopt_mixed": 75,
    "modelopt_mxfp8": 80,
    "moe_wna16": 70,
    "mxfp4": 80,
    "quark": 70,
    "torchao": 75,
}
"""Least compute capability, as one number, that the engine asks for each method."""

BFLOAT16_ONLY = frozenset({"gpt_oss_mxfp4", "modelopt_mxfp8", "mxfp4"})
"""Methods that compute in bfloat16 alone, which cards below compute capability 8.0 lack."""

PACKED_INTEGERS = frozenset({"auto_gptq", "compressed-tensors", "inc"})
"""Methods whose packed integers choose a kernel by their shape."""

MACHETE_GROUPS = frozenset({64, 128})
MACHETE_INPUTS = 64
MACHETE_OUTPUTS = 128
"""What Hopper's kernel for packed integers takes."""

NOT_BUILT_IN_SINCE = (0, 33, 0)
"""First release read in which bitsandbytes and GGUF are no longer built in."""

SIXTEEN_BITS = 16
FP8_BITS = 8

HOPPER = (9, 0)
QUARK_FP8, QUARK_OTHERS = (8, 9), (7, 0)
COMPRESSED_MXFP4, COMPRESSED_OTHERS = (8, 0), (7, 5)
"""Least compute capability that a method asks for a scheme."""

SMALLEST_REFINED_BLOCK = 32
"""Block scales of experts may be refined to a common divisor, but not below this."""


def method_built_in(setting: Setting) -> Refusal | None:
    """The release must know the method."""
    model = setting.model
    if model.quantization_refusal is None or setting.release < NOT_BUILT_IN_SINCE:
        return None
    return Refusal(
        "quantization_not_built_in",
        f"this release does not run the {model.quantization} weights of this checkpoint",
        model.quantization_refusal,
        (Fix("use a checkpoint quantised another way"), Fix("use a release that has the method")),
    )


def card_runs_method(setting: Setting) -> Refusal | None:
    """The card must have the compute capability the method asks for."""
    capability, method = setting.gpu.compute_capability, setting.model.quantization
    if capability is None or method is None:
        return None
    least, current = MINIMUM_CAPABILITY.get(method, 0), capability[0] * 10 + capability[1]
    if current >= least:
        return None
    return Refusal(
        "quantization_needs_newer_gpu",
        f"{method} needs compute capability {least / 10:.1f}; {setting.gpu.name} has {current / 10:.1f}",
        f"The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. "
        f"Current capability: {current}.",
        (Fix(f"choose a GPU of compute capability {least / 10:.1f} or newer"),),
    )


def card_has_methods_type(setting: Setting) -> Refusal | None:
    """The card must have the type the method computes in."""
    capability, method = setting.gpu.compute_capability, setting.model.quantization
    if capability is None or capability >= (8, 0) or method not in BFLOAT16_ONLY:
        return None
    return Refusal(
        "quantization_needs_bfloat16",
        f"{method} computes in bfloat16, which {setting.gpu.name} does not have",
        f"torch.float16 is not supported for quantization method {method}. Supported dtypes: [torch.bfloat16]",
        (Fix("choose a GPU of compute capability 8.0 or newer"),),
    )


def card_runs_scheme(setting: Setting) -> Refusal | None:
    """The card must have a kernel for the scheme of every linear layer."""
    capability, method = setting.gpu.compute_capability, setting.model.quantization
    if capability is None or method not in ("quark", "compressed-tensors"):
        return None
    for module in _first_of_each_scheme(setting.model):
        if module.scheme.bits == SIXTEEN_BITS:
            continue
        if _hopper_alone(module.scheme) and method == "compressed-tensors" and capability != HOPPER:
            return Refusal(
                "quantization_needs_hopper",
                f"only Hopper has kernels for {module.scheme.name}; {setting.gpu.name} is another generation",
                f"No compressed-tensors compatible scheme was found for layer_name='{module.name}'",
                (Fix("choose a Hopper GPU (H100, H200)"),),
            )
        least = _least_capability(module.scheme, method)
        if capability >= least:
            continue
        needed, current = (10 * major + minor for major, minor in (least, capability))
        return Refusal(
            "quantization_needs_newer_gpu",
            f"{module.scheme.name} needs compute capability {needed / 10:.1f}; {setting.gpu.name} has "
            f"{current / 10:.1f}",
            f"Quantization scheme is not supported for the current GPU. Min capability: {needed}. Current capability: "
            f"{current}.",
            (Fix(f"choose a GPU of compute capability {needed / 10:.1f} or newer"),),
        )
    return None


@lru_cache(maxsize=1024)
def _first_of_each_scheme(model: ModelShape) -> tuple[Linear, ...]:
    """The linear layer that is built first of those with the same scheme, for every scheme."""
    found = dict[Scheme, Linear]()
    for module in in_build_order(model):
        if isinstance(module, Linear):
            found.setdefault(module.scheme, module)
    return tuple(found.values())


def _least_capability(scheme: Scheme, method: str) -> tuple[int, int]:
    """What a method asks of a card for a scheme: Quark's FP8 does not fall back to 16-bit kernels, as others do."""
    if method == "quark":
        return QUARK_FP8 if _plain_fp8(scheme) else QUARK_OTHERS
    return COMPRESSED_MXFP4 if scheme.name.startswith("MXFP4") else COMPRESSED_OTHERS


def _plain_fp8(scheme: Scheme) -> bool:
    """Whether weights are FP8 without the scales of microscaling."""
    return scheme.compute is Compute.FP8 and scheme.bits == FP8_BITS and scheme.group_size is None


def _hopper_alone(scheme: Scheme) -> bool:
    """Whether four-bit integers meet FP8 inputs, for which only Hopper has a kernel."""
    return scheme.compute is Compute.FP8 and scheme.name.startswith("INT4")


@by_layout
def blocks_stay_whole(model: ModelShape, layout: Layout) -> Refusal | None:
    """A split may not cut the square blocks that share a scale."""
    for module in in_build_order(model):
        if not isinstance(module, Linear | Experts) or module.scheme.block_shape is None:
            continue
        rows, columns = module.scheme.block_shape
        if isinstance(module, Linear):
            refusal = _linear_block_cut(module, model, layout, rows, columns)
        else:
            refusal = _expert_block_cut(module, model, layout, rows, columns)
        if refusal is not None:
            return refusal
    return None


def _linear_block_cut(module: Linear, model: ModelShape, layout: Layout, rows: int, columns: int) -> Refusal | None:
    """The first block of a linear layer that the split cuts.

    The engine's native FP8 forgives columns fused from several matrices; other methods do not.
    """
    inputs, outputs = sizes_on_rank(module, layout)
    if inputs < module.inputs.total and inputs % columns:
        return _cut(
            module.name,
            inputs,
            columns,
            f"Weight input_size_per_partition = {inputs} is not divisible by weight quantization block_k = {columns}.",
        )
    split = module.split is Split.COLUMN and sum(outputs) < sum(units.total for units in module.outputs)
    fused = len(outputs) > 1
    if (model.quantization == "fp8" and fused) or not (split or fused):
        return None
    for size in outputs if split else outputs[:-1]:
        if size % rows:
            return _cut(
                module.name,
                size,
                rows,
                f"Weight output_partition_size = {size} is not divisible by weight quantization block_n = {rows}.",
            )
    return None


def _expert_block_cut(module: Experts, model: ModelShape, layout: Layout, rows: int, columns: int) -> Refusal | None:
    """The block that the split of the experts' width cuts; the engine's native FP8 first tries smaller blocks."""
    width, split = intermediate_on_rank(module, layout), layout.expert_width_ranks > 1
    if width % rows == 0 and not (split and width % columns):
        return None
    if model.quantization == "fp8" and gcd(rows, columns, width, module.hidden) >= SMALLEST_REFINED_BLOCK:
        return None
    words = (
        f"The output_size of gate's and up's weight = {width} is not divisible by weight quantization block_n = {rows}."
        if width % rows
        else f"The input_size of down's weight = {width} is not divisible by weight quantization block_k = {columns}."
    )
    return _cut(module.name, width, rows if width % rows else columns, words)


def _cut(name: str, size: int, block: int, words: str) -> Refusal:
    return Refusal(
        "quantization_block_cut",
        f"{size} of {name} on a GPU is not a whole number of quantisation blocks of {block}",
        words,
    )


def groups_stay_whole(setting: Setting) -> Refusal | None:
    """No split, and no width, may cut the groups of inputs that share a scale."""
    return _first_group_cut(setting.model, setting.layout, setting.gpu.compute_capability == HOPPER)


@lru_cache(maxsize=4096)
def _first_group_cut(model: ModelShape, layout: Layout, hopper: bool) -> Refusal | None:
    for module in in_build_order(model):
        if not isinstance(module, Linear) or module.scheme.group_size is None:
            continue
        inputs, outputs = sizes_on_rank(module, layout)
        group = module.scheme.group_size
        packed = _packed_integers(model, module)
        if inputs % group == 0 or group >= module.inputs.total or not (packed or inputs < module.inputs.total):
            continue
        if packed and not (hopper and _machete_takes(group, inputs, sum(outputs))):
            return _group_cut(
                module.name,
                inputs,
                group,
                "Failed to find a kernel that can implement the WNA16 linear layer. Reasons: \n "
                f"MarlinLinearKernel cannot implement due to: in_features per partition {inputs} is not divisible by "
                f"group_size = {group}.",
            )
        layer = f" for layer '{module.name}'" if model.quantization == "compressed-tensors" else ""
        if inputs < module.inputs.total or layer:
            return _group_cut(
                module.name,
                inputs,
                group,
                f"Weight input_size_per_partition={inputs}{layer} is not divisible by group_size={group}. This happens "
                "when tensor_parallel_size splits the layer input into shards that are not a whole number of quant "
                "groups. Consider reducing tensor_parallel_size.",
            )
    return None


def _packed_integers(model: ModelShape, module: Linear) -> bool:
    """Whether a layer is packed integers that a kernel must be found for while it is built."""
    scheme = module.scheme
    integers = scheme.compute is Compute.SIXTEEN_BIT and "INT" in scheme.name
    return integers and model.quantization in PACKED_INTEGERS


def _machete_takes(group: int, inputs: int, outputs: int) -> bool:
    """Whether Hopper's kernel, which does not look at cut groups, takes packed integers."""
    return group in MACHETE_GROUPS and inputs % MACHETE_INPUTS == 0 and outputs % MACHETE_OUTPUTS == 0


@by_layout
def expert_groups_stay_whole(model: ModelShape, layout: Layout) -> Refusal | None:
    """Packed integers of compressed-tensors keep the groups of split experts whole; other kernels pad."""
    if model.quantization != "compressed-tensors":
        return None
    for module in in_build_order(model):
        if not isinstance(module, Experts) or module.scheme.compute is not Compute.SIXTEEN_BIT:
            continue
        group, width = module.scheme.group_size, intermediate_on_rank(module, layout)
        if group is not None and module.scheme.bits < SIXTEEN_BITS and width % group:
            return _group_cut(
                module.name,
                width,
                group,
                "CompressedTensors WNA16 MoE with static group scales requires the MoE intermediate size per "
                f"tensor-parallel partition ({width}) to be divisible by group_size ({group}).",
            )
    return None


def _group_cut(name: str, size: int, group: int, words: str) -> Refusal:
    return Refusal(
        "quantization_group_cut",
        f"{size} inputs of {name} on a GPU are not a whole number of quantisation groups of {group}",
        words,
    )


CARD: tuple[Rule, ...] = (card_runs_method, card_has_methods_type)
"""What the engine checks once the layout is accepted."""

WHILE_BUILDING: tuple[Rule, ...] = (card_runs_scheme, blocks_stay_whole, groups_stay_whole, expert_groups_stay_whole)
"""What it meets while it builds the model."""
