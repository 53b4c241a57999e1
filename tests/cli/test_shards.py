"""mw.shards: files of tokens as llm.c, nanoGPT and Megatron write them, and those that say what
cannot be."""
import gzip
import struct
import unittest

import numpy as np

from cases import ProgramCase

VOCAB = 1000
HEAD = """local mw = require "meshwright"
local function train(data, changes)
  local e = { model = mw.gpt { layers = 1, hidden = 16, heads = 2, vocab = 1000 }, data = data, sequence = 8, batch = 4,
              optimizer = mw.sgd { lr = 0 }, steps = 4 }
  for key, value in pairs(changes or {}) do e[key] = value end
  return mw.train(e)
end
"""
CODES = {np.uint8: 1, np.int16: 3, np.int32: 4, np.int64: 5, np.uint16: 8}


def llm_c(tokens, magic=20240520, version=1, count=None, dtype=np.uint16):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + tokens.astype(dtype).tobytes()


def megatron(tokens, dtype=np.uint16, lengths=None, code=None, version=1, sequences=None, pointers=None):
    lengths = np.array([len(tokens)] if lengths is None else lengths, "<i4")
    size = np.dtype(dtype).itemsize
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * size if pointers is None else pointers
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code or CODES[dtype], len(lengths) if sequences is None else sequences, 1)
    return index + lengths.tobytes() + np.array(starts, "<i8").tobytes() + np.zeros(1, "<i8").tobytes(), tokens.astype(dtype).tobytes()


class Shards(ProgramCase):
    def setUp(self):
        super().setUp()
        self.tokens = np.random.default_rng(3).integers(0, VOCAB, 500)

    def put(self, name, content):
        (self.folder / name).write_bytes(content)

    def losses(self, *sources):
        return [run["losses"] for run in self.all("run", self.write(HEAD + "".join(f"train({s})\n" for s in sources)))]

    def test_forms_hold_the_same_tokens(self):
        t = self.tokens
        self.put("bare.bin", t.astype("<u2").tobytes())
        self.put("odd.tok", t.astype("<u4").tobytes())
        self.put("llmc.bin", llm_c(t))
        self.put("llama.bin", llm_c(t, 20240801, 7, dtype="<u4"))
        for n, part in enumerate((t[:123], t[123:123], t[123:])):
            self.put(f"part_{n}.bin", llm_c(part))
        for dtype in (np.uint16, np.int32, np.int64):
            index, data = megatron(t, dtype, [100, 0, 400])
            self.put(f"meg_{np.dtype(dtype)}.idx", index)
            self.put(f"meg_{np.dtype(dtype)}.bin", data)
        order = ', order = "sequential" }'
        sources = ['"bare.bin"', '"llmc.bin"', '"llama.bin"', '"part_*.bin"', '{ "part_0.bin", "part_1.bin", "part_2.bin" }',
                   '"meg_uint16.idx"', '"meg_uint16.bin"', '"meg_int32*"', '"meg_int64.idx"', '"odd.tok", dtype = "u32"']
        for end in (order, " }"):
            found = self.losses(*(f"mw.shards {{ {source}{end}" for source in sources))
            for source, losses in zip(sources, found):
                self.assertEqual(losses, found[0], source)

    def test_samples_are_the_tokens_in_order(self):
        # Bytes as tokens, in order: what mw.text reads of the same.
        small = self.tokens % 128 + 1
        self.put("small.bin", llm_c(small))
        self.put("small.txt", small.astype("u1").tobytes())
        for order in ("sequential", "shuffled"):
            shards, text = self.losses(f'mw.shards {{ "small.bin", order = "{order}" }}', f'mw.text {{ "small.txt", order = "{order}" }}')
            self.assertEqual(shards, text)

    def test_what_cannot_be_is_refused(self):
        t = self.tokens
        bad = {"short": llm_c(t)[:600], "count": llm_c(t, count=501), "negative": llm_c(t, count=-1), "version": llm_c(t, version=2),
               "uneven": b"123", "vocab": llm_c(np.append(t, VOCAB))}
        for name, content in bad.items():
            self.put(f"{name}.bin", content)
        self.put("known.tok", t.astype("<u2").tobytes())
        indices = {"cut": megatron(t)[0][:20], "magic": b"x" * 60, "v2": megatron(t, version=2)[0], "float": megatron(t, code=7)[0],
                   "many": megatron(t, sequences=2 ** 62)[0], "more": megatron(t, lengths=[501])[0],
                   "hole": megatron(t, lengths=[100, 400], pointers=[0, 202])[0], "less": megatron(t, lengths=[-5, 505])[0]}
        for name, content in indices.items():
            self.put(f"i_{name}.idx", content)
            self.put(f"i_{name}.bin", megatron(t)[1])
        cases = {**{f'"{name}.bin"': "data.header" for name in bad if name != "vocab"}, '"vocab.bin"': "data.token",
                 '"known.tok"': "data.header", **{f'"i_{name}.idx"': "data.header" for name in indices}}
        self.all_refused(HEAD, *((f"train(mw.shards {{ {source} }})", 2, f"{code} data.path") for source, code in cases.items()),
                         ('train(mw.shards "none_*.bin")', 2, "file.missing data.path"),
                         ('train(mw.shards "known.tok", { sequence = 600, data = mw.shards { "known.tok", dtype = "u16" } })', 2,
                          "data.too-short data.path"))

    def test_a_type_that_a_header_contradicts_is_refused(self):
        t = self.tokens
        self.put("llmc.bin", llm_c(t))
        index, data = megatron(t, np.int32)
        self.put("meg.idx", index)
        self.put("meg.bin", data)
        self.all("run", self.write(HEAD + 'train(mw.shards { "llmc.bin", dtype = "u16" })\ntrain(mw.shards { "meg.idx", dtype = "i32" })'))
        self.all_refused(HEAD, ('train(mw.shards { "llmc.bin", dtype = "i64" })', 2, "data.dtype data.dtype"),
                         ('train(mw.shards { "meg.idx", dtype = "u16" })', 2, "data.dtype data.dtype"))

    def test_a_name_that_is_there_is_no_pattern_and_its_folder_never_is(self):
        other, right = llm_c(self.tokens[::-1].copy()), llm_c(self.tokens)
        for name in ("exp1", "exp[1]", "expa", "exp{a,b}"):
            (self.folder / name).mkdir()
        for name, content in (("t1.bin", other), ("t[1].bin", right), ("exp1/u.bin", other), ("exp[1]/u.bin", right),
                              ("expa/u.bin", other), ("exp{a,b}/u.bin", right)):
            self.put(name, content)
        want, = self.losses('mw.shards { "t[1].bin", order = "sequential" }')
        for folder in ("exp[1]", "exp{a,b}"):
            for pattern in ("u.bin", "u*.bin"):
                script = self.folder / folder / "s.lua"
                script.write_text(HEAD + f'train(mw.shards {{ "{pattern}", order = "sequential" }})')
                self.assertEqual(self.only("run", script)["losses"], want, (folder, pattern))
        self.assertNotEqual(self.losses('mw.shards { "t1.bin", order = "sequential" }'), [want])
        self.all_refused(HEAD, ('train(mw.shards { ("{a,b}"):rep(30) .. ".bin" })', 2, "option.value data.path"))

    def test_the_type_of_bare_tokens_is_told_by_their_bytes(self):
        """All types that numpy writes come out as they are in the file, or are asked for: never as other tokens."""
        t = self.tokens
        self.put("bare.bin", t.astype("<u2").tobytes())
        sources = ['"bare.bin"']
        for dtype in ("u4", "i4", "u8", "i8"):
            self.put(f"{dtype}.bin", t.astype("<" + dtype).tobytes())
            sources.append(f'"{dtype}.bin"')
        for name, dtype in (("u16", "u2"), ("i16", "i2"), ("u32", "u4"), ("i32", "i4"), ("u64", "u8"), ("i64", "i8")):
            self.put(f"{name}.tok", t.astype("<" + dtype).tobytes())
            sources.append(f'"{name}.tok", dtype = "{name}"')
        found = self.losses(*(f'mw.shards {{ {source}, order = "sequential" }}' for source in sources))
        for source, losses in zip(sources, found):
            self.assertEqual(losses, found[0], source)
        small = t % 100
        for name in ("u1", "i1", "u2"):
            self.put(f"small.{name}", small.astype("<" + name).tobytes())
        found = self.losses(*(f'mw.shards {{ "small.{name}", dtype = "{dtype}", order = "sequential" }}'
                              for name, dtype in (("u1", "u8"), ("i1", "i8"), ("u2", "u16"))))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])
        large = HEAD.replace("vocab = 1000", "vocab = 128256")
        big = np.random.default_rng(4).integers(0, 128256, 500)
        for dtype in ("u4", "i8", "u2"):
            self.put(f"big_{dtype}.bin", (big % 65536 if dtype == "u2" else big).astype("<" + dtype).tobytes())
        runs = self.all("run", self.write(large + "".join(
            f'train(mw.shards {{ "big_{dtype}.bin", order = "sequential" }})\n' for dtype in ("u4", "i8"))))
        self.assertEqual(runs[0]["losses"], runs[1]["losses"])
        # Two-byte ids cannot name a vocabulary above 65,536.
        self.all_refused(large, ('train(mw.shards "big_u2.bin")', 2, "data.dtype data.dtype"))
        self.only("run", self.write(large + 'train(mw.shards { "big_u2.bin", dtype = "u16" })'))

    def test_bytes_that_leave_the_type_open_are_asked_for(self):
        t = self.tokens
        files = {"swapped": t.astype(">u4").tobytes(), "zeros": bytes(800), "short": np.arange(1, 17).astype("<u4").tobytes(),
                 "wider": t.astype("<u4").tobytes(), "far": np.append(t, [-100, VOCAB]).astype("<i8").tobytes()}
        for name, content in files.items():
            self.put(f"{name}.bin", content)
        doubt = "data.dtype data.dtype"
        self.all_refused(HEAD, *((f'train(mw.shards "{name}.bin")', 2, doubt) for name in ("zeros", "short", "far")),
                         ('train(mw.shards { "wider.bin", dtype = "u16" })', 2, doubt),
                         ('train(mw.shards { "wider.bin", dtype = "i64" })', 2, "data.token data.path"),
                         ('train(mw.shards "swapped.bin")', 2, doubt))
        self.only("run", self.write(HEAD + 'train(mw.shards { "zeros.bin", dtype = "u16" })'))

    def test_no_file_is_read_as_a_narrower_type_than_it_has(self):
        """Each pair of the type that a file has and a narrower one that is said: the halves of its ids are ids too."""
        doubt = "data.dtype data.dtype"
        sizes = {"u8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "i64": 8}
        for vocab in (1000, 128256):
            tokens = np.random.default_rng(5).integers(0, vocab, 2000)
            cases = []
            for has, bytes_ in sizes.items():
                if bytes_ == 1 or vocab > 256 ** bytes_:
                    continue
                self.put(f"{vocab}_{has}.bin", tokens.astype(f"<{has[0]}{bytes_}").tobytes())
                cases += [f'"{vocab}_{has}.bin", dtype = "{said}"' for said in sizes if sizes[said] < bytes_]
            self.put(f"{vocab}_cut.bin", tokens.astype("<i8").tobytes()[:-4])
            cases.append(f'"{vocab}_cut.bin"')
            self.all_refused(HEAD.replace("vocab = 1000", f"vocab = {vocab}"),
                             *((f"train(mw.shards {{ {case} }})", 2, doubt) for case in cases))

    def test_a_type_that_is_certain_is_read_whatever_the_bytes_look_like(self):
        """Ids of 16 bits of which every second one is 0 have the bytes of ids of 32 bits."""
        small = np.random.default_rng(8).integers(1, VOCAB, 2000)
        small[1::2] = 0
        for name, content in (("padded", small.astype("<u2").tobytes()), ("other", small.astype("<u4").tobytes()), ("llmc", llm_c(small))):
            self.put(f"{name}.bin", content)
        given = 'mw.shards {{ "{}.bin", order = "sequential"{} }}'
        found = self.losses(given.format("padded", ', dtype = "u16", certain = true'), given.format("other", ', dtype = "u32", certain = true'),
                            given.format("llmc", ""), given.format("padded", ', dtype = "u32", certain = false'))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])
        self.assertNotEqual(found[0], found[3])
        doubt = 'train(mw.shards { "padded.bin", dtype = "u16" })'
        (error,), *_ = self.tried(HEAD, [doubt])
        self.assertEqual(error["code"], "data.dtype")
        self.assertIn("certain = true if its tokens are u16 all the same", error["hint"])
        self.all_refused(HEAD, ('train(mw.shards { "padded.bin", certain = true })', 2, "option.needs data.certain"),
                         ('train(mw.shards { "llmc.bin", dtype = "u32", certain = true })', 2, "data.dtype data.dtype"))

    def test_types_that_the_bytes_can_have_are_named(self):
        rng = np.random.default_rng(9)
        self.put("bytes.bin", rng.integers(0, 256, 999).astype("u1").tobytes())
        self.put("even.bin", rng.integers(128, 256, 1000).astype("u1").tobytes())
        self.put("few.bin", np.arange(1, 17).astype("<u4").tobytes())
        self.put("few.tok", np.arange(1, 17).astype("<u4").tobytes())
        self.put("text.bin", b"It was a dark and stormy night. " * 20)
        for name, types in (("bytes.bin", '"u8"'), ("even.bin", '"u8"'), ("few.bin", '"u8" or "u16" or "u32"'),
                            ("few.tok", '"u8" or "u16" or "u32"'), ("text.bin", '"u8"')):
            (error,), *_ = self.tried(HEAD, [f'train(mw.shards "{name}")'])
            self.assertRegex(error["hint"], f"dtype = {types}$", name)
            self.assertIn(error["code"], ("data.dtype", "data.header", "data.token"), name)

    def test_a_model_of_bytes_reads_bytes_of_any_kind(self):
        """Of UTF-16 and of small int16 every second byte is 0 and a token all the same; of wider words three or seven are."""
        head = HEAD.replace("vocab = 1000", "vocab = 256")
        small = np.random.default_rng(7).integers(1, 100, 2000)
        files = {"text": ("It was a dark and stormy night. " * 20).encode("utf-16-le"), "small": small.astype("<i2").tobytes(),
                 "wide": small.astype("<i8").tobytes()}
        for name, content in files.items():
            self.put(f"{name}.bin", content)
        self.all("run", self.write(head + "".join(f'train(mw.shards {{ "{name}.bin", dtype = "{dtype}" }})\n'
                                                  for name, dtype in (("text", "u8"), ("small", "i8")))))
        self.all_refused(head, *((f'train(mw.shards {{ "wide.bin", dtype = "{dtype}" }})', 2, "data.dtype data.dtype")
                                 for dtype in ("u8", "i8", "u16", "u32")))

    def test_bytes_as_tokens_are_not_taken_in_pairs(self):
        rng = np.random.default_rng(6)
        self.put("bytes.bin", rng.integers(0, 190, 8000).astype("u1").tobytes())
        self.put("pairs.bin", rng.integers(0, 50257, 4000).astype("<u2").tobytes())
        head = HEAD.replace("vocab = 1000", "vocab = 50257")
        self.all_refused(head, ('train(mw.shards "bytes.bin")', 2, "data.dtype data.dtype"))
        self.all("run", self.write(head + 'train(mw.shards { "bytes.bin", dtype = "u8" })\ntrain(mw.shards "pairs.bin")'))

    def test_other_kinds_of_files_are_no_tokens(self):
        t = self.tokens.astype("<u2")
        with open(self.folder / "saved.bin", "wb") as file:  # np.save gives a path the ending .npy
            np.save(file, t)
        np.savez(self.folder / "packed.npz", t)
        files = {"zipped": gzip.compress(t.tobytes()), "archive": (self.folder / "packed.npz").read_bytes(),
                 "parquet": b"PAR1" + bytes(100) + b"PAR1", "llm_c_weights": struct.pack("<i", 20240326) + bytes(1020), "text": b"It was a dark and stormy night. " * 20}
        for name, content in files.items():
            self.put(f"{name}.bin", content)
        names = ["saved", *files]
        self.all_refused(HEAD, *((f'train(mw.shards "{name}.bin")', 2, "data.dtype data.dtype") for name in names),
                         *((f'train(mw.text "{name}.bin", {{ model = mw.gpt {{ layers = 1, hidden = 16, heads = 2, vocab = 256 }} }})',
                            2, "file.format data.path") for name in names if name != "text"))

    def test_a_header_and_a_given_type_say_more_than_first_bytes(self):
        self.put("forced.bin", b"PAR1" + bytes(range(200)))
        index, _ = megatron(np.zeros(204, np.uint8), dtype=np.uint8)
        self.put("indexed.bin", b"PAR1" + bytes(range(200)))
        self.put("indexed.idx", index)
        self.all("run", self.write(HEAD + 'train(mw.shards { "forced.bin", dtype = "u8" })\ntrain(mw.shards "indexed.idx")'))

    def test_an_id_beyond_the_vocab_ends_the_run(self):
        t = np.concatenate([self.tokens] * 200)
        t[70000] = VOCAB + 5  # beyond what is looked at first
        self.put("late.bin", llm_c(t))
        done = self.call("run", self.write(HEAD + 'train(mw.shards { "late.bin", order = "sequential" }, { steps = 4000, batch = 8 })'),
                         "--json")
        line = self.lines(done)[-1]
        self.assertEqual((done.returncode, line["code"]), (1, "data.token"))
        self.assertIn("token 70000 is 1005, and the model's ids are 0 to 999", line["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
