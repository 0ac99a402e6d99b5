"""Context-parallel attention in models of Hugging Face's transformers, by two lines:

    import ringlab.transformers
    ringlab.transformers.use(model, layout="zigzag", schedule="ring", group=mesh["cp"])

Every rank then gives the model its shard of the sequence and the positions of these tokens, as ringlab.torch has them:

    where = dict(layout="zigzag", group=mesh["cp"], cu_seqlens=cu_seqlens)
    model(input_ids=shard(ids, **where), position_ids=positions(tokens, documents=True, **where)[None],
          cu_seqlens=cu_seqlens)

cu_seqlens are those of the whole sequence: a shard's own position ids would show a border wherever its tokens are no
neighbours. Without packed documents leave it out.
"""

from transformers import AttentionInterface, AttentionMaskInterface

from ringlab._library import Refused
from ringlab.torch import _ring, ring_attention

_NAME = "ringlab"

# What models hand on that attention has no use for, or that must have the value here.
_IGNORED = {"position_ids", "cache_position", "num_items_in_batch", "use_cache", "position_bias"}
_MUST_BE = {"is_causal": (None, True), "output_attentions": (None, False), "output_hidden_states": (None, False, True)}


def use(model, *, mask="causal", layout="zigzag", schedule="ring", group=None):
    """From now on the model's attention runs over the ranks of `group`; names as ring_attention() takes them.

    Sliding windows (joined to the mask), soft caps, sinks and dropout of the model are obeyed. Padding by a 2D
    attention_mask, a KV cache, and keywords that nobody here knows are refused.
    """
    # By name, so that the model can still be copied and saved.
    options = {"mask": mask, "layout": layout, "schedule": schedule, "group": _ring.group_name(group)}
    for module in model.modules():
        module.ringlab = options
    model.set_attn_implementation(_NAME)


def _attention(module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, sliding_window=None,
               softcap=None, s_aux=None, cu_seqlens=None, **others):
    options = dict(module.ringlab)
    try:
        _check(query, key, attention_mask, others)
    except Refused as error:
        _ring.refuse(options["group"], error)
    if sliding_window is not None:
        options["mask"] += f"+window:{sliding_window - 1},0"
    o = ring_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scaling,
                       soft_cap=softcap, sinks=s_aux, dropout=dropout, cu_seqlens=cu_seqlens, **options)
    return o, None


def _check(query, key, attention_mask, others):
    for name, value_of in others.items():
        if name in _MUST_BE and value_of not in _MUST_BE[name]:
            raise Refused(f"{name} is {value_of}; with ringlab it must be {_MUST_BE[name][-1]}")
        if name not in _MUST_BE and name not in _IGNORED and value_of is not None:
            raise Refused(f"attention is given '{name}', which ringlab does not know and will not drop silently")
    if attention_mask is not None and attention_mask.dim() == 2:
        raise Refused("attention_mask hides padding; with ringlab padding is behind the last of cu_seqlens, or named "
                      "in the mask: use(model, mask=\"causal+valid:0-1000\")")
    if attention_mask is not None:
        raise Refused("attention is given a mask as a tensor; with ringlab it is named: use(model, mask=\"causal\")")
    if key.shape[2] != query.shape[2]:
        raise Refused(f"there are {key.shape[2]} keys for {query.shape[2]} queries on this rank; a KV cache is not "
                      "supported: call the model with use_cache=False")


def _padding(*_, attention_mask=None, **__):
    """The mask that attention gets: none, or the model's own of padding, which is refused there, because only the
    layer knows the ranks that have to hear of it. Padding may well lie on one rank alone."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _padding)
