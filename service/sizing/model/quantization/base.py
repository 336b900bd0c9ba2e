"""What a reader of models asks of a quantised checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from service.sizing.model.schemes import UNQUANTISED, Scheme
from service.sizing.model.shape import AttentionScales

NO_SCALES = AttentionScales()

GATED_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""Usual names of an expert's matrices in a checkpoint."""


class Quantization(Protocol):
    """The quantisation of one checkpoint.

    A family asks for exactly those layers that the engine's model class hands its `quant_config` to, under the full
    dotted names of the checkpoint's own modules ("model.layers.0.self_attn.q_proj"); a fused layer is asked for with
    the names of all its parts, as ignore lists spell them. Layers the engine builds without it (norms, many routers,
    most towers and projectors) never ask.

    Attributes
    ----------
    method : str or None
        The engine's name of the method; None: not quantised.
    kv_cache_dtype : str or None
        What "auto" means for the cache, where the checkpoint says so.
    attention : AttentionScales
        Parameters that attention operators gain.
    refusal : str or None
        Why vLLM 0.33 does not load such a checkpoint, in its words. Sizes are then those of the versions that did.
    exact : bool
        Whether the sizes are the engine's to the byte.
    notes : tuple of str
        What a reader should know.
    """

    @property
    def method(self) -> str | None: ...

    @property
    def kv_cache_dtype(self) -> str | None: ...

    @property
    def attention(self) -> AttentionScales: ...

    @property
    def refusal(self) -> str | None: ...

    @property
    def exact(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def linear(self, *names: str) -> Scheme:
        """Scheme of a linear layer fused from `names`.

        Raises
        ------
        InvalidConfig
            The parts are to be stored in different ways, which the engine refuses.
        NotUnderstood
            The way they are stored is covered by no rule.
        """
        ...

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """Scheme of the routed experts under `name`, whose matrices a checkpoint calls `projections`."""
        ...

    def embedding(self, name: str) -> Scheme:
        """Scheme of a vocabulary table."""
        ...

    def head(self, name: str) -> Scheme:
        """Scheme of the output head."""
        ...


@dataclass(frozen=True, kw_only=True)
class NotQuantised:
    """Every weight in the model's own type; the base of every method."""

    method: str | None = None
    kv_cache_dtype: str | None = None
    attention: AttentionScales = NO_SCALES
    refusal: str | None = None
    exact: bool = True
    notes: tuple[str, ...] = ()

    def linear(self, *names: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """Unquantised."""
        return UNQUANTISED

    def embedding(self, name: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED

    def head(self, name: str) -> Scheme:
        """Unquantised."""
        return UNQUANTISED


Skip = Callable[[tuple[str, ...]], bool]
"""Whether a layer fused from some names stays unquantised."""


def skips_nothing(names: tuple[str, ...]) -> bool:
    """Every layer is quantised."""
    return False


@dataclass(frozen=True, kw_only=True)
class Uniform(NotQuantised):
    """One scheme for linear layers, one for experts, one for the head, with exceptions.

    Attributes
    ----------
    linears, stacks, heads : Scheme
        How each kind of layer is stored.
    skips : function of names
        Whether a layer stays unquantised.
    skips_experts : function of names or None
        The same for experts where the engine matches them by other rules.
    """

    linears: Scheme = UNQUANTISED
    stacks: Scheme = UNQUANTISED
    heads: Scheme = UNQUANTISED
    skips: Skip = skips_nothing
    skips_experts: Skip | None = None

    def linear(self, *names: str) -> Scheme:
        """The scheme of linear layers, unless skipped."""
        return UNQUANTISED if self.skips(names) else self.linears

    def experts(self, name: str, projections: tuple[str, ...] = GATED_PROJECTIONS) -> Scheme:
        """The scheme of experts, unless skipped."""
        return UNQUANTISED if (self.skips_experts or self.skips)((name,)) else self.stacks

    def head(self, name: str) -> Scheme:
        """The scheme of the head, unless skipped."""
        return UNQUANTISED if self.heads is UNQUANTISED or self.skips((name,)) else self.heads
