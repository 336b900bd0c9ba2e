"""Which scheme each weight is stored in, from `quantization_config` or `hf_quant_config.json`."""

from dataclasses import dataclass
from typing import Protocol

from service.sizing.model.schemes import UNQUANTISED, Scheme


class Quantization(Protocol):
    """The quantisation of one checkpoint.

    Names are full dotted paths of the checkpoint's own modules ("model.layers.0.self_attn.q_proj"); a fused layer is
    asked for with the names of all its parts, as ignore lists spell them.
    """

    @property
    def method(self) -> str | None:
        """The engine's name of the method; None: not quantised."""
        ...

    @property
    def kv_cache_dtype(self) -> str | None:
        """What "auto" means for the cache, where the checkpoint says so."""
        ...

    def linear(self, *names: str) -> Scheme:
        """Scheme of a linear layer fused from `names`."""
        ...

    def experts(self, name: str) -> Scheme:
        """Scheme of the routed experts under `name`."""
        ...

    def embedding(self, name: str) -> Scheme:
        """Scheme of a vocabulary table."""
        ...

    def head(self, name: str) -> Scheme:
        """Scheme of the output head."""
        ...


@dataclass(frozen=True, slots=True)
class NotQuantised:
    """Every weight in the model's own type."""

    method: str | None = None
    kv_cache_dtype: str | None = None

    def linear(self, *names: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED

    def experts(self, name: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED

    def embedding(self, name: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED

    def head(self, name: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED
