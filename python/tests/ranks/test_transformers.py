"""Models of transformers over a ring of two, against the same models on one process by PyTorch's own attention."""

import copy
from types import SimpleNamespace

import dense
import pytest
import torch
import torch.distributed as dist

import ringlab
from ringlab.torch import padded_tokens, positions, ring_attention, shard, unshard

transformers = pytest.importorskip("transformers", minversion="5.0")
import ringlab.transformers  # noqa: E402

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("family, more", [("Llama", {}), ("Qwen2", {}), ("Mistral", {"sliding_window": 8})])
def test_models_are_what_they_are_on_one_process(family, more):
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SIZES, **more)
    alone = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model = copy.deepcopy(alone)
    ringlab.transformers.use(model, layout="striped:4", schedule="ring")
    model = copy.deepcopy(model)
    ids = torch.randint(64, (1, 64), generator=torch.Generator().manual_seed(2))
    assert padded_tokens(64, layout="striped:4") == 64
    own = model(input_ids=shard(ids, layout="striped:4"), position_ids=positions(64, layout="striped:4")[None]).logits
    expected = alone(input_ids=ids, position_ids=torch.arange(64)[None]).logits
    # Two layers in fp64, each with sums of up to 64 terms in another order: some 64 * 1.1e-16, amplified by norms.
    assert (unshard(own.detach(), layout="striped:4") - expected).abs().max() < 1e-12 * expected.abs().max()


def attend(q, k, v, mask=None, **options):
    module = SimpleNamespace(ringlab={"mask": "causal", "layout": "zigzag", "schedule": "ring", "group": None})
    return ringlab.transformers._attention(module, *(x.transpose(1, 2) for x in (q, k, v)), mask, **options)[0]


def test_what_models_ask_for_is_handed_on():
    q, k, v = (shard(x) for x in dense.random_tensors()[:3])
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    torch.manual_seed(4)
    got = attend(q, k, v, scaling=0.3, sliding_window=7, softcap=2.0, s_aux=sinks, dropout=0.5, position_ids=None)
    torch.manual_seed(4)
    assert torch.equal(got, ring_attention(q, k, v, mask="causal+window:6,0", scale=0.3, soft_cap=2.0, sinks=sinks,
                                           dropout=0.5))


def test_what_is_not_known_is_refused():
    q, k, v = (shard(x) for x in dense.random_tensors()[:3])
    for message, options in (("attention is given 'alibi_slopes', which ringlab does not know", {"alibi_slopes": 1}),
                             ("is_causal is False; with ringlab it must be True", {"is_causal": False}),
                             ("attention is given a mask as a tensor", {"mask": torch.ones(1, 1, 4, 4)})):
        with pytest.raises(ringlab.Refused, match=message):
            attend(q, k, v, **options)
    with pytest.raises(ringlab.Refused, match="there are 40 keys for 32 queries on this rank; a KV cache is not"):
        attend(q, torch.cat([k, k[:, :8]], 1), torch.cat([v, v[:, :8]], 1))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    ringlab.transformers.use(model)
    ids, padding = torch.zeros(1, 32, dtype=torch.int64), torch.ones(1, 32)
    padding[:, 30:] = 0
    with pytest.raises(ringlab.Refused, match="^attention_mask hides padding"):
        model(input_ids=ids, attention_mask=padding)


def test_padding_that_lies_on_one_rank_is_refused_on_all():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    ringlab.transformers.use(model)
    everywhere = torch.ones(1, 64)
    everywhere[:, 60:] = 0
    where = "" if dist.get_rank() == 0 else "rank 0 refuses the call: "  # of zigzag rank 0 has the last chunk
    with pytest.raises(ringlab.Refused, match=f"^{where}attention_mask hides padding"):
        model(input_ids=torch.zeros(1, 32, dtype=torch.int64), attention_mask=shard(everywhere))
    assert model(input_ids=torch.zeros(1, 32, dtype=torch.int64)).logits.isfinite().all()
