"""Inkling: attention with logits by distance, short convolutions over four streams, experts beside sink experts.

Source: vLLM 0.33 `models/inkling/nvidia/model.py`, `attention.py`, `moe.py`, `sconv_swa_attn.py`, `configs.py`.
"""

from dataclasses import dataclass, replace

from service.sizing.model import blocks
from service.sizing.model.assembly import Ends, assemble, build_layers
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.shape import AttentionCache, InputsCache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.patch_folding import folding_tower, sound_table

FLOAT32_BYTES = 4

ROUTER_MULTIPLE = 8
"""What the rows of a router are padded to a multiple of."""

ONLY_KNOWN = {"gate_activation": "sigmoid", "norm_after_topk": True, "inference_moe_w13_interleaved": True}
"""Fields of the experts for which the class knows one value, which is the default."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one kind of layer; `extent` is how far back logits by distance reach, and the window of local layers."""

    heads: int
    kv_heads: int
    size: int
    extent: int
    window: int | None


def read_heads(source: Source) -> tuple[Heads, Heads]:
    """Heads of full and of local layers."""
    text = source.text
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    size = text.optional_integer("head_dim") or even_head_size(source, heads)
    window = text.integer("sliding_window_size", default=512)
    full = Heads(heads, kv_heads, size, text.integer("rel_extent", default=1024), None)
    local = Heads(
        text.integer("swa_num_attention_heads", default=heads),
        text.integer("swa_num_key_value_heads", default=kv_heads),
        text.integer("swa_head_dim", default=size),
        window,
        window,
    )
    return full, local


def read_widths(text: Fields) -> tuple[int, int]:
    """Width of the dense MLP and of an expert, in the spelling of the release or of transformers."""
    dense, width = text.optional_integer("dense_intermediate_size"), text.integer("intermediate_size")
    expert = text.optional_integer("moe_intermediate_size")
    if dense is None and expert is not None:
        return width, expert
    return dense or width, width


def inputs_cache(own: Heads, hidden: int, kernel: int) -> InputsCache:
    """Inputs of the four convolutions, whose width for each KV head is rounded up to a power of two."""
    width = 2 * own.size + 2 * (hidden // own.kv_heads)
    return InputsCache(own.kv_heads, 1 << (width - 1).bit_length(), kernel)


def attention(source: Source, path: str, hidden: int, own: Heads, kernel: int) -> tuple[Module, ...]:
    """Projections, logits by distance, norms, and the convolutions over keys, values and the output."""
    text, quantization = source.text, source.quantization
    relative = text.integer("d_rel", default=16)
    queries, keys = Units(own.heads, own.size), Units(own.kv_heads, own.size, replicated=True)
    return (
        Linear(
            "qkvr",
            TensorClass.ATTENTION,
            Units(hidden),
            (queries, keys, keys, Units(own.heads, relative)),
            Split.COLUMN,
            text.flag("q_bias", default=False),
            quantization.linear(*(f"{path}.{name}" for name in ("wq_du", "wk_dv", "wv_dv", "wr_du"))),
        ),
        blocks.row(quantization, path, "wo_ud", queries, hidden),
        Tensor("rel_logits_proj", TensorClass.ATTENTION, (Units(relative),), columns=own.extent),
        blocks.norm("q_norm", own.size),
        blocks.norm("k_norm", own.size),
        Tensor("k_sconv/v_sconv", TensorClass.ATTENTION, (keys, keys), columns=kernel, split=True),
        Tensor("attn_sconv", TensorClass.ATTENTION, (Units(hidden),), columns=kernel, split=True),
    )


def dense_mlp(source: Source, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """A gated MLP whose gate and up rows alternate in one matrix."""
    quantization, scaled = source.quantization, source.text.flag("use_global_scale", default=False)
    return (
        blocks.column(quantization, path, "w13_dn", hidden, 2 * width, tensor_class=TensorClass.MLP),
        blocks.row(quantization, path, "w2_md", width, hidden, tensor_class=TensorClass.MLP),
        *((Tensor("global_scale", TensorClass.MLP, (Units(1),)),) if scaled else ()),
    )


def expert_mlp(source: Source, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """Router over routed and sink experts, routed experts, and sink experts, which are never quantised."""
    text = source.text
    count, sinks = text.integer("n_routed_experts"), text.integer("n_shared_experts")
    router = Linear(
        "gate",
        TensorClass.ROUTER,
        Units(hidden),
        (Units(count + sinks),),
        Split.REPLICATED,
        output_multiple=ROUTER_MULTIPLE,
    )
    return (
        router,
        *((scalar("gate.global_scale"),) if text.flag("use_global_scale", default=False) else ()),
        *((scalar("gate.bias", count),) if text.flag("use_gate_bias", default=False) else ()),
        replace(
            blocks.routed_experts(
                source.quantization,
                path,
                count=count,
                active=text.integer("num_experts_per_tok"),
                hidden=hidden,
                intermediate=width,
                projections=("w13_weight", "w13_weight", "w2_weight"),
            ),
            filled=True,
        ),
        Tensor("sink_experts", TensorClass.SHARED_EXPERTS, (Units(width),), columns=3 * sinks * hidden, split=True),
    )


def scalar(name: str, count: int = 1) -> Tensor:
    """Float32 numbers of a router."""
    return Tensor(name, TensorClass.ROUTER, (Units(count),), element_bytes=FLOAT32_BYTES)


def refuse_unknown(source: Source) -> None:
    """Refuse what the class knows one value of."""
    text = source.text
    for field, known in ONLY_KNOWN.items():
        if text.raw(field)[1] not in (None, known):
            raise source.refuse(text.named(field), because=f"{text.named(field)} must be {known!r}")
    if not text.flag("shared_expert_sink", default=False):
        field = text.named("shared_expert_sink")
        raise source.refuse(field, because="shared experts that are not sinks are not known")


def towers(source: Source) -> tuple[Module, ...]:
    """What sees and what hears, each where its configuration gives the decoder's width."""
    vision, audio = (source.root.child(name) or Fields({}, name) for name in ("vision_config", "audio_config"))
    modules: tuple[Module, ...] = ()
    for part, field, known in ((vision, "vision_encoder_type", "hmlp"), (audio, "audio_mode", "dmel")):
        if "decoder_dmodel" in part and part.text(field) != known:
            raise source.refuse(part.named(field), because=f"{part.named(field)} must be {known!r}")
    if "decoder_dmodel" in vision:
        modules += folding_tower(vision)
    if "decoder_dmodel" in audio:
        modules += sound_table(audio)
    return modules


def refusal(source: Source) -> str | None:
    """What the class says to another type than bfloat16 and to a bias of the output projection."""
    if source.dtype != "bfloat16":
        return f"sconv SWA cache supports bfloat16 only, got torch.{source.dtype}"
    if source.text.flag("o_bias", default=False):
        return "When not reduce the results, adding bias to the results can lead to incorrect results"
    return None


def read_inkling(source: Source) -> ModelShape:
    """Inkling; every stage builds towers, embedding, norms and head, and every rank the whole embedding."""
    text, quantization = source.text, source.quantization
    hidden, layers = text.integer("hidden_size"), text.layers("num_hidden_layers")
    vocabulary = text.integer("padded_vocab_size", "vocab_size")
    text.ignore("vocab_size", "unpadded_vocab_size", "use_sconv")
    dense_width, expert_width = read_widths(text)
    kernel = text.integer("sconv_kernel_size", "conv_kernel_size", default=4)
    dense = text.integer("dense_mlp_idx", default=0, minimum=0)
    full, local = read_heads(source)
    local_layers = frozenset(text.integers("local_layer_ids") or ())
    if dense < layers:
        refuse_unknown(source)

    def layer(index: int) -> LayerShape:
        path, own = f"model.llm.layers.{index}", local if index in local_layers else full
        cache = AttentionCache(own.heads, own.kv_heads, own.size, own.size, own.window, relative=True)
        mlp = (
            dense_mlp(source, f"{path}.mlp", hidden, dense_width)
            if index < dense
            else expert_mlp(source, f"{path}.mlp", hidden, expert_width)
        )
        return LayerShape(
            (inputs_cache(own, hidden, kernel), cache),
            (
                *attention(source, f"{path}.attn", hidden, own, kernel),
                *mlp,
                Tensor("mlp_sconv", TensorClass.MLP, (Units(hidden),), columns=kernel, split=True),
                blocks.norm("attn_norm", hidden),
                blocks.norm("mlp_norm", hidden),
            ),
        )

    embed_norm = text.flag("use_embed_norm", default=False)
    every = (
        Tensor("embed", TensorClass.EMBEDDING, (Units(vocabulary),), columns=hidden),
        *((blocks.norm("embed_norm", hidden),) if embed_norm else ()),
        blocks.norm("norm", hidden),
        blocks.head(quantization, vocabulary, hidden, name="model.llm.unembed"),
        *(towers(source) if source.root is not source.text else ()),
    )
    model = assemble(
        source,
        build_layers(source, [(index in local_layers, index < dense) for index in range(layers)], layer),
        Ends(every=every),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=full.heads,
        kv_heads=full.kv_heads,
        experts=text.integer("n_routed_experts") if dense < layers else 0,
        handoff_tensors=1,
    )
    return replace(model, build_refusal=refusal(source))


READERS = dict.fromkeys(("InklingForCausalLM", "InklingForConditionalGeneration"), read_inkling)
