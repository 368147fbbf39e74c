"""Attention dropout: which coefficients are dropped is a function of the seed and of the place of each.

It is the same function in every backend, on any device, for any number of threads and however the work is divided; the
backward pass evaluates it again. All numbers are 32 bits wide, and `scramble` is a bijection of them in which every bit
of the input flips every bit of the output with probability close to a half.

Each part of a place gets numbers of its own, made well, once:

    low = scramble(seed mod 2^32 + 0x9e3779b9),  high = scramble(seed div 2^32 ^ low)
    key = scramble(image * heads + head + high) ^ low
    a = scramble(pixel + key),  b = scramble((a ^ pixel) + scramble(key + 0x78dde6e4))
    c = scramble((h~ * outputs + h) * ceil(keys / 2) + h^ div 2 + 0x3c6ef372)
    d = scramble(2 j + 0xdaa66d2b),  e = scramble(2 j + 1 + 0xdaa66d2b)

with h~ = 0 where an output has one query, and j counting the offsets of the neighbourhood row by row. They are put
together by a few operations a coefficient, and one number serves two elements h^:

    bits = ((a + c) ^ d) * ((b + e) | 1)
    drop h^ if its upper 16 bits are below 65536 * rate; for odd h^, those of bits ^ (bits << 16)

`kernel/dropout.h` is the same in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from gevit.attention.layout import Workspace

_32_BITS = 0xFFFFFFFF  # of 64: torch has little unsigned arithmetic


class Dropout(NamedTuple):
    """Dropout of one call of attention."""

    rate: float
    seed: Tensor
    first_image: int = 0  # where the images at hand begin in the batch

    @staticmethod
    def draw(rate: float) -> Dropout:
        """Dropout with a seed from torch's generator, so that `torch.manual_seed` decides what is dropped."""
        return Dropout(rate, torch.randint(2**62, ()) if rate else torch.zeros((), dtype=torch.long))

    @property
    def threshold(self) -> int:
        """How many of 65536 are dropped."""
        return min(round(self.rate * 65536), 65535)

    @property
    def scale(self) -> float:
        """What the others are multiplied with."""
        return 65536 / (65536 - self.threshold)

    def seeds(self, device: torch.device) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
        """The numbers low and high."""
        seed = self.seed.to(device, non_blocking=True)
        low = scramble((seed & _32_BITS) + 0x9E3779B9)
        return low, scramble(seed >> 32 ^ low)

    def noise_of_pixels(
        self, head: Int[Tensor, "*#places"], pixel: Int[Tensor, "*#places"]
    ) -> tuple[Int[Tensor, "*#places"], Int[Tensor, "*#places"]]:
        """The numbers a and b.

        Args:
            head: image * heads + head, with images counted from the first of those at hand.
            pixel: row * width + column.
        """
        low, high = self.seeds(pixel.device)
        key = scramble(head + high) ^ low
        a = scramble(pixel + key)
        return a.to(torch.int32), scramble((a ^ pixel) + scramble(key + 0x78DDE6E4)).to(torch.int32)

    def kept(
        self, noise: Noise, key_axis: int, keys: int, dtype: torch.dtype, place: Workspace
    ) -> Shaped[Tensor, "*places"]:
        """1 for the coefficients that survive, 0 for the others; `key_axis`, counted from the end, has all keys."""
        first, factor = torch.broadcast_tensors(noise.a + noise.c, noise.factor)
        shape = first.shape
        last = len(shape) + key_axis + 1
        pairs = place.out("pairs of keys", *shape[:last], 2, *shape[last:], dtype=torch.int32)
        even, odd = (None, None) if pairs is None else pairs.unbind(key_axis)
        even = torch.bitwise_xor(first, noise.d, out=even).mul_(factor)
        odd = torch.bitwise_left_shift(even, 16, out=odd).bitwise_xor_(even)
        if pairs is None:
            pairs = torch.stack([even, odd], key_axis)
        # Comparing in place stays in 32 bits, which processors do many times faster than making truth values.
        pairs.ge_((self.threshold << 16) - 2**31)
        kept = place.contiguous("kept", pairs, dtype)
        return kept.flatten(key_axis - 1, key_axis).narrow(key_axis, 0, keys)


class Noise(NamedTuple):
    """The numbers of some coefficients, on whatever axes the parts of their places have.

    32 bits each: they wrap around, and are signed in comparisons.
    """

    a: Int[Tensor, "*#places"]
    c: Int[Tensor, "*#places"]
    d: Int[Tensor, "*#places"]
    factor: Int[Tensor, "*#places"]  # (b + e) | 1

    @staticmethod
    def of(
        of_pixels: Sequence[Int[Tensor, "*#places"]],
        of_pairs: Int[Tensor, "*#places"],
        of_offsets: Sequence[Int[Tensor, "*#places"]],
    ) -> Noise:
        """From a and b, c, d and e."""
        (a, b), (d, e) = of_pixels, of_offsets
        return Noise(a, of_pairs, d, (b + e).bitwise_or_(1))


def noise_of_pairs(pair: Int[Tensor, "*#places"], half_key: Int[Tensor, "*#places"]) -> Int[Tensor, "*#places"]:
    """The numbers c.

    Args:
        pair: h~ * outputs + h.
        half_key: h^ div 2, all of them along one axis.
    """
    return scramble(pair * half_key.numel() + half_key + 0x3C6EF372).to(torch.int32)


def noise_of_offsets(offset: Int[Tensor, "*n"]) -> tuple[Int[Tensor, "*n"], Int[Tensor, "*n"]]:
    """The numbers d and e of offsets j."""
    d, e = scramble(2 * offset + 0xDAA66D2B), scramble(2 * offset + 1 + 0xDAA66D2B)
    return d.to(torch.int32), e.to(torch.int32)


def scramble(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Mix 32 bits well."""
    x = x & _32_BITS
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _32_BITS
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _32_BITS
    return x ^ (x >> 16)
