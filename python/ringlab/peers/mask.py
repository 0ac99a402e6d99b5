"""Masks by Ringlab's names, of which every system here is told in its own way."""

import dataclasses

import torch

NAMES = "full, causal, window:LEFT,RIGHT and documents:LENGTHS, joined by +"


class WrongUse(Exception):
    """What is wrong with the command line, in one line."""


def whole_number(text, what, least=1):
    if not text.isdecimal() or int(text) < least:
        raise WrongUse(f"{what} is '{text}'; it must be a whole number, {least} or more")
    return int(text)


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
