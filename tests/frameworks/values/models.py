# SPDX-License-Identifier: Apache-2.0
"""Public definitions of models, with configurations made small, of those packages that are there. Each says how it is built, which
modules are wrapped, a plan of tensor parallelism, and how its project initialises a model that was built on the meta device."""
import dataclasses
import functools
import importlib
import importlib.util
from dataclasses import dataclass, field
from typing import Callable

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

SMALL = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 501, "max_position_embeddings": 64}
LAYER = "model.layers.*."
OF_HEADS = {LAYER + "self_attn.q_proj": ColwiseParallel(), LAYER + "self_attn.k_proj": ColwiseParallel(),
            LAYER + "self_attn.v_proj": ColwiseParallel(), LAYER + "self_attn.o_proj": RowwiseParallel()}
OF_LAYERS = {**OF_HEADS, LAYER + "mlp.gate_proj": ColwiseParallel(), LAYER + "mlp.up_proj": ColwiseParallel(),
             LAYER + "mlp.down_proj": RowwiseParallel()}


def reset(model, module):
    """As PyTorch's own modules are."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


def reset_all(model):
    """PyTorch's tutorial of FSDP2: each module that can reset its parameters does."""
    for module in model.modules():
        reset(model, module)


def initialise_one(model, module):
    model._init_weights(module)


def initialise_all(model):
    """As transformers' from_pretrained does with what no checkpoint has."""
    model.initialize_weights()
    model.tie_weights()


def initialise_timm(model):
    """Its init_weights leaves what constructors of PyTorch's modules set. Some models have none."""
    reset_all(model)
    if hasattr(model, "init_weights"):
        model.init_weights()


@dataclass
class Definition:
    title: str
    build: Callable[[], nn.Module]
    layers: tuple[str, ...]  # classes of the modules that FSDP wraps
    initialise: Callable[[nn.Module], None] = reset_all
    initialise_module: Callable[[nn.Module, nn.Module], None] = reset  # one of the model's, for FSDP1's param_init_fn
    plan: dict = field(default_factory=dict)  # of tensor parallelism, by names below the model
    experts: bool = False  # stacked in modules of classes *Experts
    asks_for_device: bool = False  # its import does, so it cannot be before a fork

    def has(self):
        return ["plan"] * bool(self.plan) + ["experts"] * self.experts


class Scale(nn.Module):
    """A layer of somebody's own: no reset_parameters, and a buffer that no checkpoint has."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("positions", torch.arange(width, dtype=torch.float32).cos(), persistent=False)

    def forward(self, x):
        return x * self.weight * self.positions


class Block(nn.Sequential):
    pass


def own_layers():
    return nn.Sequential(*(Block(nn.Linear(64, 96), Scale(96), nn.Linear(96, 64), nn.LayerNorm(64)) for _ in range(2)))


def transformer():
    return nn.Transformer(96, 4, 2, 2, 160)


OF_TORCH = {
    "linear": Definition("`nn.Linear`, twice", lambda: nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64)), ("Linear",),
                         plan={"0": ColwiseParallel(), "1": RowwiseParallel()}),
    "own": Definition("own layers without `reset_parameters`, a buffer that is not saved", own_layers, ("Block",),
                      plan={"*.0": ColwiseParallel(), "*.2": RowwiseParallel()}),
    "transformer": Definition("`nn.Transformer`, whose attention has `_reset_parameters`", transformer,
                              ("TransformerEncoderLayer", "TransformerDecoderLayer"),
                              plan={"*.layers.*.linear1": ColwiseParallel(), "*.layers.*.linear2": RowwiseParallel()})}

EXPERTS = {**SMALL, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
BERT = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
GPT2 = {"n_embd": 96, "n_layer": 2, "n_head": 4, "vocab_size": 501, "n_positions": 64}
T5 = {"d_model": 96, "d_kv": 24, "d_ff": 160, "num_layers": 2, "num_heads": 4, "vocab_size": 501}
VIT = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
OPT = {"hidden_size": 96, "ffn_dim": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 501, "max_position_embeddings": 64}
BLOOM = {"hidden_size": 96, "n_layer": 2, "n_head": 4, "vocab_size": 501}
FALCON = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 501}
MAMBA = {"hidden_size": 96, "state_size": 8, "num_hidden_layers": 2, "vocab_size": 501}
MAMBA2 = {**MAMBA, "num_heads": 12, "head_dim": 16, "n_groups": 2}
WHISPER = {"d_model": 96, "num_mel_bins": 20, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
           "encoder_ffn_dim": 160, "decoder_ffn_dim": 160, "vocab_size": 501, "max_source_positions": 60, "max_target_positions": 40,
           "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def of_mlp(layer, first, second):
    return {layer + first: ColwiseParallel(), layer + second: RowwiseParallel()}


# name: title, what follows the model's name in its classes, its configuration, the class of a layer, the plan
OF_TRANSFORMERS = {
    "llama": ("Llama", "ForCausalLM", SMALL, "DecoderLayer", OF_LAYERS),
    "qwen3": ("Qwen3, tied weights", "ForCausalLM", {**SMALL, "head_dim": 24, "tie_word_embeddings": True}, "DecoderLayer", OF_LAYERS),
    "gemma3": ("Gemma3, scaled embeddings", "ForCausalLM", {**SMALL, "head_dim": 24}, "DecoderLayer", OF_LAYERS),
    "qwen2": ("Qwen2, biases of attention", "ForCausalLM", SMALL, "DecoderLayer", OF_LAYERS),
    "mistral": ("Mistral", "ForCausalLM", SMALL, "DecoderLayer", OF_LAYERS),
    "phi3": ("Phi3, projections in one", "ForCausalLM", {**SMALL, "pad_token_id": 0}, "DecoderLayer", {}),
    "gemma2": ("Gemma2, tied weights", "ForCausalLM", {**SMALL, "head_dim": 24}, "DecoderLayer", OF_LAYERS),
    "gpt-neox": ("GPTNeoX", "ForCausalLM", BERT, "Layer", of_mlp("gpt_neox.layers.*.mlp.", "dense_h_to_4h", "dense_4h_to_h")),
    "opt": ("OPT, tied weights", "ForCausalLM", OPT, "DecoderLayer", of_mlp("model.decoder.layers.*.", "fc1", "fc2")),
    "bloom": ("Bloom, tied weights", "ForCausalLM", BLOOM, "Block", of_mlp("transformer.h.*.mlp.", "dense_h_to_4h", "dense_4h_to_h")),
    "falcon": ("Falcon, tied weights", "ForCausalLM", FALCON, "DecoderLayer", {}),
    "mamba": ("Mamba, states", "ForCausalLM", MAMBA, "Block", {}),
    "mamba2": ("Mamba2, states", "ForCausalLM", MAMBA2, "Block", {}),
    "qwen2-moe": ("Qwen2Moe, a shared expert", "ForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 64}, "DecoderLayer", OF_HEADS),
    "qwen3-moe": ("Qwen3Moe, experts", "ForCausalLM", {**EXPERTS, "head_dim": 24}, "DecoderLayer", OF_HEADS),
    "olmoe": ("Olmoe, experts", "ForCausalLM", {**SMALL, "num_experts": 8, "eos_token_id": 2}, "DecoderLayer", OF_HEADS),
    "whisper": ("Whisper, two kinds of layers", "ForConditionalGeneration", WHISPER, ("EncoderLayer", "DecoderLayer"), {}),
    "siglip": ("SiglipVision", "Model", VIT, ("EncoderLayer",), {}),
    "gpt2": ("GPT2, tied weights", "LMHeadModel", GPT2, "Block", {}),
    "mixtral": ("Mixtral, a mixture of experts", "ForCausalLM", {**SMALL, "num_local_experts": 4}, "DecoderLayer", OF_HEADS),
    "bert": ("Bert, buffers that are not saved", "ForMaskedLM", BERT, "Layer", {}),
    "t5": ("T5, weights tied three times", "ForConditionalGeneration", T5, "Block", {}),
    "vit": ("ViT", "ForImageClassification", VIT, "Layer", {})}
OF_TIMM = {
    "timm-vit": ("ViT", "vit_tiny_patch16_224", {"img_size": 32, "embed_dim": 96, "depth": 2, "num_heads": 4}, "Block"),
    "swin": ("Swin, tables of positions", "swin_tiny_patch4_window7_224",
             {"img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 48, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 10},
             "SwinTransformerBlock"),
    "convnext": ("ConvNeXt", "convnext_tiny", {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 96), "num_classes": 10}, "ConvNeXtBlock"),
    "mixer": ("MLP-Mixer", "MlpMixer", {"img_size": 32, "patch_size": 8, "embed_dim": 96, "num_blocks": 2, "num_classes": 10},
              "MixerBlock"),
    "densenet": ("DenseNet, buffers of norms", "densenet121", {"growth_rate": 8, "block_config": (2, 2), "num_classes": 10}, "DenseBlock"),
    "resnet": ("ResNet-18, buffers of norms", "resnet18", {"channels": (16, 32, 48, 64), "num_classes": 10}, "BasicBlock")}


def initialise_titan_module(model, module):
    """As its init_states does with each module's own tensors."""
    if hasattr(module, "_init_self_parameters"):
        module._init_self_parameters()
        module._init_self_buffers()


def of_titan(title, module, configurations, layer):
    """Its debug model, of two layers; its trainer builds a model, and then initialises it. The plan shards the layers as torchtitan's own
    does."""
    def build():
        config = getattr(importlib.import_module("torchtitan.models." + module), configurations)["debugmodel"]("flex")
        config.layers = config.layers[:2]
        for one in config.layers:
            one.attention.rope = dataclasses.replace(one.attention.rope, max_seq_len=64)
        model = config.build()
        model.init_weights()
        return model

    layers = "layers.*."
    plan = {layers + "attention.qkv_linear.wqkv": ColwiseParallel(), layers + "attention.wo": RowwiseParallel(),
            **{layers + "feed_forward." + name: ColwiseParallel() for name in ("w1", "w3")}, layers + "feed_forward.w2": RowwiseParallel()}
    return Definition("torchtitan, " + title, build, (layer,), lambda model: model.init_weights(), initialise_titan_module, plan,
                      asks_for_device=True)


OF_TITAN = {"torchtitan": ("Qwen3, tied weights", "qwen3", "qwen3_configs", "Qwen3TransformerBlock"),
            "torchtitan-llama3": ("Llama 3, a complex buffer", "llama3", "llama3_configs", "Llama3TransformerBlock")}


def of_transformers(name, title, ending, settings, layer, plan):
    """layer: as its class ends, or several."""
    import transformers
    kind = title.split(",")[0]
    configuration = getattr(transformers, kind + ("TextConfig" if name == "gemma3" else "Config"))
    layers = [layer] if isinstance(layer, str) else layer
    return Definition("transformers, " + title, lambda: getattr(transformers, kind + ending)(configuration(**settings)),
                      tuple(kind.removesuffix("Vision") + one for one in layers), initialise_all, initialise_one, plan,
                      "expert" in title)


def of_timm(title, name, settings, layer):
    import timm
    make = getattr(timm.models, name) if name[0].isupper() else functools.partial(timm.create_model, name)
    return Definition("timm, " + title, lambda: make(**settings), (layer,), initialise_timm)


def is_there(package):
    return importlib.util.find_spec(package) is not None


def definitions():
    found = dict(OF_TORCH)
    if is_there("transformers"):
        found.update({name: of_transformers(name, *rest) for name, rest in OF_TRANSFORMERS.items()})
    if is_there("timm"):
        found.update({name: of_timm(*rest) for name, rest in OF_TIMM.items()})
    if is_there("torchtitan"):
        found.update({name: of_titan(*rest) for name, rest in OF_TITAN.items()})
    return found


DEFINITIONS = definitions()
