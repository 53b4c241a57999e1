// Bugs that were found in the field, put into programs: each is refused, and by a message that
// names the fault. docs/verify.md lists them, and those that cannot be written here.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "prove/mutants.h"
#include "prove/prove.h"

using namespace mw;               // NOLINT
using namespace mw::test;         // NOLINT
using namespace mw::test::mixes;  // NOLINT
using Catch::Contains;

namespace catalogue {
namespace {

using List = std::vector<Instruction>;
using Which = std::function<bool(const Program&, const Instruction&)>;

// The first instruction of a stage that is one of these: where it stands.
struct Found {
  List* code = nullptr;
  std::size_t index = 0;
  Instruction& operator*() const { return (*code)[index]; }
  Instruction* operator->() const { return &(*code)[index]; }
};
std::vector<Found> all(Program& program, const Which& which) {
  std::vector<Found> found;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    Segment& segment = program.segments[s];
    const auto& runs = program.timeline;
    if (std::none_of(runs.begin(), runs.end(),
                     [&](const SegmentRun& run) { return run.segment == static_cast<int>(s); }))
      continue;
    for (std::size_t n = 0; n < segment.code.size(); ++n)
      if (which(program, segment.code[n])) found.push_back({&segment.code, n});
  }
  return found;
}
Found first(Program& program, const Which& which) {
  const std::vector<Found> found = all(program, which);
  REQUIRE(!found.empty());
  return found.front();
}
void erase(const Found& at) {
  at.code->erase(at.code->begin() + static_cast<std::ptrdiff_t>(at.index));
}

Which start(Move::Kind kind, bool lasting) {
  return [=](const Program& program, const Instruction& i) {
    return i.code == Code::start && i.move.kind == kind && between_lasting(program, i) == lasting;
  };
}
Which coded(Code code) {
  return [=](const Program&, const Instruction& i) { return i.code == code; };
}
Which piece(Piece piece, const std::string& label) {
  return [=](const Program& program, const Instruction& i) {
    return i.code == Code::compute && i.update == Update::none && i.piece == piece &&
           program.graph->ops()[static_cast<std::size_t>(i.op)].name == label;
  };
}
Which update(Update update) {
  return [=](const Program&, const Instruction& i) {
    return i.code == Code::compute && i.update == update;
  };
}
// The wait for what an instruction begins.
Found wait_of(Program& program, const Found& begun) {
  return first(program, [pending = begun->pending](const Program&, const Instruction& i) {
    return i.code == Code::wait && i.pending == pending;
  });
}
int atom(const Program& program, const std::string& axis) {
  return program.mesh.axis(axis).atoms.front();
}
struct Bug {
  std::string name;
  NamedMix mix;
  std::function<void(Stages&)> put;
  std::string code;
  std::vector<std::string> says;
};

NamedMix tied(NamedMix made) {
  made.setup.options["tied"] = true;
  return made;
}
NamedMix with_muon(NamedMix made) {
  made.setup.optimizer = "muon";
  made.setup.optimizer_options = Json{{"lr", 1e-3}};
  return made;
}
StrategyChoice each(int ways) {
  return strategy("dp",
                  {{"ways", ways}, {"bucket", 1 << 16}, {"overlap", false}, {"reduce", "each"}});
}

const Move::Kind all_reduce = Move::Kind::all_reduce, all_gather = Move::Kind::all_gather;

// TrainVerify (arXiv 2506.15961), by their numbers.
std::vector<Bug> of_trainverify() {
  std::vector<Bug> bugs;
  bugs.push_back({"1: an all-reduce is missing, what follows reads its operand",
                  mix("", {tp(2)}),
                  [](Stages& s) {
                    const Found begun = first(s[0], start(all_reduce, false));
                    erase(wait_of(s[0], begun));
                    begun->code = Code::copy;
                  },
                  "prove.place",
                  {"a sum over tp that was not reduced (P)", "all-reduce over tp"}});
  bugs.push_back({"2: an all-reduce is missing, what follows reads its result",
                  mix("", {tp(2)}),
                  [](Stages& s) {
                    const Found begun = first(s[0], start(all_reduce, false));
                    erase(wait_of(s[0], begun));
                    erase(begun);
                  },
                  "prove.missing",
                  {"nothing was written there"}});
  bugs.push_back({"3: an all-gather instead of an all-reduce",
                  mix("", {tp(2)}),
                  [](Stages& s) { first(s[0], start(all_reduce, false))->move.kind = all_gather; },
                  "prove.place",
                  {"tp"}});
  bugs.push_back({"4: an all-reduce instead of an all-gather",
                  mix("", {tp(2), sp()}),
                  [](Stages& s) { first(s[0], start(all_gather, false))->move.kind = all_reduce; },
                  "prove.place",
                  {"cut over tp (S(seq))", "a share of a sum over tp (P)"}});
  bugs.push_back({"6: a move between stages from the wrong rank",
                  mix("", {pp(3, "1f1b", {0, 2, 0})}, 2),
                  [](Stages& s) { first(s[1], start(Move::Kind::recv, false))->move.peer = 2; },
                  "prove.order",
                  {"GPUs match messages by these numbers"}});
  bugs.push_back({"10: backward reads the operands of another op",
                  mix("", {dp(2)}),
                  [](Stages& s) {
                    const Found one = first(s[0], piece(Piece::wgrad, "layers.0.mlp.gate"));
                    const Found other = first(s[0], piece(Piece::wgrad, "layers.1.mlp.gate"));
                    std::swap(one->inputs, other->inputs);
                  },
                  "prove.value",
                  {"must be"}});
  bugs.push_back({"11: the gradients that backward writes are swapped",
                  mix("", {dp(2)}),
                  [](Stages& s) {
                    const Found one = first(s[0], [](const Program& p, const Instruction& i) {
                      return i.code == Code::compute && i.update == Update::none &&
                             i.piece == Piece::backward && i.grad_inputs.size() == 2 &&
                             i.grad_inputs[0] >= 0 && i.grad_inputs[1] >= 0 &&
                             !p.slots[static_cast<std::size_t>(i.grad_inputs[1])].persistent;
                    });
                    std::swap(one->grad_inputs[0], one->grad_inputs[1]);
                  },
                  "prove.gradient",
                  {}});
  bugs.push_back({"12, 13: the loss's gradient is scaled",
                  mix("", {dp(2)}, 2),
                  [](Stages& s) {
                    const Found seed = first(s[0], coded(Code::seed));
                    Instruction twice;
                    twice.code = Code::add;
                    twice.inputs = twice.outputs = {seed->outputs[0]};
                    seed.code->insert(
                        seed.code->begin() + static_cast<std::ptrdiff_t>(seed.index) + 1, twice);
                  },
                  "prove.gradient",
                  {"too often    the seed of the loss"}});
  bugs.push_back({"14: a reduction begins before the last gradient of the last microbatch",
                  mix("", {dp(2, 1 << 30)}, 2),
                  [](Stages& s) {
                    const Found begun = first(s[0], start(all_reduce, true));
                    List& code = *begun.code;
                    REQUIRE(code[begun.index - 1].code == Code::settle);
                    const auto from = code.begin() + static_cast<std::ptrdiff_t>(begun.index) - 1;
                    const auto before =
                        std::find_if(std::make_reverse_iterator(from), code.rend(),
                                     [](const Instruction& i) { return i.piece == Piece::wgrad; });
                    REQUIRE(before != code.rend());
                    std::rotate(before.base() - 1, from, from + 2);
                  },
                  "prove.underway",
                  {"is written while a transfer writes bucket 0 gradients"}});
  return bugs;
}

// What Megatron-LM, DeepSpeed, PyTorch and others had, by their issues.
std::vector<Bug> of_the_field() {
  std::vector<Bug> bugs;
  bugs.push_back({"the norm counts what ranks hold alike on each (Megatron-LM 5916)",
                  mix("", {tp(2)}),
                  [](Stages& s) {
                    const Found totals = first(s[0], coded(Code::totals));
                    for (auto& list : totals->contributing) list.clear();
                  },
                  "prove.totals",
                  {"tp"}});
  bugs.push_back({"the norm leaves out shards (Megatron-LM 7452 F8, Transformer Engine 715)",
                  mix("", {tp(2)}),
                  [](Stages& s) {
                    const Found totals = first(s[0], coded(Code::totals));
                    for (auto& list : totals->contributing) list = {atom(s[0], "tp")};
                  },
                  "prove.totals",
                  {"tp"}});
  bugs.push_back({"a tied weight counts twice in the norm (Megatron-LM 7227)",
                  tied(mix("", {pp(2, "1f1b", {1, 1})}, 2)),
                  [](Stages& s) {
                    const Found totals = first(s[1], coded(Code::totals));
                    for (const Bucket& bucket : s[1].buckets) {
                      if (bucket.stages.empty()) continue;
                      totals->inputs.push_back(bucket.flat.reduced);
                      totals->contributing.emplace_back();
                    }
                  },
                  "prove.totals",
                  {}});
  bugs.push_back({"a stage sums its tied weight's gradient once less (Megatron-LM 3401)",
                  tied(mix("", {pp(2, "1f1b", {1, 1})}, 2)),
                  [](Stages& s) {
                    const Found begun = first(s[1], [](const Program&, const Instruction& i) {
                      return i.code == Code::start && !i.move.stages.empty();
                    });
                    for (Segment& segment : s[1].segments)
                      std::erase_if(segment.code, [pending = begun->pending](const Instruction& i) {
                        return (i.code == Code::start || i.code == Code::wait) &&
                               i.pending == pending;
                      });
                  },
                  "prove.gradient",
                  {"the gradient of embedding.weight", "is not complete"}});
  bugs.push_back(
      {"a replicated weight's gradient stays a sum over ranks (bigcode-megatron 35, "
       "DeepSpeed 1801, Megatron-LM 7452 F4)",
       mix("", {tp(2), sp()}),
       [](Stages& s) {
         const Found begun = first(s[0], start(all_reduce, true));
         erase(wait_of(s[0], begun));
         erase(begun);
       },
       "prove.place",
       {"is not summed over its ranks", "all-reduce over tp"}});
  bugs.push_back(
      {"a sum over the wrong group (Megatron-LM 7452 F4)",
       mix("", {dp(2), tp(2)}),
       [](Stages& s) { first(s[0], start(all_reduce, false))->move.atoms = {atom(s[0], "dp")}; },
       "prove.place",
       {"dp"}});
  bugs.push_back({"gradients are reduced again with what was reduced (Megatron-LM 6660)",
                  mix("", {each(2)}, 2),
                  [](Stages& s) {
                    const Found begun = first(s[0], [](const Program&, const Instruction& i) {
                      return i.code == Code::begin_sum && !i.contributing.empty();
                    });
                    erase(begun);
                  },
                  "prove.contributing",
                  {"has another layout than the tensor there"}});
  bugs.push_back({"the loss counts on every rank that has it alike (Megatron-LM 673, 906)",
                  mix("", {tp(2)}),
                  [](Stages& s) {
                    const Found add = first(s[0], [](const Program& p, const Instruction& i) {
                      return i.code == Code::add && i.outputs[0] == p.loss;
                    });
                    for (auto& list : add->contributing) list.clear();
                    const Found totals = first(s[0], coded(Code::totals));
                    if (!totals->contributing.empty()) totals->contributing[0].clear();
                  },
                  "prove.totals",
                  {"the loss is R on tp, and counted on each of its ranks"}});
  bugs.push_back({"Muon gathers other ranks than those that have shards (Megatron-LM 7395)",
                  with_muon(mix("", {zero(4, 2, 2)})),
                  [](Stages& s) {
                    const Found begun = first(s[0], [](const Program& p, const Instruction& i) {
                      return i.code == Code::start && i.move.kind == all_gather &&
                             between_lasting(p, i) &&
                             p.slots[static_cast<std::size_t>(i.outputs[0])].name.find(
                                 "direction") != std::string::npos;
                    });
                    for (int& a : begun->move.atoms) a = a == 0 ? 1 : 0;
                  },
                  "prove.group",
                  {}});
  bugs.push_back({"keys do not go on round the ring (Megatron-LM 1464)",
                  mix("", {sp(2, "ring")}),
                  [](Stages& s) {
                    const Found ring = first(s[0], [](const Program&, const Instruction& i) {
                      return i.ring != nullptr && i.piece == Piece::forward;
                    });
                    auto own = std::make_shared<std::vector<Rotating>>(*ring->ring);
                    own->pop_back();
                    ring->ring = own;
                  },
                  "prove.ring",
                  {"does not go round"}});
  bugs.push_back(
      {"experts' gradients are summed over the ranks that hold other experts "
       "(pytorch 160285)",
       experts(mix("", {dp(2), ep(2)})),
       [](Stages& s) {
         const Found begun = first(s[0], [](const Program& p, const Instruction& i) {
           return i.code == Code::start && i.move.kind == all_reduce && between_lasting(p, i);
         });
         Instruction sum = *begun, wait = *wait_of(s[0], begun);
         for (std::size_t b = 0; b < s[0].buckets.size(); ++b) {
           const Bucket& bucket = s[0].buckets[b];
           if (!bucket.reduce_atoms.empty()) continue;
           sum.inputs = sum.outputs = wait.outputs = {bucket.flat.gradients};
           sum.bucket = wait.bucket = static_cast<int>(b);
         }
         sum.pending = wait.pending = s[0].pendings++;
         List& code = *begun.code;
         Instruction settle;
         settle.code = Code::settle;
         settle.outputs = sum.inputs;
         code.push_back(settle);
         code.push_back(sum);
         code.push_back(wait);
       },
       "prove.place",
       {"S(experts)"}});
  bugs.push_back({"gradients are not begun anew (TrainCheck: zero_grad is missing)",
                  mix("", {dp(2)}, 2),
                  [](Stages& s) { erase(first(s[0], coded(Code::begin_sum))); },
                  "prove.begin",
                  {"the step before"}});
  bugs.push_back({"the optimizer has none of a bucket's parameters (TrainCheck)",
                  mix("", {dp(2)}, 2),
                  [](Stages& s) { erase(first(s[0], update(Update::apply))); },
                  "prove.update",
                  {"is not updated"}});
  bugs.push_back(
      {"weight gradients of a split backward come after their reduction (DDP under "
       "zero-bubble schedules)",
       mix("", {pp(2, "zb-h1", {1, 1}), dp(2, 1 << 16, false)}, 1),
       [](Stages& s) {
         auto& runs = s[0].timeline;
         const auto segment = [&](const SegmentRun& run) -> const Segment& {
           return s[0].segments[static_cast<std::size_t>(run.segment)];
         };
         const auto reduce = std::find_if(runs.begin(), runs.end(), [&](const SegmentRun& run) {
           return segment(run).name == "reduce";
         });
         REQUIRE(reduce != runs.end());
         auto last = reduce;
         while (segment(*last).kind != SegmentKind::wgrad) --last;
         std::rotate(last, last + 1, reduce + 1);
       },
       "prove.contributing",
       {"has another layout than the tensor there"}});
  bugs.push_back({"parameters are not gathered after the update",
                  mix("", {zero(2, 1)}, 2),
                  [](Stages& s) {
                    const Found begun = first(s[0], start(all_gather, true));
                    erase(wait_of(s[0], begun));
                    erase(begun);
                  },
                  "prove.gather",
                  {"a gather is missing"}});
  return bugs;
}

void must_be_refused(const std::vector<Bug>& bugs) {
  for (const Bug& bug : bugs) {
    INFO(bug.name);
    Stages stages = experiment(bug.mix.setup).plan->programs;
    const std::string before = prove(stages).text();
    CHECK_THAT(before, Catch::StartsWith("proved"));
    bug.put(stages);
    const Proof proof = prove(stages);
    CHECK_FALSE(proof.proved());
    if (proof.proved()) continue;
    const std::string text = proof.text();
    INFO(text);
    CHECK(proof.refusals.front().code == bug.code);
    for (const std::string& said : bug.says) CHECK_THAT(text, Contains(said));
  }
}

}  // namespace

TEST_CASE("TrainVerify's bugs are refused, each by its name") {
  must_be_refused(of_trainverify());
}

TEST_CASE("Bugs of Megatron-LM, DeepSpeed, PyTorch and others are refused, each by its name") {
  must_be_refused(of_the_field());
}

}  // namespace catalogue
