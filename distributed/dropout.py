"""Dropout whose mask is a function of the global element, so that it is the same under every layout and in recompute.

A random generator's state would depend on how many elements a rank drew before: sharded activations would get equal masks
and replicated ones different masks. Here element (token slot, channel) of a site hashes to its own coin.
"""

import zlib

import torch
from torch import nn

_MASK_53 = (1 << 53) - 1


class Dropout(nn.Module):
    """Inverted dropout. `site` is the place in the model by its global name; no two sites share coins.

    `sequence_shard` (index, count) says which part of the slots' second dim the activations hold.
    """

    def __init__(self, rate: float, site: str):
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"dropout rate is {rate}; it must be at least 0 and below 1")
        self.rate, self.site = rate, site
        self.sequence_shard = (0, 1)

    def forward(self, hidden_BLD: torch.Tensor, slots_BL: torch.Tensor, key: int) -> torch.Tensor:
        """`slots_BL` numbers the tokens of the global batch; `key` changes every step."""
        if not self.training or self.rate == 0.0:
            return hidden_BLD
        index, count = self.sequence_shard
        slots_BL = slots_BL.chunk(count, dim=1)[index]
        keep_BLD = coins(slots_BL, hidden_BLD.shape[-1], zlib.crc32(self.site.encode()), key) >= self.rate * 2**53
        return hidden_BLD * keep_BLD.to(hidden_BLD.dtype) / (1.0 - self.rate)


def coins(slots_BL: torch.Tensor, channels: int, site: int, key: int) -> torch.Tensor:
    """Uniform whole numbers below 2**53, (B, L, channels), by the splitmix64 finaliser over slot, channel, site and key."""
    channel_D = torch.arange(channels, device=slots_BL.device)
    base = _mixed(torch.tensor(site * 1_000_003 + key, device=slots_BL.device))
    return (_mixed(_mixed(slots_BL[..., None] + base) + channel_D) >> 11) & _MASK_53


def _mixed(x: torch.Tensor) -> torch.Tensor:
    # Shifts of int64 carry the sign; the masks make them the unsigned ones that splitmix64 has.
    x = x + -7046029254386353131
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & ((1 << 33) - 1))
