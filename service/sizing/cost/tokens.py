"""What tokens cost on a machine that costs so much an hour."""

from decimal import Decimal

from service.sizing.cost.money import (
    HOURS_PER_MONTH,
    MILLION,
    SECONDS_PER_HOUR,
    Number,
    above_zero,
    amount,
    fraction,
)
from service.sizing.quantities import ceil_div


def machines_needed(gpu_count: int, gpus_per_machine: int) -> int:
    """Whole machines that hold `gpu_count` GPUs: part of a machine is not rented.

    ceil(gpu_count / gpus_per_machine). 4 GPUs on a machine of 8 take 1; 12 take 2.
    """
    return ceil_div(int(above_zero(gpu_count, "gpu_count")), int(above_zero(gpus_per_machine, "gpus_per_machine")))


def deployment_per_hour(price_per_machine_hour: Decimal, gpu_count: int, gpus_per_machine: int = 1) -> Decimal:
    """Cost of a deployment per hour, in whole machines.

    price x ceil(gpu_count / gpus_per_machine). 4 GPUs on 8-GPU machines at 55.04 cost 55.04, not 27.52.
    """
    return amount(price_per_machine_hour, "price_per_machine_hour") * machines_needed(gpu_count, gpus_per_machine)


def tokens_per_month(tokens_per_s: Number, utilisation: Number = 1, hours: Number = HOURS_PER_MONTH) -> Decimal:
    """Tokens a deployment makes in a month of `hours`, busy `utilisation` of the time.

    tokens_per_s x 3,600 x hours x utilisation. 1,000 a second at 0.5 in 730 h: 1,314,000,000.
    """
    rate = above_zero(tokens_per_s, "tokens_per_s")
    return rate * SECONDS_PER_HOUR * above_zero(hours, "hours") * fraction(utilisation, "utilisation", zero=False)


def per_million_tokens(cost_per_hour: Decimal, tokens_per_s: Number, utilisation: Number = 1) -> Decimal:
    """Cost of a million tokens at a throughput, if the machine is busy `utilisation` of the time it is paid for.

    cost_per_hour / (tokens_per_s x 3,600 x utilisation) x 1,000,000.
    55.04 an hour at 2,500 tokens/s, half busy: 55.04 / 4,500,000 x 1,000,000 = 12.23.

    Parameters
    ----------
    tokens_per_s : Number
        Output tokens alone (then output carries the whole cost), or prompt and output together.
    utilisation : Number
        Share of the throughput that is used, above 0, at most 1.
    """
    per_hour = tokens_per_month(tokens_per_s, utilisation, hours=1)
    return amount(cost_per_hour, "cost_per_hour") / per_hour * MILLION


def per_million_input_and_output(
    cost_per_hour: Decimal,
    prompt_tokens_per_s: Number,
    output_tokens_per_s: Number,
    *,
    output_weight: Number,
    utilisation: Number = 1,
) -> tuple[Decimal, Decimal]:
    """Cost of a million prompt and of a million output tokens when both flow at once.

    One hour's cost is shared out so that an output token weighs `output_weight` prompt tokens, as hosted price
    lists do (about 3 to 5). input = cost / ((prompt + weight x output) x 3,600 x utilisation) x 1,000,000;
    output = weight x input. 36 an hour, 8,000 prompt and 500 output tokens/s, weight 4: 36 / 36,000,000 = 1.00 for a
    million prompt tokens and 4.00 for a million output tokens.
    """
    prompt = above_zero(prompt_tokens_per_s, "prompt_tokens_per_s")
    output = above_zero(output_tokens_per_s, "output_tokens_per_s")
    weight = above_zero(output_weight, "output_weight")
    read = per_million_tokens(cost_per_hour, prompt + weight * output, utilisation)
    return read, weight * read
