"""What the methods that drop values have in common: shares, and what it costs to say which values were kept."""

from torch import Tensor

from simulation.lab.compression.base import FP32_BITS


def check_share(what: str, share: float) -> None:
    """Raises ValueError unless it is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"{what} = {share}: must be above 0 and at most 1")


def num_kept(share: float, numel: int) -> int:
    """The nearest whole number of values, and at least one where there are any."""
    return min(numel, max(1, round(share * numel)))


def index_bits(num_kept: int, numel: int) -> int:
    """Bits to say which `num_kept` of `numel`: an index each, or one bit for every value, whichever is less."""
    return min(num_kept * (numel - 1).bit_length(), numel) if numel else 0


def greatest(flat: Tensor, num_kept: int) -> Tensor:
    """Indices of the `num_kept` greatest magnitudes of `flat` (n)."""
    return flat.abs().topk(num_kept, sorted=False).indices


def only(flat: Tensor, kept: Tensor) -> Tensor:
    """`flat` (n) at the indices `kept`, and zero elsewhere."""
    values = flat.new_zeros(flat.shape)
    values[kept] = flat[kept]
    return values


def sparse_bits(num_kept: int, numel: int) -> int:
    """Bits of fp32 values with their indices; never more than the dense fp32 tensor."""
    return min(FP32_BITS * num_kept + index_bits(num_kept, numel), FP32_BITS * numel)
