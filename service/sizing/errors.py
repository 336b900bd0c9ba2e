"""Ways in which a question cannot be answered."""


class SizingError(Exception):
    """Base of every refusal to size."""


class InvalidConfig(SizingError):
    """A configuration field is missing, of the wrong type, or contradicts another.

    Attributes
    ----------
    field : str
        Dotted name of the field inside `config.json`.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class NotUnderstood(SizingError):
    """An architecture, layer kind, quantisation or field that changes memory and that no rule here covers.

    Attributes
    ----------
    fields : tuple of str
        What was not understood, each named as in the configuration.
    """

    def __init__(self, fields: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.fields = fields


class Indivisible(SizingError):
    """A dimension that the engine splits exactly does not divide by the number of ranks."""

    def __init__(self, dimension: int, ranks: int) -> None:
        super().__init__(f"{dimension} is not divisible by {ranks}")
        self.dimension = dimension
        self.ranks = ranks
