"""Models of transformers over a ring of two, against the same models on one process by transformers' own attention."""

import copy
import pathlib
import re
from types import SimpleNamespace

import dense
import pytest
import torch
import torch.distributed as dist

import ringlab
from ringlab.torch import positions, ring_attention, shard

transformers = pytest.importorskip("transformers", minversion="5.0")
import ringlab.transformers  # noqa: E402
from ringlab.transformers import FAMILIES, use  # noqa: E402
from ringlab._transformers_proof import checked, errors  # noqa: E402

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 2, "topk_group": 1,
           "first_k_dense_replace": 1, "n_shared_experts": 1}
WINDOW = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 12,
          "num_key_value_heads": 4, "head_dim": 4}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
MORE = {"cohere2": WINDOW, "deepseek_v2": EXPERTS | LATENT,
        "deepseek_v3": EXPERTS | LATENT | {"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
            "mscale": 1.0, "mscale_all_dim": 1.0}},
        "exaone4": WINDOW, "gemma": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        "gemma2": WINDOW | {"attn_logit_softcapping": 2.0}, "gemma3_text": WINDOW, "glm4_moe": EXPERTS,
        "gpt_oss": EXPERTS | WINDOW, "granitemoe": EXPERTS, "llama": {"rope_parameters": LLAMA3},
        "mistral": {"sliding_window": 9}, "mixtral": EXPERTS | {"sliding_window": 9},
        "modernbert": WINDOW | {"local_attention": 18}, "olmo3": WINDOW, "olmoe": EXPERTS,
        "phi3": {"sliding_window": 9}, "qwen2": WINDOW, "qwen2_moe": EXPERTS, "qwen3": WINDOW, "qwen3_moe": EXPERTS,
        "smollm3": WINDOW, "starcoder2": {"sliding_window": 9}}


def tiny(model_type, name=None, **more):
    """A model with weights that no feature of it vanishes under."""
    torch.manual_seed(1)
    config = transformers.CONFIG_MAPPING[model_type](**{**SIZES, **MORE.get(model_type, {}), **more})
    model = getattr(transformers, name or FAMILIES[model_type])(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families_are_what_they_are_on_one_process(model_type):
    model, mask = tiny(model_type), "full" if FAMILIES[model_type].endswith("ForMaskedLM") else "causal"
    use(copy.deepcopy(model), mask=mask)  # takes it without `unverified`
    checked(errors(model, 64, mask=mask, layout="zigzag", schedule="ring"))
    if mask == "causal":
        documents = torch.tensor([0, 5, 37, 64])
        checked(errors(model, 64, mask=mask, layout="striped:4", schedule="merge", cu_seqlens=documents))


def test_chunks_of_layers_are_joined_to_the_mask():
    model = tiny("llama4_text", "Llama4ForCausalLM", **EXPERTS, attention_chunk_size=8, attn_temperature_tuning=False,
                 num_hidden_layers=4, intermediate_size_mlp=32)
    checked(errors(model, 64, mask="causal", layout="zigzag", schedule="ring"))


def test_a_model_whose_loss_is_a_mean_of_each_shard_is_told_by_the_comparison():
    with pytest.raises(ringlab.Refused, match="losses of the ring are off by 1, relative; at most"):
        checked(errors(tiny("bert", "BertForMaskedLM"), 64, mask="full", layout="zigzag", schedule="ring"))


NO_FAMILY = "is none of ringlab.transformers.FAMILIES.*ringlab.transformers.verify.*unverified=True"
NO_INTERFACE = "does not take transformers' attention interface: every rank would attend to its own shard"
MIXED = "has layers of '{}', which mix tokens in another way"
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


@pytest.mark.parametrize("model_type, name, more, mask, message", [
    ("helium", "HeliumForCausalLM", {}, "causal", NO_FAMILY),
    ("bert", "BertForMaskedLM", {}, "full", NO_FAMILY),
    ("llama", "LlamaForSequenceClassification", {}, "causal", NO_FAMILY),  # takes the last token of each shard
    ("mpt", "MptForCausalLM", {"n_heads": 4}, "causal", NO_INTERFACE),
    ("bloom", "BloomForCausalLM", {"n_head": 4}, "causal", NO_INTERFACE),
    ("gpt_neo", "GPTNeoForCausalLM", {"num_layers": 2, "attention_types": [[["global"], 2]]}, "causal", NO_INTERFACE),
    ("xglm", "XGLMForCausalLM", {"d_model": 32, "attention_heads": 4}, "causal", NO_INTERFACE),
    ("deberta", "DebertaForMaskedLM", {}, "full", NO_INTERFACE),
    ("marian", "MarianMTModel", {"d_model": 32, "decoder_start_token_id": 0}, "causal", "has cross attention"),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", {}, "causal", MIXED.format("linear_attention")),
    ("mamba", "MambaForCausalLM", {}, "causal", MIXED.format("linear_attention")),
    ("lfm2", "Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}, "causal", MIXED.format("conv")),
    ("wav2vec2", "Wav2Vec2Model", {"conv_dim": (8, 8), "conv_stride": (2, 2), "conv_kernel": (3, 3)}, "full",
     MIXED.format("Conv1d")),
    ("llama", None, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "causal",
     "has rope_type 'dynamic', which may go by the longest position"),
    ("llama4_text", "Llama4ForCausalLM", EXPERTS | {"intermediate_size_mlp": 32}, "causal",
     "has attn_temperature_tuning"),
    # These come to light when the model is called.
    ("t5", "T5EncoderModel", T5, "full", "attention is given 'position_bias', which ringlab does not know"),
    ("fnet", "FNetForMaskedLM", {}, "full", "no layer took ringlab's attention"),
    ("bert", "BertForMaskedLM", {}, "causal", "token 0 sees token 1, under the mask causal it does not; name"),
    ("modernbert", None, {}, "causal", "token 0 sees token 1, under the mask causal"),
    ("gemma3_text", None, {"use_bidirectional_attention": True}, "causal", "token 0 sees token 1, under the mask"),
    ("llama", None, {}, "full", "token 0 does not see token 1, under the mask full"),
    ("llama", None, {}, "prefix:5", "token 0 does not see token 1, under the mask prefix:5 it does"),
])
def test_models_that_a_ring_would_compute_wrongly_are_refused(model_type, name, more, mask, message):
    model = tiny(model_type, name, **more)
    with pytest.raises(ringlab.Refused, match=message):
        use(model, mask=mask, unverified=message != NO_FAMILY)
        model(input_ids=torch.ones(1, 32, dtype=torch.int64))


IDS = torch.ones(1, 32, dtype=torch.int64)
COUNT = {"num_items_in_batch": 64}


@pytest.mark.parametrize("model_type, call, message", [
    ("llama", {"position_ids": torch.arange(32)[None]}, r"position_ids are \[0, 1, .*layout zigzag gives this rank"),
    ("llama", {"position_ids": torch.arange(32).remainder(8)[None]}, "position_ids are"),
    ("llama", {"position_ids": torch.arange(64)[None]}, r"position_ids are .*\(64\)"),
    ("llama", {"labels": IDS, **COUNT}, r"give shift_labels=shard\(next_token_labels\(ids\)\)"),
    ("llama", {"shift_labels": IDS}, "give num_items_in_batch, the tokens in the loss of all ranks"),
    ("llama", {"output_attentions": True}, "output_attentions is True; with ringlab it must be False"),
    ("mixtral", {"output_router_logits": True}, "output_router_logits is True; with ringlab it must be False"),
    ("llama", {"attention_mask": torch.ones(1, 1, 32, 32, dtype=torch.bool)}, "is given a Tensor for a mask"),
    ("llama", {"cu_seq_lens_q": torch.tensor([0, 32])}, "attention is given 'cu_seq_lens_q', which ringlab"),
    ("llama", {"cu_seqlens": torch.tensor([[0, 64]])}, "."),
    ("llama", {"cu_seqlens": torch.tensor([0, 90])}, "of 90 tokens, the sequence has 64"),
])
def test_calls_that_a_ring_would_compute_wrongly_are_refused(model_type, call, message):
    model = tiny(model_type)
    use(model)
    with pytest.raises(ringlab.Refused, match=message):
        model(input_ids=IDS, **call)
    assert model(input_ids=IDS).logits.isfinite().all()


def test_a_mask_that_goes_by_tokens_is_refused():
    text = {**SIZES, **WINDOW, "model_type": "gemma3_text"}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 16, "patch_size": 8}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    with pytest.raises(ringlab.Refused, match=NO_FAMILY):
        use(model)
    use(model, unverified=True)
    with pytest.raises(ringlab.Refused, match="the model's mask goes by 'block_sequence_ids', a Tensor of"):
        model(input_ids=IDS, token_type_ids=torch.ones_like(IDS))


def test_what_is_not_asked_for_is_not_refused():
    model = tiny("mixtral")
    use(model)
    assert model(input_ids=IDS, output_router_logits=False, output_attentions=False).logits.isfinite().all()
    assert model(input_ids=IDS, shift_labels=IDS, **COUNT).loss > 0
    assert model(input_ids=IDS, labels=IDS, shift_labels=IDS, **COUNT).loss > 0
    assert model(input_ids=IDS, position_ids=positions(64)[None], use_cache=True).logits.isfinite().all()


def test_a_layout_that_follows_the_mask_wants_layers_of_one_mask():
    for model_type in ("gemma2", "mistral"):
        model = tiny(model_type)
        use(model, layout="balanced:2")
        with pytest.raises(ringlab.Refused, match=r"balanced:2 follows the mask, and a layer has causal\+window:8"):
            model(input_ids=IDS)
    checked(errors(model, 64, mask="causal+window:8,0", layout="balanced:2", schedule="ring"))
    checked(errors(tiny("llama"), 64, mask="causal", layout="balanced:2", schedule="ring"))


def attend(q, k, v, **options):
    call = SimpleNamespace(options={"layout": "zigzag", "schedule": "ring", "group": None}, cu_seqlens=None)
    mask = ringlab.transformers._Mask(call, "causal+window:6,0")
    return ringlab.transformers._attention(None, *(x.transpose(1, 2) for x in (q, k, v)), mask, **options)[0]


def test_what_models_ask_for_is_handed_on():
    q, k, v = (shard(x) for x in dense.random_tensors()[:3])
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    torch.manual_seed(4)
    got = attend(q, k, v, scaling=0.3, sliding_window=7, softcap=2.0, s_aux=sinks, dropout=0.5, position_ids=None)
    torch.manual_seed(4)
    assert torch.equal(got, ring_attention(q, k, v, mask="causal+window:6,0", scale=0.3, soft_cap=2.0, sinks=sinks,
                                           dropout=0.5))


def test_models_that_are_compiled_checkpointed_or_copied_give_the_same():
    model = tiny("qwen2")
    use(model)
    model = copy.deepcopy(model)
    expected = model(input_ids=IDS).logits
    expected.sum().backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model.train()(input_ids=IDS).logits.sum().backward()
    assert all(torch.equal(weight.grad, before) for weight, before in zip(model.parameters(), gradients))
    compiled = torch.compile(model.eval(), backend="eager")
    assert torch.equal(compiled(input_ids=IDS).logits, expected)
    with pytest.raises(ringlab.Refused, match="position_ids are"):
        compiled(input_ids=IDS, position_ids=torch.arange(32)[None])
    model.set_attn_implementation("sdpa")
    assert model(input_ids=IDS).logits.isfinite().all()  # its own shard alone, as asked


def test_padding_that_lies_on_one_rank_is_refused_on_all():
    model = tiny("llama")
    use(model)
    everywhere = torch.ones(1, 64)
    everywhere[:, 60:] = 0
    where = "" if dist.get_rank() == 0 else "rank 0 refuses the call: "  # of zigzag rank 0 has the last chunk
    with pytest.raises(ringlab.Refused, match=f"^{where}attention_mask hides padding"):
        model(input_ids=IDS, attention_mask=shard(everywhere))
    assert model(input_ids=IDS).logits.isfinite().all()


def test_the_call_that_the_page_shows_has_the_loss_and_gradients_of_one_process():
    page = pathlib.Path(__file__).parents[2] / "README.md"
    code = re.search(r"## In a model\n.*?```python\n(.*?)```", page.read_text(), re.DOTALL).group(1)
    model = tiny("llama").double()
    alone = copy.deepcopy(model)
    ids, cu_seqlens = torch.randint(64, (1, 64), generator=torch.Generator().manual_seed(3)), torch.tensor([0, 20, 64])
    shown = {"model": model, "ids": ids, "cu_seqlens": cu_seqlens, "mesh": {"cp": None}}
    exec(code, shown)
    loss = shown["loss"].detach()
    dist.all_reduce(loss)
    expected = sum(alone(input_ids=one, labels=one, num_items_in_batch=62).loss for one in ids.split([20, 44], 1))
    expected.backward()
    # The loss is float32: 62 terms, each rounded by 2^-24.
    assert abs(loss - expected.detach()) < 62 * 2.0**-24 * expected
    for mine, right in zip(model.parameters(), alone.parameters()):
        dist.all_reduce(mine.grad)
        assert (mine.grad - right.grad).abs().max() <= ringlab._transformers_proof.TOLERANCE * right.grad.abs().max()
