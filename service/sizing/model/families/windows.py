"""Which layers slide, where a configuration leaves it to its class (transformers 5.20 `configuration_*.py`)."""

from collections.abc import Callable

from service.sizing.model.source import SLIDING_ATTENTION, Source


def switched_window(source: Source) -> Source:
    """Qwen's window: only where switched on."""
    on = source.text.flag("use_sliding_window", default=False)
    return source if on else source.overridden({"sliding_window": None})


def window_layers(source: Source) -> Source:
    """Qwen's windows: only where switched on, and from `max_window_layers` up."""
    source = switched_window(source)
    text = source.text
    layers = text.layers("num_hidden_layers")
    start = text.integer("max_window_layers", default=28, minimum=0)
    slides = text.optional_integer("sliding_window", minimum=0)
    computed = [SLIDING_ATTENTION if slides and index >= start else "full_attention" for index in range(layers)]
    return source.with_defaults({"layer_types": computed})


def mixed_window_refusal(source: Source) -> str | None:
    """What Qwen's classes say to a window in some layers only."""
    text, layers = source.text, source.text.layers("num_hidden_layers")
    start = text.integer("max_window_layers", default=28, minimum=0)
    if len(set(text.texts("layer_types") or ())) < 2 or start == layers:
        return None
    return (
        "Sliding window for some but all layers is not supported. This model uses sliding window but "
        f"`max_window_layers` = {start} is less than `num_hidden_layers` = {layers}. Please open an issue to discuss "
        "this feature."
    )


def dual_chunk_refusal(source: Source) -> str | None:
    """What the engine says to attention in dual chunks, which its kernels no longer take."""
    if not source.text.raw("dual_chunk_attention_config")[1]:
        return None
    return "FlashAttentionImpl.__init__() got an unexpected keyword argument 'layer_idx'"


def qwen_refusal(source: Source) -> str | None:
    """What Qwen's dense classes say while they are built."""
    return mixed_window_refusal(source) or dual_chunk_refusal(source)


def periodic_layers(every: int, full: int) -> Callable[[Source], Source]:
    """Layers that slide, where the configuration lists none, but for each `full`-th of `every`."""

    def prepare(source: Source) -> Source:
        layers = range(source.text.layers("num_hidden_layers"))
        kinds = ["full_attention" if index % every == full else SLIDING_ATTENTION for index in layers]
        return source.with_defaults({"layer_types": kinds})

    return prepare


def patterned_layers(source: Source) -> Source:
    """EXAONE's layers: a full one after every `sliding_window_pattern`."""
    if "layer_types" in source.text:
        return source
    every = source.text.integer("sliding_window_pattern")
    return periodic_layers(every, every - 1)(source)


def unrotated_windows(source: Source) -> Source:
    """SmolLM3's layers: a window, where switched on, in those without rotary positions."""
    text = source.text
    layers, every = text.layers("num_hidden_layers"), text.integer("no_rope_layer_interval", default=4)
    rotated = text.integers("no_rope_layers") or [int((index + 1) % every != 0) for index in range(layers)]
    if len(rotated) < layers:
        raise source.invalid("no_rope_layers", f"no_rope_layers must have {layers} entries, not {len(rotated)}")
    slides = text.flag("use_sliding_window", default=False) and text.optional_integer("sliding_window", minimum=0)
    computed = [SLIDING_ATTENTION if slides and not rotated[index] else "full_attention" for index in range(layers)]
    return source.with_defaults({"layer_types": computed})
