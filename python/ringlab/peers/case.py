"""What is timed: sizes, a mask by Ringlab's name, of which every system here is told in its own way, and the tensors of the
whole sequence."""

import dataclasses
import functools

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
NAMES = "full, causal, window:LEFT,RIGHT and documents:LENGTHS, joined by +"


class WrongUse(Exception):
    """What is wrong with the command line, in one line."""


def whole_number(text, what, least=1):
    if not text.isdecimal() or int(text) < least:
        raise WrongUse(f"{what} is '{text}'; it must be a whole number, {least} or more")
    return int(text)


def heads_of(text):
    """(query heads, kv heads) of "32:8", or of one number."""
    query, colon, kv = text.partition(":")
    found = whole_number(query, "--heads"), whole_number(kv if colon else query, "--heads")
    if found[0] % found[1]:
        raise WrongUse(f"--heads is '{text}'; kv heads must divide query heads")
    return found


@dataclasses.dataclass(frozen=True)
class Mask:
    """A mask whose rows each see one range of keys."""

    spec: str
    causal: bool = False
    window: tuple | None = None  # (keys before the own one, keys after it)
    documents: tuple | None = None  # lengths

    @staticmethod
    def of(spec):
        """Raises WrongUse where the name is none of NAMES."""
        found = {}
        for term in spec.split("+"):
            name, _, arguments = term.partition(":")
            if name in found:
                raise WrongUse(f"--mask {spec}: {name} occurs twice")
            if term in ("full", "causal"):
                found[name] = True
            elif name == "window" and arguments.count(",") == 1:
                found[name] = tuple(whole_number(x, f"--mask {term}: a side", 0) for x in arguments.split(","))
            elif name == "documents" and arguments:
                found[name] = _lengths(arguments)
            else:
                raise WrongUse(f"--mask {spec}: '{term}' is unknown here; masks are {NAMES}")
        return Mask(spec, "causal" in found, found.get("window"), found.get("documents"))

    def ranges(self, tokens):
        """(first, end) of the keys that each row sees, int64; end is exclusive."""
        row = torch.arange(tokens)
        first, end = torch.zeros(tokens, dtype=torch.int64), torch.full((tokens,), tokens)
        if self.causal:
            end = row + 1
        if self.window:
            first, end = torch.maximum(first, row - self.window[0]), torch.minimum(end, row + self.window[1] + 1)
        if self.documents:
            lengths = torch.tensor(self.documents)
            ends = lengths.cumsum(0).repeat_interleave(lengths)
            first = torch.maximum(first, ends - lengths.repeat_interleave(lengths))
            end = torch.minimum(end, ends)
        return first, end


def _lengths(text):
    """Lengths of documents from a text such as "100,28x2,44". Raises WrongUse."""
    lengths = []
    for part in text.split(","):
        length, times, count = part.partition("x")
        lengths += [whole_number(length, f"a length in documents:{text}")] * (
            whole_number(count, f"a count in documents:{text}") if times else 1)
    return tuple(lengths)


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
