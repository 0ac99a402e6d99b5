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
    value_dim: int
    dtype: str

    @property
    def shape(self):
        dims = f"{self.head_dim}" + (f"-{self.value_dim}" if self.value_dim != self.head_dim else "")
        return f"{self.query_heads}:{self.kv_heads}/{dims}/{self.dtype}"

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
        d, v = self.head_dim, self.value_dim
        dims = {"forward": d + v, "backward": 3 * d + 2 * v, "both": 4 * d + 3 * v}[which]
        return 2 * dims * self.query_heads * self.visible_pairs

    def draw(self, device, seed=3):
        """q, k, v and the gradient of o, (1, tokens, heads, dim): the same numbers on every rank."""
        generator = torch.Generator(device=device).manual_seed(seed)
        return [torch.randn(1, self.tokens, heads, dim, device=device, dtype=DTYPES[self.dtype], generator=generator)
                for heads, dim in ((self.query_heads, self.head_dim), (self.kv_heads, self.head_dim),
                                   (self.kv_heads, self.value_dim), (self.query_heads, self.value_dim))]
