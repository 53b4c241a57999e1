"""PyTorch and transformers, for the tests that hold imports and exports to them.

PyTorch is the wheel that libtorch comes from. Its CUDA side names libraries that no CPU calls; the
tests' environment has empty ones in their place, so their symbols must not be looked for before
they are called."""

import os
import sys
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def load():
    """(torch, transformers). Where they are not installed the test is left out, but not where CI is set."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        import torch
        import transformers
    except (ImportError, OSError) as error:
        if os.environ.get("CI"):
            raise
        raise unittest.SkipTest(f"no PyTorch with transformers: {error}") from error
    finally:
        sys.setdlopenflags(flags)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch, transformers


def small_llama(folder):
    """(torch, a Llama of transformers in float64), whose weights are saved in the folder."""
    torch, transformers = load()
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, tie_word_embeddings=False, initializer_range=0.2, rope_theta=1e4,
                                      attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).double()
    model.save_pretrained(folder)
    return torch, model
