"""The weights, text and configurations that tests/parity/data/peer_losses.json was made with.

The weights follow a rule that stock PyTorch states in a line: norm weights are 1, every other
tensor is normal(0, 0.02) from a fresh CPU generator seeded seed * 1000003 + crc32(its short
name). The generator is repeated here, so that no torch is needed: a Mersenne twister's 24 low
bits as uniform floats, then Box-Muller in blocks of 16.

  python3 tests/parity/peer.py text FILE             writes the text
  python3 tests/parity/peer.py weights CONFIG FILE   writes the weights (safetensors, HF names)
"""

import json
import pathlib
import sys
import zlib

import numpy as np
import safetensors.numpy

DATA = pathlib.Path(__file__).parent / "data" / "peer_losses.json"
SEED = 0


def uniforms(random, count):
    bits = random.randint(0, 2**32, size=count, dtype=np.uint32)
    return (bits & np.uint32((1 << 24) - 1)).astype(np.float32) * np.float32(2.0**-24)


def box_muller(block):
    """16 uniforms -> 16 normals; `block` is [n, 16]."""
    first, second = np.float32(1) - block[:, :8], block[:, 8:]
    radius = np.sqrt(np.float32(-2) * np.log(first))
    angle = np.float32(2 * np.pi) * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def normal(name, shape, deviation=0.02):
    count = int(np.prod(shape))
    assert count >= 16, "smaller tensors are drawn another way"
    random = np.random.RandomState((SEED * 1000003 + zlib.crc32(name.encode())) % 2**32)
    values = uniforms(random, count)
    tail = uniforms(random, 16) if count % 16 else None
    whole = count - count % 16
    values[:whole] = box_muller(values[:whole].reshape(-1, 16)).reshape(-1)
    if tail is not None:  # the last 16 are drawn anew
        values[-16:] = box_muller(tail.reshape(1, 16)).reshape(-1)
    return (values * np.float32(deviation)).reshape(shape)


def weights(c):
    """Hugging Face's name -> array, for a configuration {layers, hidden, heads, kv_heads, ffn, vocab}."""
    h, f, v = c["hidden"], c["ffn"], c["vocab"]
    keys = h // c["heads"] * c["kv_heads"]
    ones = lambda: np.ones(h, np.float32)
    made = {"model.embed_tokens.weight": normal("embed.weight", (v, h)),
            "model.norm.weight": ones(), "lm_head.weight": normal("head.weight", (v, h))}
    parts = {"self_attn.q_proj": ("attn.q", (h, h)), "self_attn.k_proj": ("attn.k", (keys, h)),
             "self_attn.v_proj": ("attn.v", (keys, h)), "self_attn.o_proj": ("attn.o", (h, h)),
             "mlp.gate_proj": ("mlp.gate", (f, h)), "mlp.up_proj": ("mlp.up", (f, h)),
             "mlp.down_proj": ("mlp.down", (h, f))}
    for i in range(c["layers"]):
        for name, (short, shape) in parts.items():
            made[f"model.layers.{i}.{name}.weight"] = normal(f"layers.{i}.{short}.weight", shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"model.layers.{i}.{name}.weight"] = ones()
    return made


def text(sentences=700):
    """Some 30 kB of sentences, the same ones each time."""
    who = "the miller,a tall ship,the old wright,every weaver,my neighbour,the mesh,a patient clerk".split(",")
    does = "mends,follows,measures,forgets,carries,splits,gathers,scatters".split(",")
    what = "the long rope,nine grey sheets,a broken loom,its own shadow,the north field,what was left".split(",")
    when = "before noon,in the rain,without a word,twice a year,as agreed".split(",")
    state, lines = 12345, []
    for number in range(sentences):
        words = []
        for choices in (who, does, what, when):
            state = (1103515245 * state + 12345) % 2**31
            words.append(choices[(state >> 16) % len(choices)])
        lines.append(f"{number}. {' '.join(words).capitalize()}.\n")
    return "".join(lines).encode()


def configurations():
    return json.loads(DATA.read_text())["configurations"]


if __name__ == "__main__":
    if sys.argv[1] == "text":
        pathlib.Path(sys.argv[2]).write_bytes(text())
    else:
        safetensors.numpy.save_file(weights(configurations()[sys.argv[2]]["model"]), sys.argv[3])
