"""Building blocks that many families share, as vLLM 0.33 fuses and splits them.

Source: vLLM 0.33 `model_executor/layers/linear.py`, `vocab_parallel_embedding.py`, `fused_moe/layer.py`.
"""

from service.sizing.model.modules import Embedding, Experts, Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.quantization import Quantization


def column(
    quantization: Quantization,
    path: str,
    name: str,
    inputs: int,
    outputs: int | Units,
    *,
    bias: bool = False,
    tensor_class: TensorClass = TensorClass.ATTENTION,
    whole: Whole = Whole.NEVER,
) -> Linear:
    """A linear layer split by outputs."""
    units = outputs if isinstance(outputs, Units) else Units(outputs)
    scheme = quantization.linear(f"{path}.{name}")
    return Linear(name, tensor_class, Units(inputs), (units,), Split.COLUMN, bias, scheme, whole=whole)


def row(
    quantization: Quantization,
    path: str,
    name: str,
    inputs: int | Units,
    outputs: int,
    *,
    bias: bool = False,
    tensor_class: TensorClass = TensorClass.ATTENTION,
    whole: Whole = Whole.NEVER,
) -> Linear:
    """A linear layer split by inputs, its bias replicated."""
    units = inputs if isinstance(inputs, Units) else Units(inputs)
    scheme = quantization.linear(f"{path}.{name}")
    return Linear(name, tensor_class, units, (Units(outputs),), Split.ROW, bias, scheme, whole=whole)


def replicated(
    quantization: Quantization,
    path: str,
    name: str,
    inputs: int,
    outputs: int,
    *,
    bias: bool = False,
    tensor_class: TensorClass = TensorClass.ATTENTION,
) -> Linear:
    """A linear layer that every rank holds whole."""
    scheme = quantization.linear(f"{path}.{name}")
    return Linear(name, tensor_class, Units(inputs), (Units(outputs),), Split.REPLICATED, bias, scheme)


def norm(name: str, size: int, *, bias: bool = False) -> Tensor:
    """A normalisation's weight (and bias) of `size`, replicated."""
    return Tensor(name, TensorClass.NORM, (Units(size),), columns=2 if bias else 1)


def query_key_value(
    quantization: Quantization,
    path: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    *,
    value_head_size: int | None = None,
    bias: bool = False,
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj"),
) -> Linear:
    """The fused query, key and value projection; KV heads beyond their number are copied over ranks."""
    return Linear(
        "qkv_proj",
        TensorClass.ATTENTION,
        Units(hidden),
        (
            Units(heads, head_size),
            Units(kv_heads, head_size, replicated=True),
            Units(kv_heads, value_head_size or head_size, replicated=True),
        ),
        Split.COLUMN,
        bias,
        quantization.linear(*(f"{path}.{name}" for name in names)),
    )


def gated_up(
    quantization: Quantization,
    path: str,
    hidden: int,
    intermediate: int,
    *,
    bias: bool = False,
    tensor_class: TensorClass = TensorClass.MLP,
    names: tuple[str, str] = ("gate_proj", "up_proj"),
    whole: Whole = Whole.NEVER,
) -> Linear:
    """Fused gate and up projections."""
    return Linear(
        "gate_up_proj",
        tensor_class,
        Units(hidden),
        (Units(intermediate), Units(intermediate)),
        Split.COLUMN,
        bias,
        quantization.linear(*dict.fromkeys(f"{path}.{name}" for name in names)),
        whole=whole,
    )


def gated_mlp(
    quantization: Quantization,
    path: str,
    hidden: int,
    intermediate: int,
    *,
    bias: bool = False,
    tensor_class: TensorClass = TensorClass.MLP,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    whole: Whole = Whole.NEVER,
) -> tuple[Module, ...]:
    """Fused gate and up projections, and the down projection."""
    gate, up, down = names
    return (
        gated_up(
            quantization,
            path,
            hidden,
            intermediate,
            bias=bias,
            tensor_class=tensor_class,
            names=(gate, up),
            whole=whole,
        ),
        row(quantization, path, down, intermediate, hidden, bias=bias, tensor_class=tensor_class, whole=whole),
    )


def plain_mlp(
    quantization: Quantization,
    path: str,
    hidden: int,
    intermediate: int,
    *,
    bias: bool,
    names: tuple[str, str] = ("fc1", "fc2"),
    tensor_class: TensorClass = TensorClass.MLP,
    whole: Whole = Whole.NEVER,
) -> tuple[Module, ...]:
    """An up and a down projection without a gate."""
    up, down = names
    return (
        column(quantization, path, up, hidden, intermediate, bias=bias, tensor_class=tensor_class, whole=whole),
        row(quantization, path, down, intermediate, hidden, bias=bias, tensor_class=tensor_class, whole=whole),
    )


def routed_experts(
    quantization: Quantization,
    path: str,
    *,
    count: int,
    active: int,
    hidden: int,
    intermediate: int,
    gated: bool = True,
    bias: bool = False,
    name: str = "experts",
    projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
) -> Experts:
    """The routed experts of one layer; `name` and `projections` as the checkpoint has them."""
    scheme = quantization.experts(f"{path}.{name}", projections)
    return Experts("experts", count, active, hidden, intermediate, gated, bias, scheme)


def router(
    quantization: Quantization, path: str, hidden: int, experts: int, *, name: str = "gate", bias: bool = False
) -> Linear:
    """The router: replicated."""
    return replicated(quantization, path, name, hidden, experts, bias=bias, tensor_class=TensorClass.ROUTER)


def plain_router(
    hidden: int,
    experts: int,
    *,
    name: str = "gate",
    bias: bool = False,
    element_bytes: int | None = None,
    float32_without_router_kernels: bool = False,
) -> Linear:
    """A router that is never quantised: most classes give theirs no quantisation."""
    return Linear(
        name,
        TensorClass.ROUTER,
        Units(hidden),
        (Units(experts),),
        Split.REPLICATED,
        bias,
        element_bytes=element_bytes,
        float32_without_router_kernels=float32_without_router_kernels,
    )


def routing_bias(experts: int) -> Tensor:
    """The float32 bias that corrects the choice of experts; published parameter counts leave it out."""
    return Tensor("e_score_correction_bias", TensorClass.ROUTER, (Units(experts),), element_bytes=4, counted=False)


def embedding(quantization: Quantization, name: str, vocabulary: int, hidden: int) -> Embedding:
    """The input vocabulary table."""
    return Embedding(name, TensorClass.EMBEDDING, vocabulary, hidden, scheme=quantization.embedding(name))


def head(
    quantization: Quantization, vocabulary: int, hidden: int, *, name: str = "lm_head", bias: bool = False
) -> Embedding:
    """The output head."""
    return Embedding(name, TensorClass.HEAD, vocabulary, hidden, bias, quantization.head(name))
