"""Context-parallel attention in models of Hugging Face's transformers:

    import ringlab.transformers
    ringlab.transformers.use(model, layout="zigzag", schedule="ring", group=mesh["cp"])

Every rank then calls the model with its shard of the sequence, as python/README.md shows. What is not proved to be what
the model computes on one process is refused, on every rank: use() takes FAMILIES, which the tests compare; each call
compares the mask that transformers hands over with the named one, and position_ids with positions().
"""

import inspect
import threading
import types
from ctypes import byref

import torch
import torch.distributed as dist
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ringlab import _library
from ringlab._library import Refused
from ringlab.torch import _op, _ring, ring_attention
from ringlab._transformers_proof import verify

__all__ = ["FAMILIES", "use", "verify"]

_NAME = "ringlab"

UNSHIFTED = ("ForMaskedLM", "ForTokenClassification")  # by model.loss_type, whose labels are of the tokens themselves

# By config.model_type, the classes that tests/ranks/test_transformers.py compares with transformers' own attention. A
# model of next tokens may also be given without its head.
FAMILIES = {
    "apertus": "ApertusForCausalLM", "arcee": "ArceeForCausalLM", "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM", "exaone4": "Exaone4ForCausalLM", "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM", "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM", "granite": "GraniteForCausalLM", "granitemoe": "GraniteMoeForCausalLM",
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "modernbert": "ModernBertForMaskedLM", "nemotron": "NemotronForCausalLM", "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "olmoe": "OlmoeForCausalLM", "phi": "PhiForCausalLM", "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "seed_oss": "SeedOssForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLmForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
}


def use(model, *, mask="causal", layout="zigzag", schedule="ring", group=None, unverified=False):
    """From now on the model's attention runs over the ranks of `group`; names as ring_attention() takes them.

    mask: the model's own, "full" for an encoder; windows and chunks of layers are joined to it. Soft caps, sinks and
    dropout of the model are obeyed. A call of the model may have cu_seqlens, those of the whole sequence; its
    position_ids are compared with positions() (on a device the host waits for that), or made if there are none. Its
    loss is this rank's part, to be summed over the ranks: it is given shift_labels=shard(next_token_labels(ids)) and
    num_items_in_batch, the tokens in the loss of all ranks.

    unverified: takes a model of no FAMILIES too. Raises Refused, here or when the model is called.
    """
    group = _ring.group_name(group)
    inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    refusal = "model is none of transformers" if inner is None else _unsuitable(inner, unverified)
    if not refusal:
        inner.set_attn_implementation(_NAME)
        if inner.config._attn_implementation != _NAME:
            refusal = (f"the code of {type(inner).__name__} does not take transformers' attention interface: every "
                       "rank would attend to its own shard")
    if refusal:
        _ring.refuse(group, refusal)
    # By name, and hooks that know no model, so that the model can still be copied and saved.
    inner.ringlab = {"mask": mask, "layout": layout, "schedule": schedule, "group": group}
    if _before not in inner._forward_pre_hooks.values():
        inner.register_forward_pre_hook(_before, with_kwargs=True)
        inner.register_forward_hook(_after)


def _unsuitable(model, unverified):
    """Why a ring would not compute what the model does, in one line; empty if nothing is known."""
    cls = next(one for one in type(model).__mro__ if not one.__module__.startswith("torch."))  # without FSDP's class
    name = cls.__name__
    for config in (module.config for module in model.modules() if isinstance(module, PreTrainedModel)):
        if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
            return f"{name} has cross attention; ringlab computes self-attention alone"
        if others := set(getattr(config, "layer_types", None) or ()) - _LAYERS:
            return _MIXED.format(name, min(others))
        if ropes := _rope_types(getattr(config, "rope_parameters", None)) - _ROPES:
            return f"{name} has rope_type '{min(ropes)}', which may go by the longest position: a shard has another"
        if getattr(config, "attn_temperature_tuning", False):
            return f"{name} has attn_temperature_tuning, a temperature by places in the shard"
    if others := {type(module).__name__ for module in model.modules() if _mixes_tokens(module)}:
        return _MIXED.format(name, min(others))
    proved = FAMILIES.get(model.config.model_type, "")
    is_base = model.base_model is model and proved.endswith(("ForCausalLM", "LMHeadModel"))
    if unverified or cls.__module__.startswith("transformers.models.") and (name == proved or is_base):
        return ""
    return (f"{name} ({model.config.model_type}) is none of ringlab.transformers.FAMILIES, which are proved; compare "
            "it by ringlab.transformers.verify(model, ...), then call use(..., unverified=True)")


_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
_ROPES = {"default", "linear", "llama3", "yarn"}  # whose frequencies are those of the configuration
_MIXED = "{} has layers of '{}', which mix tokens in another way: they would see a shard alone"


def _mixes_tokens(module):
    return isinstance(module, (torch.nn.Conv1d, torch.nn.RNNBase)) or any(
        part in type(module).__name__ for part in ("Mamba", "DeltaNet", "Rwkv", "Recurrent"))


def _rope_types(parameters):
    if not isinstance(parameters, dict):
        return set()
    return {parameters.get("rope_type") or "default"}.union(*map(_rope_types, parameters.values()))


# ---- A call of the model ----


class _Call:
    """What a call of the model means in all of its layers."""

    def __init__(self, options, cu_seqlens, share, ring):
        self.options, self.cu_seqlens, self.ring, self.attended = options, cu_seqlens, ring, False
        self.share = share  # this rank's tokens
        self.tokens = share * ring.size  # of the whole sequence
        if options["layout"].startswith("file:"):
            self.tokens = sum(int(other) for other in ring.tell_all(b"%d" % share))

    def positions(self, mask):
        spec, mask_tokens = _op.joined_mask(mask, self.cu_seqlens)
        chosen = _library.choices(spec, self.options["layout"], "", self.tokens, mask_tokens or self.tokens,
                                  self.ring.size)
        return _library.positions(chosen, self.ring.rank, "documents" in spec)


_current = threading.local()  # .call: the one that is under way


@torch.compiler.disable
def _refuse(why):
    """Raises Refused, on all ranks that are in this call."""
    call = getattr(_current, "call", None)
    if call is None:
        raise Refused(str(why))
    _ring.refuse(call.options["group"], why)


@torch.compiler.disable
def _before(model, arguments, named):
    options, _current.call = model.ringlab, None
    if model.config._attn_implementation != _NAME:
        return None
    named = {**dict(zip(inspect.signature(model.forward).parameters, arguments)), **named}
    given = named["inputs_embeds"] if named.get("input_ids") is None else named["input_ids"]
    call = _Call(options, named.pop("cu_seqlens", None), given.shape[1], _ring.ring_of(options["group"]))
    _current.call = call
    try:
        if options["group"] == _ring.ALONE and dist.is_initialized():
            raise Refused("use() was called before the process group was made; call it afterwards")
        for name in ("output_attentions", "output_router_logits"):
            if named.get(name) or named.get(name) is None and getattr(model.config, name, False):
                raise Refused(f"{name} is True; with ringlab it must be False: a ring has no matrix of weights, and a "
                              "router's loss would be of the shard alone")
        if call.ring.size > 1:
            _check_labels(model, named)
        own = torch.frombuffer(call.positions(options["mask"]), dtype=torch.int64).clone()
        if len(own) != call.share:
            raise Refused(f"this rank's shard has {call.share} tokens; layout {options['layout']} gives it {len(own)}")
        named["position_ids"] = _positions(named.get("position_ids"), own, options["layout"], given.device)
    except Exception as error:  # noqa: BLE001, as the other ranks wait for this one
        _refuse(error)
    return (), named


def _check_labels(model, named):
    labels, shifted = named.get("labels"), named.get("shift_labels")
    if labels is None and shifted is None:
        return
    if shifted is None and model.loss_type not in UNSHIFTED:
        raise Refused("the model would shift labels= inside the shard; give shift_labels=shard(next_token_labels(ids))")
    if named.get("num_items_in_batch") is None:
        raise Refused("the model's loss would be the mean over the shard; give num_items_in_batch, the tokens in the "
                      "loss of all ranks: the ranks' losses then add up to the mean")
    if labels is None:
        named["labels"] = shifted  # without them models compute no loss


def _positions(given, own, layout, device):
    if given is None:
        return own[None].to(device)
    if given.shape[-1] != len(own) or not bool((given.cpu() == own).all()):
        raise Refused(f"position_ids are {given.flatten()[:5].tolist()}, ... ({given.shape[-1]}); layout {layout} "
                      f"gives this rank {own[:5].tolist()}, ... ({len(own)}): give those of positions(), with "
                      "documents=True for packed documents, or none")
    return given.to(device)


@torch.compiler.disable
def _after(*_):
    call = getattr(_current, "call", None)
    if call is not None and not call.attended:
        _refuse("no layer took ringlab's attention: every rank attended to its own shard")
    _current.call = None


# ---- Masks ----


class _Mask:
    """What layers get as attention_mask: the name of a mask that was compared with the model's own; or why there is
    none, which matters only if a layer takes it."""

    def __init__(self, call, name, refusal=""):
        self.call, self.name, self.refusal = call, name, refusal


@torch.compiler.disable
def _mask_of_layers(*_, kv_length=None, q_length=None, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
                    local_size=None, **__):
    """The registered mask function. Layers get masks of several kinds, each by a call of it."""
    call, queries = getattr(_current, "call", None), kv_length if q_length is None else q_length
    if call is None:
        raise Refused("a part of the model is called alone; call the model that use() was given")
    try:
        if attention_mask is not None and not bool(attention_mask.all()):
            raise Refused("attention_mask hides padding; with ringlab padding is behind the last of cu_seqlens, or "
                          "named in the mask: use(model, mask=\"causal+valid:0-1000\")")
        if (int(q_offset), int(kv_offset), queries, kv_length) != (0, 0, call.share, call.share):
            raise Refused(f"there are {kv_length} keys for {queries} queries where the shard has {call.share} tokens; "
                          "a KV cache is not supported: call the model with use_cache=False")
        return _Mask(call, _name_of(mask_function, local_size, call))
    except Exception as error:  # noqa: BLE001, told by the layer, as the other ranks wait for this one
        return _Mask(call, "", str(error))


_names = {}  # of masks that were compared, by all that they depend on


def _name_of(function, local_size, call):
    """The name of a model's mask: what use() was given, joined with a window or chunks of `local_size` tokens."""
    function, made_of = _over_the_sequence(function)
    named = call.options["mask"]
    key = made_of, local_size, named, call.tokens
    if key not in _names:
        # Documents and padding are told to ringlab, not to transformers.
        bare = "+".join(term for term in named.split("+") if not term.startswith(("documents:", "valid:"))) or "full"
        size = local_size or 1
        more = (f"+window:{size - 1},0", f"+window:{size},{size}", f"+chunks:{size}") if local_size else ()
        pairs = {}
        for joined in ("", *more):
            pairs[joined] = _first_difference(function, bare + joined, call.tokens, size)
            if pairs[joined] is None:
                break
        else:
            query, key, sees = pairs[""]
            raise Refused(f"in the model token {query} {'sees' if sees else 'does not see'} token {key}, under the "
                          f"mask {bare} it does{' not' if sees else ''}; name the model's mask, as mask=\"full\"")
        if len(_names) >= _op.MOST_KINDS:
            _names.clear()
        _names[key] = named + joined
    name = _names[key]
    if name != named and bytes(call.positions(name)) != bytes(call.positions(named)):
        raise Refused(f"layout {call.options['layout']} follows the mask, and a layer has {name} where use() was given "
                      f"{named}; choose a layout that suits all masks, as zigzag")
    return name


class _At:
    """Stands for a tensor of (batch, tokens of the shard), of which `at` makes what it has at any places."""

    def __init__(self, at):
        self.at = at

    def __getitem__(self, index):
        return self.at(index[1])


# What transformers makes of a shard's positions and padding, which are compared elsewhere. cu_seqlens tells documents.
_OF_THE_SHARD = {"position_ids": _At(lambda places: places), "packed_sequence_mask": _At(torch.zeros_like),
                 "left_padding": torch.zeros(1, dtype=torch.int64)}


def _over_the_sequence(function):
    """A mask function of transformers as it is over the whole sequence, and what it is made of, to compare by."""
    if not isinstance(function, types.FunctionType):
        raise Refused(f"the model's mask is {function!r}; ringlab can look into functions alone")
    cells, made_of = [], [function.__code__]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        value = part = cell.cell_contents
        if name in _OF_THE_SHARD and function.__module__ == "transformers.masking_utils":
            value, part = _OF_THE_SHARD[name], name
        elif isinstance(value, tuple):
            value, part = zip(*map(_over_the_sequence, value))
        elif callable(value):
            value, part = _over_the_sequence(value)
        elif not isinstance(value, (int, float, str, type(None))):
            raise Refused(f"the model's mask goes by '{name}', a {type(value).__name__} of the shard's own tokens; "
                          "ringlab takes masks that go by positions alone")
        cells.append(types.CellType(value))
        made_of.append(part)
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                              tuple(cells)), tuple(made_of)


def _first_difference(function, name, tokens, local_size):
    """(query, key, whether the function shows it) where it and a named mask differ; None if they seem to be equal.
    Compared are whole rows, at ends, at borders of windows and chunks and at random, and of all rows the keys about
    such borders."""
    chosen, every = _library.choices(name, "", "", tokens, tokens, 1), torch.arange(tokens)
    places = (border + step for border in (0, local_size, 2 * local_size, tokens // 2, tokens) for step in (-1, 0, 1))
    drawn = torch.randint(tokens, (8,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = sorted({row for row in (*places, *drawn) if 0 <= row < tokens})
    steps = sorted({border + step for border in (-local_size, 0, local_size) for step in (-1, 0, 1)})
    none = torch.zeros((), dtype=torch.int64)
    for queries, keys in [*((torch.full_like(every, row), every) for row in rows),
                          *((every, (every + step).clamp(0, tokens - 1)) for step in steps)]:
        shown = torch.as_tensor(function(none, none, queries, keys)).expand(tokens)
        visible = torch.empty(tokens, dtype=torch.uint8)
        _library.call("ringlab_visible", byref(chosen), queries.data_ptr(), keys.data_ptr(), tokens, visible.data_ptr())
        differ = (shown != visible.bool()).nonzero()
        if len(differ):
            first = differ[0, 0]
            return int(queries[first]), int(keys[first]), bool(shown[first])
    return None


# ---- Attention ----

# What layers hand on that changes nothing here: the mask alone decides, as in transformers' own eager attention.
_KNOWN = {"cache_position", "is_causal", "num_items_in_batch", "output_hidden_states", "position_ids", "shift_labels",
          "sliding_window", "use_cache"}


def _attention(module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, softcap=None, s_aux=None,
               **others):
    if not isinstance(attention_mask, _Mask):
        _refuse(f"{type(module).__name__} is given a {type(attention_mask).__name__} for a mask, which ringlab cannot "
                "compare; with ringlab masks are named: use(model, mask=\"causal\")")
    call, refusal = attention_mask.call, attention_mask.refusal
    for name, given in others.items():
        if name not in _KNOWN and given is not None and given is not False:
            refusal = refusal or f"attention is given '{name}', which ringlab does not know and will not drop silently"
    if refusal:
        _ring.refuse(call.options["group"], refusal)
    call.attended = True
    o = ring_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scaling,
                       soft_cap=softcap, sinks=s_aux, dropout=dropout, cu_seqlens=call.cu_seqlens,
                       **{**call.options, "mask": attention_mask.name})
    return o, None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _mask_of_layers)
