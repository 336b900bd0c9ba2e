"""Latent attention (MLA): keys and values compressed into one small vector a token.

Source: vLLM 0.33 `model_executor/models/deepseek_v2.py: DeepseekV2MLAAttention`.
"""

from dataclasses import dataclass

from service.sizing.model import blocks
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import LatentCache

INDEX_SCALE_GROUP = 128
"""Elements of an index key that share one scale."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention; `query_rank` is None where queries are not compressed."""

    heads: int
    query_rank: int | None
    latent_size: int
    rope_size: int
    plain_size: int
    value_size: int

    @property
    def key_size(self) -> int:
        """Width of a query or key head: the rotated part and the rest."""
        return self.rope_size + self.plain_size


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sizes of the indexer of sparse attention."""

    heads: int
    head_size: int


def nullable(text: Fields, name: str, default: int | None) -> int | None:
    """A whole number where null is an answer of its own, different from absence."""
    return text.optional_integer(name) if name in text.values else default


def latent_cache(latent: Latent, *, sparse: bool = False) -> LatentCache:
    """What one layer of latent attention keeps."""
    return LatentCache(
        latent.heads, latent.latent_size, latent.rope_size, latent.key_size, latent.value_size, sparse=sparse
    )


def latent_attention(
    quantization: Quantization, path: str, hidden: int, latent: Latent, *, out: str = "o_proj", fused: bool = True
) -> tuple[Module, ...]:
    """Projections down to the latent (replicated), up to the heads (split by heads), `out`, and their norms.

    `fused` classes keep both projections down in one matrix where queries are compressed.
    """
    down = latent.latent_size + latent.rope_size
    keys = Units(latent.heads, latent.key_size)
    queries: tuple[Module, ...]
    if latent.query_rank is None:
        queries = (
            blocks.column(quantization, path, "q_proj", hidden, keys),
            blocks.replicated(quantization, path, "kv_a_proj_with_mqa", hidden, down),
        )
    else:
        compressed = (
            Linear(
                "fused_qkv_a_proj",
                TensorClass.ATTENTION,
                Units(hidden),
                (Units(latent.query_rank), Units(down)),
                Split.REPLICATED,
                scheme=quantization.linear(f"{path}.q_a_proj", f"{path}.kv_a_proj_with_mqa"),
            ),
        )
        apart = (
            blocks.replicated(quantization, path, "q_a_proj", hidden, latent.query_rank),
            blocks.replicated(quantization, path, "kv_a_proj_with_mqa", hidden, down),
        )
        queries = (
            *(compressed if fused else apart),
            blocks.norm("q_a_layernorm", latent.query_rank),
            blocks.column(quantization, path, "q_b_proj", latent.query_rank, keys),
        )
    return (
        *queries,
        blocks.norm("kv_a_layernorm", latent.latent_size),
        blocks.column(
            quantization,
            path,
            "kv_b_proj",
            latent.latent_size,
            Units(latent.heads, latent.plain_size + latent.value_size),
        ),
        blocks.row(quantization, path, out, Units(latent.heads, latent.value_size), hidden),
    )


def indexer(quantization: Quantization, path: str, hidden: int, query_rank: int, sizes: Indexer) -> tuple[Module, ...]:
    """The indexer: replicated; keys and head weights are one matrix that is never quantised; its norm is float32.

    Source: vLLM 0.33 `models/deepseek_v32/attention.py: DeepseekV32Indexer`.
    """
    return (
        blocks.replicated(
            quantization, path, "wq_b", query_rank, sizes.heads * sizes.head_size, tensor_class=TensorClass.INDEXER
        ),
        Linear(
            "wk_weights_proj",
            TensorClass.INDEXER,
            Units(hidden),
            (Units(sizes.head_size), Units(sizes.heads)),
            Split.REPLICATED,
        ),
        Tensor("k_norm", TensorClass.INDEXER, (Units(sizes.head_size),), columns=2, element_bytes=4),
    )
