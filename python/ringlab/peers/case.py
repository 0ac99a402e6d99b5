"""What is timed: sizes, a mask, and the tensors of the whole sequence."""

import dataclasses
import functools

import torch

from ringlab.peers.mask import Mask

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}


@dataclasses.dataclass(frozen=True)
class Case:
    """Attention of one sequence, sharded over all ranks."""

    mask: Mask
    tokens: int  # of the whole sequence
    ranks: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def shape(self):
        return f"{self.query_heads}:{self.kv_heads}/{self.head_dim}/{self.dtype}"

    @property
    def name(self):
        return f"{self.mask.spec} P={self.ranks} S={self.tokens} {self.shape}"

    def is_narrow(self):
        return self.dtype in ("bf16", "fp16")

    @functools.cached_property
    def visible_pairs(self):
        """Number of (query row, key) pairs that the mask shows, for one head."""
        first, end = self.mask.ranges(self.tokens)
        return int((end - first).clamp(min=0).sum())

    def flop(self, which):
        """FLOP of the visible pairs, all ranks and heads: two products forward, five backward."""
        products = {"forward": 2, "backward": 5, "both": 7}[which]
        return 2 * products * self.head_dim * self.query_heads * self.visible_pairs

    def draw(self, device, seed=3):
        """q, k, v and the gradient of o, (1, tokens, heads, head_dim): the same numbers on every rank."""
        generator = torch.Generator(device=device).manual_seed(seed)
        return [torch.randn(1, self.tokens, heads, self.head_dim, device=device, dtype=DTYPES[self.dtype],
                            generator=generator)
                for heads in (self.query_heads, self.kv_heads, self.kv_heads, self.query_heads)]
