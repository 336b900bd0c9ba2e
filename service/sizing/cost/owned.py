"""What an hour of hardware costs that one has bought."""

from dataclasses import dataclass
from decimal import Decimal

from service.sizing.cost.money import (
    HOURS_PER_YEAR,
    InvalidCostInput,
    Number,
    above_zero,
    amount,
    at_least_zero,
    fraction,
)


@dataclass(frozen=True, slots=True)
class OwnedHardware:
    """Hardware bought to run one copy of a deployment.

    Attributes
    ----------
    capital : Decimal
        Price of the machines with their network.
    years : Number
        Over which they are written off.
    residual : Decimal
        What they are worth then.
    gpu_count : int
    gpu_tdp_w : Number
        Rated power of one GPU, W.
    host_w : Number
        Power of the rest of the machines, W.
    power_fraction : Number
        Mean draw as a share of that power; 1 never says too little.
    pue : Number
        Power usage effectiveness: all the power of the hall over that of the machines.
    price_per_kwh : Decimal
    upkeep_per_year : Decimal
        Support, space, staff.
    """

    capital: Decimal
    years: Number
    gpu_count: int
    gpu_tdp_w: Number
    price_per_kwh: Decimal
    pue: Number = Decimal("1.3")
    host_w: Number = 0
    power_fraction: Number = 1
    residual: Decimal = Decimal(0)
    upkeep_per_year: Decimal = Decimal(0)


def capital_per_hour(hardware: OwnedHardware) -> Decimal:
    """Straight-line depreciation: (capital - residual) / (years x 8,760).

    280,000 over 4 years, nothing left: 280,000 / 35,040 = 7.99 an hour.
    """
    capital = amount(hardware.capital, "capital")
    residual = amount(hardware.residual, "residual")
    if residual > capital:
        raise InvalidCostInput("residual", f"{residual} is above the capital of {capital}")
    return (capital - residual) / (above_zero(hardware.years, "years") * HOURS_PER_YEAR)


def power_per_hour(hardware: OwnedHardware) -> Decimal:
    """Electricity: (GPUs x TDP + host) / 1,000 x share drawn x PUE x price per kWh.

    8 x 700 W + 2,000 W = 7.6 kW at 1.3 and 0.12: 1.1856 an hour.
    """
    watts = above_zero(hardware.gpu_count, "gpu_count") * at_least_zero(hardware.gpu_tdp_w, "gpu_tdp_w")
    watts += at_least_zero(hardware.host_w, "host_w")
    pue = above_zero(hardware.pue, "pue")
    if pue < 1:
        raise InvalidCostInput("pue", f"{pue} is below 1: a hall cannot draw less than its machines")
    drawn = fraction(hardware.power_fraction, "power_fraction")
    return watts / 1000 * drawn * pue * amount(hardware.price_per_kwh, "price_per_kwh")


def owned_per_hour(hardware: OwnedHardware) -> Decimal:
    """Depreciation, electricity and upkeep of an hour, whether it is used or not.

    7.9909 + 1.1856 + 8,760 a year / 8,760 = 10.1765 an hour.
    """
    upkeep = amount(hardware.upkeep_per_year, "upkeep_per_year") / HOURS_PER_YEAR
    return capital_per_hour(hardware) + power_per_hour(hardware) + upkeep
