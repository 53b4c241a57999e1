"""Models that transformers saved give its logits here under tp x pp, train, and load there again
with the logits that
they have here; sharded files with an index on both sides."""

import json

import numpy as np
import safetensors.numpy

import cases
import hf

BOUND = 1e-5  # of the largest logit; what is seen, about 1e-6, is printed
LLAMA = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.2,
         "rope_theta": 5e4, "bos_token_id": 1, "eos_token_id": 2}
DEEPSEEK = {**LLAMA, "moe_intermediate_size": 24, "n_routed_experts": 4, "n_shared_experts": 2,
            "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5}
DECODER = "layers = 2, hidden = 32, heads = 4, vocab = 64, ffn = 48, rope_theta = 5e4"
DEEPSEEK_OURS = ("experts = 4, top_k = 2, expert_ffn = 24, shared_experts = 2, dense_layers = 1, score = \"sigmoid\", "
                 "balance = \"bias\", scale = 1.5")
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
          "num_key_value_heads": 4}
OUR_LATENT = "q_lora_rank = 16, kv_lora_rank = 8, qk_rope_head_dim = 4, qk_nope_head_dim = 8, v_head_dim = 8"
# transformers' configuration, and the same model here
MODELS = {
    "llama": ("LlamaConfig", LLAMA, f"mw.llama {{ {DECODER}, kv_heads = 2, norm_eps = 1e-6 }}"),
    "tied": ("LlamaConfig", {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 4},
             f"mw.llama {{ {DECODER}, norm_eps = 1e-6, tied = true }}"),
    "mistral": ("MistralConfig", {**LLAMA, "sliding_window": 6},
                f"mw.llama {{ {DECODER}, kv_heads = 2, norm_eps = 1e-6, window = 6 }}"),
    "mixtral": ("MixtralConfig", {**LLAMA, "num_local_experts": 4},
                f"mw.moe {{ {DECODER}, kv_heads = 2, experts = 4, top_k = 2 }}"),
    "gpt2": ("GPT2Config", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16,
                            "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2},
             "mw.gpt { layers = 2, hidden = 32, heads = 4, vocab = 64 }"),
    "deepseek": ("DeepseekV3Config", {**DEEPSEEK, **LATENT, "num_mtp_layers": 0},
                 "mw.moe { " + DECODER + ", " + DEEPSEEK_OURS + ", norm_eps = 1e-6, " + OUR_LATENT + " }"),
    "deepseek-2": ("DeepseekV2Config", {**DEEPSEEK, **LATENT, "n_group": None, "topk_group": None},
                   "mw.moe { " + DECODER + ", experts = 4, top_k = 2, expert_ffn = 24, shared_experts = 2, "
                   "dense_layers = 1, normalise = false, scale = 1.5, norm_eps = 1e-6, " + OUR_LATENT + " }"),
    "deepseek-groups": ("DeepseekV3Config", {**DEEPSEEK, **LATENT, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
                                             "num_mtp_layers": 0},
                        "mw.moe { " + DECODER + ", " + DEEPSEEK_OURS.replace("experts = 4", "experts = 8", 1) +
                        ", groups = 2, group_top = 1, norm_eps = 1e-6, " + OUR_LATENT + " }"),
    "deepseek-2-groups": ("DeepseekV2Config", {**DEEPSEEK, **LATENT, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
                                               "topk_method": "group_limited_greedy"},
                          "mw.moe { " + DECODER + ", experts = 8, top_k = 2, groups = 4, group_top = 2, expert_ffn = 24, "
                          "shared_experts = 2, dense_layers = 1, normalise = false, scale = 1.5, norm_eps = 1e-6, " +
                          OUR_LATENT + " }"),
    "glm": ("Glm4MoeConfig", {**DEEPSEEK, "partial_rotary_factor": 1.0, "num_mtp_layers": 0, "head_dim": 8},
            "mw.moe { " + DECODER + ", kv_heads = 2, " + DEEPSEEK_OURS + " }"),
}

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2,
         "rms_norm_eps": 1e-6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OUR_SIZES = "layers = 3, hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, ffn = 48, vocab = 64"
MAMBA = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 16,
         "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2}
OUR_MAMBA = "layers = 2, hidden = 32, heads = 8, head_dim = 8, state = 16, vocab = 64"
MODELS |= {
    "gemma-2": ("Gemma2Config", {**SIZES, "query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 2.0,
                                 "final_logit_softcapping": 3.0, "attn_implementation": "eager"},
                f"mw.gemma2 {{ {OUR_SIZES}, window = 6, query_pre_attn_scalar = 24, score_cap = 2, logit_cap = 3 }}"),
    "gemma-3": ("Gemma3TextConfig", {**SIZES, "query_pre_attn_scalar": 24, "sliding_window": 6,
                                     "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
                f"mw.gemma3 {{ {OUR_SIZES}, window = 6, query_pre_attn_scalar = 24, every = 3 }}"),
    "qwen-3": ("Qwen3Config", {**SIZES, "tie_word_embeddings": False, "rope_theta": 5e4},
               f"mw.qwen3 {{ {OUR_SIZES}, tied = false, rope_theta = 5e4 }}"),
    "olmo-2": ("Olmo2Config", {key: value for key, value in SIZES.items() if key != "head_dim"} | {"rope_theta": 5e4},
               f"mw.olmo2 {{ {OUR_SIZES}, rope_theta = 5e4 }}"),
    "mamba-2": ("Mamba2Config", {**MAMBA, "n_groups": 2}, f"mw.mamba2 {{ {OUR_MAMBA}, groups = 2, chunk = 6 }}"),
    "mamba-2-tied": ("Mamba2Config", {**MAMBA, "n_groups": 1, "tie_word_embeddings": True},
                     f"mw.mamba2 {{ {OUR_MAMBA}, groups = 1, chunk = 256, tied = true }}"),
}

NEXT = {**SIZES, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16, "num_experts": 4,
        "num_experts_per_tok": 2, "full_attention_interval": 2, "partial_rotary_factor": 0.5, "initializer_range": 0.1}
OUR_NEXT = ("layers = 4, hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, vocab = 64, rotary = 4, every = 2, key_heads = 2, "
            "value_heads = 4, key_dim = 8, value_dim = 8, experts = 4, top_k = 2, expert_ffn = 24, shared_ffn = 16, "
            "rope_theta = 10000, chunk = 6")
OSS = {**SIZES, "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6,
       "rms_norm_eps": 1e-5, "swiglu_limit": 1.5}
OUR_OSS = OUR_SIZES.replace("layers = 3", "layers = 4") + ", experts = 4, top_k = 2, window = 6, swiglu_limit = 1.5"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8, "rope_theta": 5e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8, "original_max_position_embeddings": 8,
        "rope_theta": 5e4}


def in_lua(scaling):
    keys = {"type" if key == "rope_type" else key: value for key, value in scaling.items() if key != "rope_theta"}
    return "rope_scaling = { " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()) + " }"


MODELS |= {
    "gpt-oss": ("GptOssConfig", OSS, f"mw.gpt_oss {{ {OUR_OSS} }}"),
    "qwen-3-next": ("Qwen3NextConfig", NEXT, f"mw.qwen3_next {{ {OUR_NEXT} }}"),
    "llama-3": ("LlamaConfig", {**LLAMA, "rope_parameters": LLAMA3},
                f"mw.llama {{ {DECODER}, kv_heads = 2, norm_eps = 1e-6, {in_lua(LLAMA3)} }}"),
    "deepseek-yarn": ("DeepseekV3Config", {**DEEPSEEK, **LATENT, "num_mtp_layers": 0, "rope_parameters": YARN},
                      "mw.moe { " + DECODER + ", " + DEEPSEEK_OURS + ", norm_eps = 1e-6, " + OUR_LATENT + ", " +
                      in_lua(YARN) + " }"),
}
# Scripts that compose a model themselves: the model's class in transformers, and the name of the
# model's input for each argument of the class's forward.
SCRIPTS = {
    "bert": ("BertForMaskedLM", {"input_ids": "tokens", "token_type_ids": "kind"}),
    "albert": ("AlbertForMaskedLM", {"input_ids": "tokens", "token_type_ids": "kind"}),
    "t5": ("T5ForConditionalGeneration", {"decoder_input_ids": "tokens", "input_ids": "text"}),
    "vit": ("ViTForImageClassification", {}),
    "llava": ("LlavaForConditionalGeneration", {}),
}

SCRIPT = """\
local mw = require "meshwright"
local tp, pp, dp, zero, ep = mw.plugins("tp", "pp", "dp", "zero", "ep")
mw.train {
  model = %s,
  data = mw.synthetic {}, sequence = 16,
  plan = { pp(2), tp(2) },
  batch = 4, microbatch = 2,
  weights = "%s", %s
  optimizer = mw.adamw { lr = 1e-3 }, steps = 2,
}
"""


class Transformers(cases.ProgramCase):
    @classmethod
    def setUpClass(cls):
        cls.torch, cls.transformers = hf.load()

    def script_of(self, model, weights, more=""):
        path = self.folder / "script.lua"
        path.write_text(SCRIPT % (model, weights, more))
        return path

    def logits(self, *settings):
        """Tokens and logits of the script's first batch, as the program computes them."""
        self.only("logits", "script.lua", "-o", "logits.safetensors", *settings)
        found = safetensors.numpy.load_file(self.folder / "logits.safetensors")
        return found["tokens"], found["logits"]

    def theirs(self, model, tokens):
        with self.torch.no_grad():
            return model(self.torch.from_numpy(tokens)).logits.numpy()

    def same(self, name, ours, theirs):
        self.assertGreater(np.abs(theirs).max(), 0.5)  # of order 1: else a bound would say little
        worst = np.abs(ours - theirs).max()
        print(f"{name}: logits up to {np.abs(theirs).max():.1f} differ by {worst:.1e} at most")
        self.assertLessEqual(worst, BOUND * np.abs(theirs).max())

    def round_trip(self, name, *settings):
        kind, config, ours = MODELS[name]
        model = self.transformers.AutoModelForCausalLM.from_config(getattr(self.transformers, kind)(**config)).eval()
        with self.torch.no_grad():  # norms whose weights are all alike would hide that they are mixed up
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(self.torch.randn_like(parameter) * 0.1)
        model.save_pretrained(self.folder / "theirs", max_shard_size="20KB")
        self.assertTrue((self.folder / "theirs/model.safetensors.index.json").exists())
        self.script_of(ours, "theirs", 'export = { path = "ours", shard = "20KB" },')
        for plan in ("{}", "{ pp(2), tp(2) }"):
            tokens, logits = self.logits("--set", f"plan={plan}", *settings)
            before = self.theirs(model, tokens)
            self.same(f"{name}, imported, {plan}", logits, before)

        run = self.only("run", "script.lua", *settings)
        self.assertEqual(run["export"], str((self.folder / "ours").resolve()))
        index = json.loads((self.folder / "ours/model.safetensors.index.json").read_text())
        self.assertGreater(len(set(index["weight_map"].values())), 2)
        back, info = self.transformers.AutoModelForCausalLM.from_pretrained(self.folder / "ours",
                                                                            output_loading_info=True)
        self.assertEqual({key: list(value) for key, value in info.items() if value}, {})
        self.assertIs(type(back), type(model))
        self.assertEqual((back.config.bos_token_id, back.config.eos_token_id), (1, 2))
        tokens, logits = self.logits("--set", "weights=ours", "--set", "plan={}")
        after = self.theirs(back.eval(), tokens)
        self.same(f"{name}, trained and exported", logits, after)
        self.assertGreater(np.abs(after - before).max(), 1e-3)  # it was trained

    def of_script(self, name, *plans):
        """The logits of a script's model are those of transformers' class, with its weights and those that it trains."""
        class_name, arguments = SCRIPTS[name]
        kind = getattr(self.transformers, class_name)
        script = str(cases.SOURCE / f"scripts/models/{name}.lua")
        self.only("run", script, "--set", "steps=1", "--set", 'export={path="first", shard="20KB"}')
        model = kind(kind.config_class.from_pretrained(self.folder / "first", initializer_range=0.2))
        with self.torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(self.torch.randn_like(parameter) * (0.02 if name == "t5" else 0.1))
        model.eval().save_pretrained(self.folder / "theirs", max_shard_size="20KB")
        for plan in plans:
            found = self.found(script, "theirs", plan)
            before = self.of_class(model, found, arguments)
            self.same(f"{name}, imported, {plan}", found["logits"], before)
        self.only("run", script, "--set", "weights=theirs", "--set", "optimizer.lr=1e-2", "--set", "steps=3",
                  "--set", 'export={path="ours", shard="20KB"}')
        back, info = kind.from_pretrained(self.folder / "ours", output_loading_info=True)
        unused = {"missing_keys"} if name == "llava" else set()  # layers that nobody reads are in no export
        self.assertEqual({key: list(value) for key, value in info.items() if value and key not in unused}, {})
        found = self.found(script, "ours", "{}")
        after = self.of_class(back.eval(), found, arguments)
        self.same(f"{name}, trained and exported", found["logits"], after)
        self.assertGreater(np.abs(after - before).max(), 1e-3)

    def found(self, script, weights, plan):
        self.only("logits", script, "-o", "logits.safetensors", "--set", f"weights={weights}", "--set", f"plan={plan}")
        return safetensors.numpy.load_file(self.folder / "logits.safetensors")

    def of_class(self, model, found, arguments):
        given = {argument: self.torch.from_numpy(found[ours]) for argument, ours in arguments.items()}
        if "image" in found:
            given["pixel_values"] = self.image_of(self.torch.from_numpy(found["image"]))
        if "place" in found:
            return self.with_image(model, found, given["pixel_values"])
        with self.torch.no_grad():
            return model(**given).logits.numpy()

    @staticmethod
    def image_of(patches):
        """(batch, patches, colors, rows, columns) as (batch, colors, height, width)."""
        edge = round(patches.shape[1] ** 0.5)
        return patches.unflatten(1, (edge, edge)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3).contiguous()

    def with_image(self, model, found, pixels):
        """Logits of a language model where some tokens are replaced by patches of an image, in any order."""
        with self.torch.no_grad():
            patches = model.get_image_features(pixels).pooler_output
            patches = self.torch.stack(list(patches)) if isinstance(patches, (list, tuple)) else patches
            patches = patches.view(pixels.shape[0], -1, patches.shape[-1])
            own = model.get_input_embeddings()(self.torch.from_numpy(found["tokens"]))
            place = self.torch.from_numpy(found["place"])
            seen = patches.gather(1, place[..., None].expand(-1, -1, patches.shape[-1]))
            shown = self.torch.from_numpy(found["shown"])[..., None] > 0
            return model(inputs_embeds=self.torch.where(shown, seen, own)).logits.numpy()

    def test_bert(self):
        self.of_script("bert", "{}", "{pp(2), tp(2)}")

    def test_albert(self):
        self.of_script("albert", "{}", "{pp(2), tp(2)}")

    def test_t5(self):
        self.of_script("t5", "{}", "{pp(2), tp(2)}")

    def test_vit(self):
        self.of_script("vit", "{}", "{pp(2), tp(2)}")

    def test_llava(self):
        self.of_script("llava", "{}", "{pp(2), tp(2)}")

    def test_gpt_oss(self):
        self.round_trip("gpt-oss")

    def test_gpt_oss_in_shards(self):
        self.round_trip("gpt-oss", "--set", "plan={zero{2, stage=3}, ep(2), tp(2)}")

    def test_qwen_3_next(self):
        self.round_trip("qwen-3-next")

    def test_llama_3(self):
        self.round_trip("llama-3")

    def test_deepseek_with_yarn(self):
        self.round_trip("deepseek-yarn")

    def test_gemma_2(self):
        self.round_trip("gemma-2")

    def test_gemma_3(self):
        self.round_trip("gemma-3")

    def test_qwen_3(self):
        self.round_trip("qwen-3")

    def test_olmo_2(self):
        self.round_trip("olmo-2")

    def test_mamba_2(self):
        self.round_trip("mamba-2")

    def test_tied_mamba_2(self):
        self.round_trip("mamba-2-tied")

    def test_llama(self):
        self.round_trip("llama")

    def test_tied_llama(self):
        self.round_trip("tied")

    def test_mistral(self):
        self.round_trip("mistral")

    def test_mixtral(self):
        self.round_trip("mixtral")

    def test_mixtral_in_shards(self):
        self.round_trip("mixtral", "--set", "plan={zero{2, stage=3}, ep(2)}")

    def test_gpt2(self):
        self.round_trip("gpt2")

    def test_deepseek(self):
        self.round_trip("deepseek")

    def test_deepseek_2(self):
        self.round_trip("deepseek-2")

    def test_deepseek_with_groups(self):
        self.round_trip("deepseek-groups")

    def test_deepseek_2_with_groups(self):
        self.round_trip("deepseek-2-groups")

    def test_deepseek_that_predicts_further_tokens(self):
        """The loss with two modules of multi-token prediction is that of transformers' MtpModel, beside its model."""
        _, _, ours = MODELS["deepseek-groups"]
        ours = ours.replace(" }", ", predict_ahead = 2, ahead_weight = 0.5 }")
        self.script_of(ours, "", 'export = { path = "ours", shard = "20KB" },')
        text = (self.folder / "script.lua").read_text().replace('weights = "",', "")
        self.only("run", self.write(text))
        index = json.loads((self.folder / "ours/model.safetensors.index.json").read_text())["weight_map"]
        for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm", "mlp.gate", "self_attn.o_proj"):
            self.assertIn(f"model.layers.3.{name}.weight", index)
        self.write(text.replace("export", 'weights = "ours", --'))
        tokens, logits = self.logits("--set", "plan={}")
        loss = self.only("run", "script.lua", "--set", "plan={}", "--set", "steps=1")["losses"][0]

        class Main(self.transformers.DeepseekV3ForCausalLM):
            _keys_to_ignore_on_load_unexpected = [r"model\.layers\.[23]\..*"]
        main = Main.from_pretrained(self.folder / "ours").eval()
        self.assertEqual(main.config.num_mtp_layers, 2)
        self.same("deepseek that predicts further tokens, exported", logits, self.theirs(main, tokens))
        from transformers.modeling_layers import MtpModel
        ahead = MtpModel.from_pretrained(main).eval()
        labels = self.torch.from_numpy(safetensors.numpy.load_file(self.folder / "logits.safetensors")["labels"])
        with self.torch.no_grad():
            stream = main(self.torch.from_numpy(tokens), output_hidden_states=True).hidden_states[-1]
            expected = self.cross_entropy(main.lm_head(stream), labels)
            for k in range(2):
                following = self.torch.cat([labels[:, k:], labels[:, -1:].expand(-1, k)], 1)
                places = self.torch.arange(labels.shape[1])[None]
                stream = ahead.forward_layer(k, stream, places, None, input_ids=following)
                expected += 0.25 * self.cross_entropy(ahead._project_to_logits(stream)[:, :-k - 1], labels[:, k + 1:]) \
                    * (1 - (k + 1) / labels.shape[1])
        print(f"loss with modules that predict further tokens: {loss:.6f}, and {expected:.6f} by transformers")
        self.assertAlmostEqual(loss, float(expected), delta=1e-5)

    def cross_entropy(self, logits, labels):
        return self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def test_deepseek_without_latents(self):
        self.round_trip("glm")


if __name__ == "__main__":
    cases.unittest.main(verbosity=2)
