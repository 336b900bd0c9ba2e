"""Dense decoders built like Llama: fused query-key-value, gated MLP, two norms a layer.

Source: vLLM 0.33 `model_executor/models/llama.py`, `qwen2.py`, `qwen3.py`.
"""

from dataclasses import dataclass

from service.sizing.model import blocks
from service.sizing.model.modules import Module
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape
from service.sizing.model.source import Source


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of grouped-query attention."""

    heads: int
    kv_heads: int
    head_size: int


def read_attention(source: Source) -> Attention:
    """Head counts and size; `head_dim` wins over hidden size by heads."""
    text = source.text
    heads = text.integer("num_attention_heads")
    kv_heads = text.integer("num_key_value_heads", default=heads)
    head_size = text.optional_integer("head_dim")
    if head_size is None:
        hidden = text.integer("hidden_size")
        if hidden % heads:
            raise source.invalid(
                "num_attention_heads",
                f"num_attention_heads ({heads}) must divide hidden_size ({hidden}), or head_dim must be given",
            )
        head_size = hidden // heads
    return Attention(heads, kv_heads, head_size)


def decoder(
    source: Source, *, qkv_bias: bool, output_bias: bool, head_norms: bool, mlp_bias: bool, tied: bool
) -> ModelShape:
    """A decoder of equal layers."""
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    attention, intermediate = read_attention(source), text.integer("intermediate_size")
    cache = AttentionCache(attention.heads, attention.kv_heads, attention.head_size, attention.head_size)

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        modules: list[Module] = [
            blocks.query_key_value(
                quantization,
                f"{path}.self_attn",
                hidden,
                attention.heads,
                attention.kv_heads,
                attention.head_size,
                bias=qkv_bias,
            ),
            blocks.row(
                quantization,
                f"{path}.self_attn",
                "o_proj",
                blocks.Units(attention.heads, attention.head_size),
                hidden,
                bias=output_bias,
            ),
            *blocks.gated_mlp(quantization, f"{path}.mlp", hidden, intermediate, bias=mlp_bias),
            blocks.norm("input_layernorm", hidden),
            blocks.norm("post_attention_layernorm", hidden),
        ]
        if head_norms:
            modules += [blocks.norm("q_norm", attention.head_size), blocks.norm("k_norm", attention.head_size)]
        return LayerShape((cache,), tuple(modules))

    context = source.context()
    tied = source.tied(tied)
    return ModelShape(
        name=source.name,
        architecture=source.architecture,
        model_type=source.model_type,
        dtype=source.dtype,
        hidden_size=hidden,
        vocab_size=vocabulary,
        attention_heads=attention.heads,
        kv_heads=attention.kv_heads,
        layers=tuple(layer(index) for index in range(text.layers("num_hidden_layers"))),
        first_stage=(blocks.embedding(quantization, "model.embed_tokens", vocabulary, hidden),),
        last_stage=(
            blocks.norm("model.norm", hidden),
            *(() if tied else (blocks.head(quantization, vocabulary, hidden),)),
        ),
        tied_head=tied,
        rope_tables=(source.rope_table(attention.head_size),),
        max_context_tokens=context.limit,
        default_context_tokens=context.default,
        context_field=context.field,
        quantization=quantization.method,
    )


def read_llama(source: Source) -> ModelShape:
    """Llama: biases where the configuration says so."""
    bias = source.text.flag("attention_bias", default=False)
    return decoder(
        source,
        qkv_bias=bias,
        output_bias=bias,
        head_norms=False,
        mlp_bias=source.text.flag("mlp_bias", default=False),
        tied=False,
    )


def read_qwen2(source: Source) -> ModelShape:
    """Qwen2: bias on query, key and value only."""
    return decoder(source, qkv_bias=True, output_bias=False, head_norms=False, mlp_bias=False, tied=False)


def read_qwen3(source: Source) -> ModelShape:
    """Qwen3: norms on query and key heads."""
    return decoder(
        source,
        qkv_bias=source.text.flag("attention_bias", default=False),
        output_bias=False,
        head_norms=True,
        mlp_bias=False,
        tied=False,
    )


READERS = {
    "LlamaForCausalLM": read_llama,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
}
