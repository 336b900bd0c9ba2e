"""The conformer that Phi-4 Multimodal hears with; every rank holds it whole.

Source: vLLM 0.33 `model_executor/models/phi4mm_audio.py`, `phi4mm_utils.py`.
"""

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.towers.parts import TOWER, convolution, layer_norm, whole_linear


def subsampling(settings: Fields, bins: int, outputs: int, factor: int) -> tuple[Module, ...]:
    """Strided convolutions over time and frequency, all but the first one channel by channel, and a linear layer.

    Raises
    ------
    InvalidConfig
        When the factor is no power of two, or the convolutions are of another kind.
    """
    kind = settings.text("subsampling", default="dw_striding")
    if kind != "dw_striding":
        field = settings.named("subsampling")
        raise InvalidConfig(field, f"{field} ({kind!r}) must be 'dw_striding'")
    if factor < 2 or factor & (factor - 1):
        raise InvalidConfig("time_reduction", f"time_reduction ({factor}) must be a power of two")
    channels, padding = (
        settings.integer("conv_channels", default=256),
        3 if settings.flag("is_causal", default=False) else 2,
    )
    rounds = factor.bit_length() - 1
    for _ in range(rounds):
        bins = (bins + padding - 3) // 2 + 1
    return (
        convolution("conv.0", 1, channels, 9),
        *(convolution("conv.depthwise", 1, channels, 9), convolution("conv.pointwise", channels, channels, 1))
        * (rounds - 1),
        whole_linear("out", channels * bins, outputs),
    )


def feed_forward(hidden: int, width: int, *, bias: bool) -> tuple[Module, ...]:
    """A gated MLP behind its norm."""
    return (
        layer_norm("layer_norm", hidden),
        whole_linear("net.0.linear", hidden, 2 * width, bias=bias),
        whole_linear("net.2", width, hidden),
    )


def convolution_module(encoder: Fields, hidden: int) -> tuple[Module, ...]:
    """A gate, a convolution of each channel, and a mixture of channels."""
    gate = encoder.integer("ext_pw_out_channel", minimum=0, default=0)
    separable = encoder.integer("depthwise_seperable_out_channel", minimum=0, default=256)
    taps, multiplier = (
        encoder.integer("ext_pw_kernel_size", default=1),
        encoder.integer("depthwise_multiplier", default=1),
    )
    bias, inner = encoder.flag("bias_in_glu", default=True), hidden * multiplier
    modules: list[Module] = [layer_norm("layer_norm", hidden)]
    if gate:
        modules.append(convolution("ext_pw_conv_1d", hidden, gate, taps))
        if encoder.flag("linear_glu_in_convm", default=False):
            modules.append(whole_linear("glu.linear", hidden, 2 * gate, bias=bias))
        else:
            modules.append(convolution("glu.ext_pw_conv_1d", hidden, 2 * gate, taps))
            modules += (Tensor("glu.b", TOWER, (Units(2 * gate),)),) if bias else ()
    if encoder.flag("batch_norm", default=False):
        raise InvalidConfig("batch_norm", "batch_norm of a conformer must be false")
    modules.append(convolution("dw_conv", 1, inner, encoder.integer("kernel_size", default=3)))
    if separable:
        modules.append(convolution("pw_conv", inner, separable, 1))
    if separable and separable != hidden:
        modules.append(whole_linear("ln2", separable, hidden))
    elif not separable and multiplier != 1:
        modules.append(whole_linear("ln2", inner, hidden))
    return tuple(modules)


def conformer(encoder: Fields) -> tuple[Module, ...]:
    """Subsampling, layers of attention and convolution between halves of an MLP, and one bias by distance for all."""
    hidden, heads = encoder.integer("attention_dim", default=256), encoder.integer("attention_heads", default=4)
    width, groups = encoder.integer("linear_units", default=2048), encoder.integer("attention_group_size", default=1)
    if hidden % heads or heads % groups:
        raise InvalidConfig("attention_heads", f"attention_heads ({heads}) must divide attention_dim ({hidden})")
    if groups > 1 and encoder.flag("use_pt_scaled_dot_product_attention", default=True):
        raise InvalidConfig("attention_group_size", f"attention_group_size ({groups}) must be 1")
    empty = Fields({}, encoder.path)
    relative, embedded = (
        encoder.child("relative_attention_bias_args") or empty,
        encoder.child("encoder_embedding_config"),
    )
    if relative.text("type", default="") != "t5" or embedded is None:
        field = encoder.named("relative_attention_bias_args")
        raise InvalidConfig(field, f"{field} must be of type 't5', beside an encoder_embedding_config")
    distances = relative.integer("t5_bias_max_distance", default=1000)
    mlp = feed_forward(hidden, width, bias=encoder.flag("bias_in_glu", default=True))
    layer = (
        *mlp,
        whole_linear("linear_q", hidden, hidden),
        whole_linear("linear_k/v", hidden, 2 * hidden // groups),
        whole_linear("linear_out", hidden // groups, hidden),
        *convolution_module(encoder, hidden),
        *mlp,
        layer_norm("layer_norms", 2 * hidden),
    )
    return (
        *subsampling(
            encoder.child("nemo_conv_settings") or empty,
            encoder.integer("input_size"),
            hidden,
            encoder.integer("time_reduction", default=4),
        ),
        Tensor(
            "relative_attention_bias_layer",
            TOWER,
            (Units(distances if relative.flag("t5_bias_symmetric", default=False) else 2 * distances),),
            columns=heads // groups,
        ),
        Tensor("encoder_embedding", TOWER, (Units(embedded.integer("input_size")),), columns=2),
        *layer * encoder.layers("num_blocks", default=6),
        Tensor("dev_type", TOWER, (Units(1),), buffer=True),
    )
