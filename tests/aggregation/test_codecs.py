"""E3M0 against a slow reading of its definition, its canonical form, and the inputs that break codecs."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aggregation.codecs import E3M0, Codec, codec
from aggregation.initial import normal

FP32_MAX = 3.4028234663852886e38
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
near_powers = st.builds(
    lambda sign, exponent, mantissa: sign * math.ldexp(mantissa, exponent),
    st.sampled_from([-1, 1]),
    st.integers(-130, 126),
    st.sampled_from([1.0, 1.25, 1.4999999, 1.5, 1.5000001, 1.75, 1.9999999]),
)
narrow = st.floats(min_value=-0.125, max_value=0.125, width=32)
vectors = st.one_of(
    st.lists(finite, max_size=40), st.lists(near_powers, max_size=40), st.lists(narrow, max_size=40)
).map(lambda values: torch.tensor(values, dtype=torch.float32))
blocks = st.sampled_from([1, 2, 3, 4, 8, 256])


def reference_block(values: list[float]) -> list[float]:
    """One block decoded, by the definition: the nearest of the 15 representable values, ties away from zero."""
    top = max(map(abs, values))
    if top < 2.0**-126:
        return [0.0] * len(values)
    exponent = math.frexp(top)[1] - 1
    if top / 2.0**exponent >= 1.5:
        exponent += 1
    scale = min(max(exponent, 8 - 127), 254 - 127)
    levels = [2.0 ** (scale - k) for k in range(7)] + [0.0]
    return [math.copysign(min(levels, key=lambda level: (abs(abs(x) - level), -level)), x) + 0.0 for x in values]


def reference(values: Tensor, block: int) -> Tensor:
    listed = values.tolist()
    decoded = [reference_block(listed[i : i + block]) for i in range(0, len(listed), block)]
    return torch.tensor([x for part in decoded for x in part], dtype=torch.float32)


def bits(values: Tensor) -> list[int]:
    return values.view(torch.int32).tolist()


@settings(max_examples=150, deadline=None)
@given(vectors, blocks)
def test_e3m0_gives_the_nearest_representable_values(values: Tensor, block: int) -> None:
    e3m0 = codec("e3m0", block)
    decoded = e3m0.decode(e3m0.encode(values), values.numel())
    expected = reference(values, block)
    assert bits(decoded) == bits(expected + 0.0)


@settings(max_examples=150, deadline=None)
@given(vectors, blocks, st.sampled_from(["e3m0", "fp32"]))
def test_encoding_a_decoded_payload_gives_it_again(values: Tensor, block: int, name: str) -> None:
    chosen = codec(name, block)
    if name == "fp32":
        values = values.clamp(-(2.0**127), 2.0**127)
    payload = chosen.encode(values)
    assert len(payload) == chosen.packed_bytes(values.numel())
    chosen.check(payload, values.numel())
    decoded = chosen.decode(payload, values.numel())
    assert decoded.dtype == torch.float32 and decoded.isfinite().all()
    assert chosen.encode(decoded) == payload


def is_canonical(e3m0: Codec, payload: bytes, numel: int) -> bool:
    return e3m0.encode(e3m0.decode(payload, numel)) == payload


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 5), st.sampled_from([1, 2, 3]))
def test_check_passes_exactly_the_payloads_that_encode_makes(data: st.DataObject, numel: int, block: int) -> None:
    e3m0 = codec("e3m0", block)
    scales = st.sampled_from([0, 1, 7, 8, 9, 100, 253, 254])
    codes = st.sampled_from([0x00, 0x07, 0x70, 0x77, 0xF1, 0x0F, 0x71, 0x11, 0x81, 0x18, 0xFF])
    num_scales = -(-numel // block)
    drawn = [data.draw(scales) for _ in range(num_scales)] + [data.draw(codes) for _ in range((numel + 1) // 2)]
    payload = bytes(drawn)
    if is_canonical(e3m0, payload, numel):
        e3m0.check(payload, numel)
    else:
        with pytest.raises(ValueError, match="e3m0"):
            e3m0.check(payload, numel)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 64), st.sampled_from(["e3m0", "fp32"]))
def test_garbage_is_refused_or_decodes_to_finite_values(payload: bytes, numel: int, name: str) -> None:
    chosen = codec(name, 8)
    try:
        chosen.check(payload, numel)
    except ValueError:
        return
    assert chosen.decode(payload, numel).isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["e3m0", "fp32"])
def test_a_value_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    chosen = codec(name, 4)
    for position in range(6):
        values = torch.ones(6)
        values[position] = bad
        with pytest.raises(ValueError, match="finite"):
            chosen.encode(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, FP32_MAX])
def test_an_fp32_payload_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        codec("fp32").check(struct.pack("<2f", 1.0, bad), 2)


def test_scale_255_would_decode_to_infinity_and_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        codec("e3m0", 2).check(bytes([255, 0x77]), 2)


def test_an_outlier_near_the_greatest_number_stays_finite() -> None:
    values = torch.full((256,), 1e-3)
    values[17] = -FP32_MAX
    e3m0 = codec("e3m0")
    decoded = e3m0.decode(e3m0.encode(values), 256)
    assert decoded[17] == -(2.0**127)
    assert decoded.count_nonzero() == 1


def test_zeros_negative_zeros_and_denormals_become_positive_zero() -> None:
    e3m0 = codec("e3m0", 4)
    values = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 1.0, -0.0, -1e-3, 0.0])
    payload = e3m0.encode(values)
    assert payload == bytes([0, 127, 0, 0, 0x07, 0])
    assert bits(e3m0.decode(payload, 8)) == bits(torch.tensor([0, 0, 0, 0, 1.0, 0, 0, 0]))


def test_the_packing_is_as_documented() -> None:
    values = torch.tensor([1.0, -0.5, 1 / 64, 1 / 128, 1 / 129, -1.5, 0.75])
    assert codec("e3m0", 7).encode(values).hex() == "80" + "d6" + "01" + "f0" + "06"


def test_pieces_join_without_a_seam() -> None:
    """Longer than one working piece, with a ragged end: the same bytes as block by block."""
    e3m0 = codec("e3m0", 64)
    values = normal(3, "seam", (2**17 + 777,), 0.01)
    pieces = values.split(64)
    parts = [e3m0.encode(piece) for piece in pieces]
    scales, codes = b"".join(part[:1] for part in parts), b"".join(part[1:] for part in parts)
    assert e3m0.encode(values) == scales + codes
    decoded = [e3m0.decode(part, piece.numel()) for part, piece in zip(parts, pieces, strict=True)]
    assert torch.equal(e3m0.decode(scales + codes, values.numel()), torch.cat(decoded))


def test_a_payload_of_the_wrong_length_is_refused() -> None:
    for name in ("e3m0", "fp32"):
        chosen = codec(name)
        payload = chosen.encode(torch.ones(300))
        for wrong in (payload[:-1], payload + b"\0", b""):
            with pytest.raises(ValueError, match="bytes: must have"):
                chosen.check(wrong, 300)
            with pytest.raises(ValueError, match="bytes: must have"):
                chosen.decode(wrong, 300)


def test_sizes_are_half_a_byte_a_value_and_a_byte_a_block() -> None:
    assert codec("e3m0").packed_bytes(65536) == 65536 // 2 + 256
    assert codec("e3m0").packed_bytes(257) == 129 + 2
    assert codec("e3m0").packed_bytes(0) == 0
    assert codec("fp32").packed_bytes(257) == 1028


def test_an_unknown_codec_or_block_is_named_with_what_would_be_right() -> None:
    with pytest.raises(ValueError, match=r"codec = 'e4m3': must be one of e3m0, fp32"):
        codec("e4m3")
    with pytest.raises(ValueError, match=r"block = 512: must be between 1 and 256"):
        E3M0(512)
