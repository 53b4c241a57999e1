// Every change of one thing in a plan's finished programs.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "prove/mutants.h"

namespace mw::test {
namespace {

// Where an instruction stands.
struct Site {
  int stage = 0, segment = 0, index = 0;
};

std::vector<Instruction>& code_of(Stages& stages, const Site& at) {
  return stages[at.stage].segments[at.segment].code;
}
Instruction& at(Stages& stages, const Site& site) {
  return code_of(stages, site)[site.index];
}

// Whether the timeline has the segment: what never runs is not mutated.
bool runs(const Program& program, int segment) {
  return std::any_of(program.timeline.begin(), program.timeline.end(),
                     [&](const SegmentRun& run) { return run.segment == segment; });
}

bool has(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

class Maker {
 public:
  explicit Maker(const Stages& stages) : stages_(stages) {}

  std::vector<Mutation> all() {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Program& program = stages_[s];
      for (std::size_t g = 0; g < program.segments.size(); ++g) {
        if (!runs(program, static_cast<int>(g))) continue;
        const auto& code = program.segments[g].code;
        for (std::size_t n = 0; n < code.size(); ++n) {
          site_ = {static_cast<int>(s), static_cast<int>(g), static_cast<int>(n)};
          instruction(program, code[n]);
        }
      }
      timeline(static_cast<int>(s));
      for (std::size_t k = 0; k < program.slots.size(); ++k)
        slot(static_cast<int>(s), static_cast<int>(k));
    }
    return std::move(made_);
  }

 private:
  using Change = std::function<void(Instruction&)>;

  void add(const std::string& kind, const std::string& how, std::function<void(Stages&)> apply) {
    const Program& program = stages_[site_.stage];
    const Segment& segment = program.segments[site_.segment];
    const Instruction& i = segment.code[site_.index];
    made_.push_back({kind,
                     fmt::format("stage {}, {}, instruction {} ({} {}): {}", site_.stage,
                                 segment.name, site_.index, name_of(i.code), i.label, how),
                     std::move(apply)});
  }
  void change(const std::string& kind, const std::string& how, Change change) {
    add(kind, how,
        [site = site_, change = std::move(change)](Stages& stages) { change(at(stages, site)); });
  }

  void instruction(const Program& program, const Instruction& i) {
    order(program);
    releases(program, i);
    kinds(program, i);
    if (i.code == Code::start || i.code == Code::move || i.code == Code::copy) moves(program, i);
    numbers(program, i);
    sums(program, i);
    slots(program, i);
    if (i.ring) ring(i);
    if (i.slices == 1) return;
    change("slice", "of the next slice",
           [](Instruction& changed) { changed.slice = (changed.slice + 1) % changed.slices; });
    change("slice", "of one slice more", [](Instruction& changed) { ++changed.slices; });
  }

  // Dropped, doubled, swapped with the next. What is released stays right where that can be, so
  // that a leak or an early release is not what gives the mutant away.
  void order(const Program& program) {
    const auto& code = program.segments[site_.segment].code;
    const bool last = site_.index + 1 == static_cast<int>(code.size());
    add("dropped", "dropped", [site = site_](Stages& stages) {
      auto& list = code_of(stages, site);
      const Slots release = list[site.index].release;
      list.erase(list.begin() + site.index);
      if (site.index == 0) return;
      for (const int slot : release) list[site.index - 1].release.push_back(slot);
    });
    add("doubled", "doubled", [site = site_](Stages& stages) {
      auto& list = code_of(stages, site);
      const Instruction copy = list[site.index];
      list[site.index].release.clear();
      list.insert(list.begin() + site.index + 1, copy);
    });
    if (last) return;
    add("swapped", "swapped with the next", [site = site_](Stages& stages) {
      auto& list = code_of(stages, site);
      std::swap(list[site.index], list[site.index + 1]);
      for (const int slot : list[site.index].release) list[site.index + 1].release.push_back(slot);
      list[site.index].release.clear();
    });
  }

  void releases(const Program& program, const Instruction& i) {
    const auto& code = program.segments[site_.segment].code;
    for (std::size_t k = 0; k < i.release.size(); ++k) {
      const int slot = i.release[k];
      const std::string name = program.slots[slot].name;
      change("release", "does not release " + name, [k](Instruction& changed) {
        changed.release.erase(changed.release.begin() + static_cast<std::ptrdiff_t>(k));
      });
      const auto moved = [&](const std::string& how, int to) {
        add("release", fmt::format("{} is released {}", name, how),
            [site = site_, k, slot, to](Stages& stages) {
              auto& list = code_of(stages, site);
              Slots& own = list[site.index].release;
              own.erase(own.begin() + static_cast<std::ptrdiff_t>(k));
              list[to].release.push_back(slot);
            });
      };
      if (site_.index > 0) moved("one instruction before", site_.index - 1);
      if (site_.index + 1 < static_cast<int>(code.size()))
        moved("one instruction after", site_.index + 1);
    }
    // What it reads is released while it is still needed.
    for (const int slot : i.inputs) {
      if (slot < 0 || has(i.release, slot) || program.slots[slot].persistent) continue;
      change("release", fmt::format("releases {} too", program.slots[slot].name),
             [slot](Instruction& changed) { changed.release.push_back(slot); });
    }
  }

  void kinds(const Program& program, const Instruction& i) {
    if (i.code != Code::compute) return;
    if (i.update != Update::none) {
      for (const Update other : {Update::direction, Update::whole, Update::apply}) {
        if (other != i.update)
          change("kind", "another step of the update",
                 [other](Instruction& changed) { changed.update = other; });
      }
      return;
    }
    for (const Piece other : {Piece::forward, Piece::backward, Piece::dgrad, Piece::wgrad}) {
      if (other != i.piece)
        change("piece", fmt::format("{} instead of {}", name_of(other), name_of(i.piece)),
               [other](Instruction& changed) { changed.piece = other; });
    }
    const auto& ops = program.graph->ops();
    for (std::size_t o = 0; o < ops.size(); ++o) {
      if (static_cast<int>(o) == i.op || ops[o].kind() != ops[i.op].kind()) continue;
      change("op", "as the op " + ops[o].name,
             [o](Instruction& changed) { changed.op = static_cast<int>(o); });
      break;
    }
  }

  void moves(const Program& program, const Instruction& i) {
    using Kind = Move::Kind;
    if (i.code != Code::copy) {
      for (const Kind other : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather,
                               Kind::all_to_all, Kind::slice, Kind::keep, Kind::send, Kind::recv}) {
        if (other == i.move.kind || communicates(other) != (i.code == Code::start)) continue;
        change("move", fmt::format("{} instead of {}", name_of(other), name_of(i.move.kind)),
               [other](Instruction& changed) { changed.move.kind = other; });
      }
      if (i.code == Code::start)
        change("move", "a copy instead", [](Instruction& changed) { changed.code = Code::copy; });
      if (i.code == Code::move)
        change("move", "an alias instead",
               [](Instruction& changed) { changed.code = Code::alias; });
    }
    atoms(program, i);
    dims(program, i);
    if (i.move.reduction == Reduction::sum) {
      change("move", "the maximum instead of the sum",
             [](Instruction& changed) { changed.move.reduction = Reduction::max; });
    } else {
      change("move", "the sum instead of the maximum",
             [](Instruction& changed) { changed.move.reduction = Reduction::sum; });
    }
    if (i.move.exchanges_rows())
      change(
          "rows", "says how many rows where it did not, and not where it did",
          [](Instruction& changed) { changed.move.brings_counts = !changed.move.brings_counts; });
    for (std::size_t a = 0; a < i.move.lands.size(); ++a) {
      if (!i.move.lands[a].is_shard()) continue;
      change("rows", "lands whole", [a](Instruction& changed) { changed.move.lands[a] = {}; });
    }
    if (i.move.peer >= 0) {
      for (int peer = 0; peer < program.stages; ++peer) {
        if (peer != i.move.peer)
          change("peer", fmt::format("stage {} instead of {}", peer, i.move.peer),
                 [peer](Instruction& changed) { changed.move.peer = peer; });
      }
      for (const int by : {1, -1}) {
        if (i.move.tag + by >= 0)
          change("tag", fmt::format("tag {} instead of {}", i.move.tag + by, i.move.tag),
                 [by](Instruction& changed) { changed.move.tag += by; });
      }
    }
  }

  void atoms(const Program& program, const Instruction& i) {
    const int count = static_cast<int>(program.mesh.atoms().size());
    const auto set = [&](const std::string& how, std::vector<int> atoms) {
      change("atoms", how, [atoms](Instruction& changed) { changed.move.atoms = atoms; });
    };
    for (std::size_t k = 0; k < i.move.atoms.size(); ++k) {
      std::vector<int> fewer = i.move.atoms;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(k));
      set("not over " + program.mesh.name_of({i.move.atoms[k]}), fewer);
      for (int other = 0; other < count; ++other) {
        if (has(i.move.atoms, other)) continue;
        std::vector<int> changed = i.move.atoms;
        changed[k] = other;
        std::sort(changed.begin(), changed.end());
        set(fmt::format("over {} instead of {}", program.mesh.name_of({other}),
                        program.mesh.name_of({i.move.atoms[k]})),
            changed);
      }
    }
    for (int other = 0; other < count && i.code != Code::copy; ++other) {
      if (has(i.move.atoms, other)) continue;
      std::vector<int> more = i.move.atoms;
      more.push_back(other);
      std::sort(more.begin(), more.end());
      set(fmt::format("over {} too", program.mesh.name_of({other})), more);
    }
    for (std::size_t k = 0; k < i.move.stages.size(); ++k) {
      change("atoms", fmt::format("without stage {}", i.move.stages[k]), [k](Instruction& changed) {
        changed.move.stages.erase(changed.move.stages.begin() + static_cast<std::ptrdiff_t>(k));
      });
    }
  }

  void dims(const Program& program, const Instruction& i) {
    const int slot = !i.outputs.empty() ? i.outputs[0] : !i.inputs.empty() ? i.inputs[0] : -1;
    if (slot < 0 || i.code == Code::copy) return;
    for (const Dim dim : program.slots[slot].dims) {
      if (i.move.to.valid() && dim != i.move.to)
        change("dim", fmt::format("to shards of {} instead of {}", dim.name(), i.move.to.name()),
               [dim](Instruction& changed) { changed.move.to = dim; });
      if (i.move.from.valid() && dim != i.move.from)
        change("dim",
               fmt::format("from shards of {} instead of {}", dim.name(), i.move.from.name()),
               [dim](Instruction& changed) { changed.move.from = dim; });
    }
  }

  void numbers(const Program& program, const Instruction& i) {
    if (i.pending >= 0) {
      for (const int other : {(i.pending + 1) % std::max(1, program.pendings),
                              (i.pending + program.pendings - 1) % std::max(1, program.pendings)}) {
        if (other != i.pending)
          change("pending", fmt::format("pending {} instead of {}", other, i.pending),
                 [other](Instruction& changed) { changed.pending = other; });
      }
    }
    if (i.code == Code::wait)
      change("again", i.again ? "not said to come again" : "may have come before",
             [](Instruction& changed) { changed.again = !changed.again; });
    if (i.bucket >= 0) {
      const int buckets = static_cast<int>(program.buckets.size());
      for (const int other : {(i.bucket + 1) % buckets, -1}) {
        if (other != i.bucket)
          change("bucket", fmt::format("bucket {} instead of {}", other, i.bucket),
                 [other](Instruction& changed) { changed.bucket = other; });
      }
    }
    if (i.parameter >= 0) {
      const int other = (i.parameter + 1) % static_cast<int>(program.parameters.size());
      if (other != i.parameter)
        change("parameter", "the next parameter",
               [other](Instruction& changed) { changed.parameter = other; });
    }
    change("in place", i.in_place ? "not in place" : "in place",
           [](Instruction& changed) { changed.in_place = !changed.in_place; });
    change("label", "another label and phase", [](Instruction& changed) {
      changed.label += " changed";
      changed.phase = "changed";
    });
  }

  void sums(const Program& program, const Instruction& i) {
    for (std::size_t k = 0; k < i.accumulate.size() && k < i.grad_inputs.size(); ++k) {
      if (i.grad_inputs[k] < 0) continue;
      change("accumulate", fmt::format("{} gradient {}", i.accumulate[k] ? "writes" : "adds to", k),
             [k](Instruction& changed) { changed.accumulate[k] = !changed.accumulate[k]; });
    }
    if (i.code == Code::compute || i.code == Code::add || i.code == Code::begin_sum ||
        i.code == Code::totals)
      contributing(program, i);
  }

  // The ranks that contribute to each sum.
  void contributing(const Program& program, const Instruction& i) {
    if (i.contributing.empty() && (i.code == Code::add || i.code == Code::begin_sum)) {
      for (std::size_t a = 0; a < program.mesh.atoms().size(); ++a)
        change("contributing", "only the first on " + program.mesh.atoms()[a].name,
               [a](Instruction& changed) { changed.contributing = {{static_cast<int>(a)}}; });
    }
    for (std::size_t k = 0; k < i.contributing.size(); ++k) {
      const bool persistent =
          i.code != Code::compute || (k < i.grad_inputs.size() && i.grad_inputs[k] >= 0 &&
                                      program.slots[i.grad_inputs[k]].persistent);
      if (!persistent) continue;
      for (std::size_t a = 0; a < program.mesh.atoms().size(); ++a) {
        const int atom = static_cast<int>(a);
        const bool there = has(i.contributing[k], atom);
        change(
            "contributing",
            fmt::format("{} on {}", there ? "all" : "only the first", program.mesh.atoms()[a].name),
            [k, atom, there](Instruction& changed) {
              std::vector<int>& list = changed.contributing[k];
              if (there) {
                list.erase(std::find(list.begin(), list.end(), atom));
              } else {
                list.push_back(atom);
                std::sort(list.begin(), list.end());
              }
            });
      }
    }
  }

  // Another slot of the kind that could stand there: the nearest before or after in the list.
  std::optional<int> like(const Program& program, int slot) const {
    const Slot& own = program.slots[slot];
    const int count = static_cast<int>(program.slots.size());
    for (int by = 1; by < count; ++by) {
      for (const int other : {slot - by, slot + by}) {
        if (other < 0 || other >= count) continue;
        const Slot& s = program.slots[other];
        if (s.dims == own.dims && s.layout == own.layout && s.dtype == own.dtype &&
            s.persistent == own.persistent && s.extra == own.extra && s.memory == own.memory)
          return other;
      }
    }
    return std::nullopt;
  }

  void slots(const Program& program, const Instruction& i) {
    const auto each = [&](const std::string& kind, Slots Instruction::*list) {
      for (std::size_t k = 0; k < (i.*list).size(); ++k) {
        const int slot = (i.*list)[k];
        if (slot < 0) continue;
        if (const auto other = like(program, slot))
          change(
              kind,
              fmt::format("{} instead of {}", program.slots[*other].name, program.slots[slot].name),
              [list, k, to = *other](Instruction& changed) { (changed.*list)[k] = to; });
        if (i.code == Code::begin_sum || i.code == Code::totals)
          change(kind, "without " + program.slots[slot].name, [list, k](Instruction& changed) {
            (changed.*list).erase((changed.*list).begin() + static_cast<std::ptrdiff_t>(k));
          });
      }
      if ((i.*list).size() > 1 && (i.*list)[0] != (i.*list)[1])
        change(kind, "the first two swapped",
               [list](Instruction& changed) { std::swap((changed.*list)[0], (changed.*list)[1]); });
    };
    each("reads", &Instruction::inputs);
    each("writes", &Instruction::outputs);
    each("saved", &Instruction::saved);
    each("reads", &Instruction::grad_outputs);
    each("writes", &Instruction::grad_inputs);
  }

  void ring(const Instruction& i) {
    const auto rotating = [&](const std::string& how,
                              const std::function<void(std::vector<Rotating>&)>& apply) {
      change("ring", how, [apply](Instruction& changed) {
        auto own = std::make_shared<std::vector<Rotating>>(*changed.ring);
        apply(*own);
        changed.ring = own;
      });
    };
    for (std::size_t r = 0; r < i.ring->size(); ++r) {
      const Rotating& one = (*i.ring)[r];
      rotating("another operand goes round", [r](auto& all) { ++all[r].input; });
      rotating("an operand does not go round",
               [r](auto& all) { all.erase(all.begin() + static_cast<std::ptrdiff_t>(r)); });
      if (i.ring->size() > 1)
        rotating("the shards of another",
                 [r](auto& all) { std::swap(all[r].shards, all[(r + 1) % all.size()].shards); });
      if (!one.sums.empty()) {
        rotating("shares and sums exchanged",
                 [r](auto& all) { std::swap(all[r].shares, all[r].sums); });
        rotating("without shares", [r](auto& all) {
          all[r].shares.clear();
          all[r].sums.clear();
        });
      }
    }
    change("ring", "not in ring steps", [](Instruction& changed) { changed.ring = nullptr; });
  }

  // What a slot says of itself.
  void slot(int stage, int index) {
    const Slot& own = stages_[stage].slots[index];
    const auto set = [&](const std::string& how, std::function<void(Slot&)> apply) {
      made_.push_back({"slot", fmt::format("stage {}, slot {}: {}", stage, own.name, how),
                       [stage, index, apply = std::move(apply)](Stages& stages) {
                         apply(stages[stage].slots[index]);
                       }});
    };
    for (std::size_t a = 0; a < own.layout.size(); ++a) {
      const std::string axis = stages_[stage].mesh.atoms()[a].name;
      if (own.layout[a].is_shard()) set("whole on " + axis, [a](Slot& s) { s.layout[a] = {}; });
      for (const Dim dim : own.dims) {
        if (own.layout[a] == Placement::shard(dim)) continue;
        set(fmt::format("cut by {} over {}", dim.name(), axis),
            [a, dim](Slot& s) { s.layout[a] = Placement::shard(dim); });
      }
    }
    if (own.alias_of >= 0) set("no alias", [](Slot& s) { s.alias_of = -1; });
    if (own.extra > 0) set("longer at its end", [](Slot& s) { ++s.extra; });
    if (own.dtype != Dtype::int64)
      set("in another precision",
          [](Slot& s) { s.dtype = s.dtype == Dtype::fp32 ? Dtype::fp64 : Dtype::fp32; });
    set("in another memory",
        [](Slot& s) { s.memory = s.memory == Memory::host ? Memory::device : Memory::host; });
    if (own.persistent)
      set(own.transient ? "not transient" : "transient",
          [](Slot& s) { s.transient = !s.transient; });
    if (own.slices > 1) {
      set("of the next slice", [](Slot& s) { s.slice = (s.slice + 1) % s.slices; });
      set("of all slices", [](Slot& s) { s.slices = 1; });
    }
    if (!own.ring.empty()) set("of the next ring step", [](Slot& s) { ++s.ring_step; });
  }

  void timeline(int stage) {
    const Program& program = stages_[stage];
    const auto run = [&](std::size_t r, const std::string& how,
                         std::function<void(std::vector<SegmentRun>&)> apply) {
      const SegmentRun& part = program.timeline[r];
      made_.push_back(
          {"timeline",
           fmt::format("stage {}, run {} ({}, microbatch {}): {}", stage, r,
                       program.segments[part.segment].name, part.microbatch, how),
           [stage, apply = std::move(apply)](Stages& stages) { apply(stages[stage].timeline); }});
    };
    for (std::size_t r = 0; r < program.timeline.size(); ++r) {
      const auto place = static_cast<std::ptrdiff_t>(r);
      run(r, "dropped", [place](auto& runs) { runs.erase(runs.begin() + place); });
      run(r, "doubled",
          [place](auto& runs) { runs.insert(runs.begin() + place, SegmentRun(runs[place])); });
      if (r + 1 < program.timeline.size())
        run(r, "swapped with the next",
            [place](auto& runs) { std::swap(runs[place], runs[place + 1]); });
      const int microbatch = program.timeline[r].microbatch;
      if (microbatch >= 0 && program.microbatches > 1)
        run(r, "for another microbatch", [place, count = program.microbatches](auto& runs) {
          runs[place].microbatch = (runs[place].microbatch + 1) % count;
        });
      const Segment& segment = program.segments[program.timeline[r].segment];
      if (segment.copy_of >= 0)
        run(r, "as if it were not the last",
            [place, to = segment.copy_of](auto& runs) { runs[place].segment = to; });
    }
  }

  const Stages& stages_;
  Site site_;
  std::vector<Mutation> made_;
};

}  // namespace

std::vector<Mutation> mutations_of(const Stages& stages) {
  return Maker(stages).all();
}

}  // namespace mw::test
