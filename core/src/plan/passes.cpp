// Passes of the core that strategies ask for: buckets of a size, reductions beside backward,
// weight gradients beside collectives, exchanges spread apart.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "meshwright/passes.h"
#include "meshwright/program.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

std::int64_t gradient_bytes(const Program& program, int parameter) {
  return program.local_bytes(program.slots[program.parameters[parameter].gradient_slot],
                             program.first());
}

// Of each parameter the virtual stage whose backward is the last to add to its gradient, and where
// in it; -1 if none does. Of a step's timeline this must not depend:
// all steps keep the same buckets.
std::vector<std::pair<int, int>> makers(const Program& program) {
  std::map<int, int> parameter_of;  // gradient slot -> parameter
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    parameter_of[program.parameters[p].gradient_slot] = static_cast<int>(p);
  }
  std::vector<std::pair<int, int>> made(program.parameters.size(), {-1, -1});
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::backward || segment.copy_of >= 0) continue;
    for (std::size_t i = 0; i < segment.code.size(); ++i) {
      for_each_slot(segment.code[i], [&](int slot) {
        const auto found = parameter_of.find(slot);
        if (found == parameter_of.end()) return;
        std::pair<int, int>& by = made[found->second];
        if (by.first < 0 || segment.vstage <= by.first) {
          by = {segment.vstage, static_cast<int>(i)};
        }
      });
    }
  }
  return made;
}

void fill_buckets(Program& program, std::int64_t limit) {
  const auto made = makers(program);
  const auto before = [&](int a, int b) {  // backward begins with the last virtual stage
    return std::pair(-made[a].first, made[a].second) < std::pair(-made[b].first, made[b].second);
  };
  std::vector<Bucket> split;
  for (Bucket& bucket : program.buckets) {
    // Stages that share a bucket must split it alike, whenever their own gradients are ready.
    const bool shared = !bucket.stages.empty();
    if (!shared) {
      std::stable_sort(bucket.parameters.begin(), bucket.parameters.end(), before);
    }
    std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
    int maker = -1;
    for (int parameter : bucket.parameters) {
      const std::int64_t more = gradient_bytes(program, parameter);
      const int makes = made[parameter].first;
      if (bytes > limit - more || (!shared && makes != maker)) {
        Bucket next = bucket;
        next.parameters.clear();
        split.push_back(std::move(next));
        bytes = 0;
      }
      split.back().parameters.push_back(parameter);
      bytes += more;
      maker = makes;
    }
  }
  program.buckets = std::move(split);
  name_buckets(program);
}

void overlap(Program& program) {
  // Stages that share buckets are ready at different times;
  // they reduce them at the end, in one order.
  for (Bucket& bucket : program.buckets) {
    bucket.overlap = !bucket.reduce.empty() && bucket.stages.empty();
  }
}

bool is_piece(const Instruction& i, Piece piece) {
  return i.code == Code::compute && i.piece == piece;
}

// Whether a later dgrad of [first, last) adds into what an earlier wgrad still has to read.
bool overwritten(const Program& program, const std::vector<Instruction>& code, std::size_t first,
                 std::size_t last) {
  std::set<int> read;
  for (std::size_t i = first; i < last; ++i) {
    if (is_piece(code[i], Piece::wgrad)) {
      for (const auto* list : {&code[i].grad_outputs, &code[i].inputs}) {
        for (int slot : *list) {
          if (slot >= 0) read.insert(program.root(slot));
        }
      }
    } else {
      for (int slot : code[i].grad_inputs) {
        if (slot >= 0 && read.count(program.root(slot)) > 0) return true;
      }
    }
  }
  return false;
}

void delay_wgrads(const Program& program, Segment& segment) {
  std::vector<Instruction>& code = segment.code;
  for (std::size_t n = 0; n < code.size(); ++n) {
    // A bucket's reduction reads what the wgrads before it write: they stay before it.
    if (code[n].bucket >= 0) continue;
    const bool casts = code[n].code == Code::copy && !code[n].move.atoms.empty();
    if (code[n].code != Code::start && !casts) continue;
    std::size_t first = n;
    while (first > 0 &&
           (is_piece(code[first - 1], Piece::dgrad) || is_piece(code[first - 1], Piece::wgrad))) {
      --first;
    }
    if (overwritten(program, code, first, n)) continue;
    std::stable_partition(code.begin() + static_cast<std::ptrdiff_t>(first),
                          code.begin() + static_cast<std::ptrdiff_t>(n) + 1,
                          [](const Instruction& i) { return !is_piece(i, Piece::wgrad); });
  }
}

bool is_exchange(const Instruction& i) {
  return (i.code == Code::start || i.code == Code::wait) && !i.move.lands.empty();
}

bool touches(const Program& program, const Instruction& i, int slot) {
  bool found = false;
  for_each_slot(i, [&](int other) { found = found || program.root(other) == program.root(slot); });
  return found;
}

void spread_exchanges(const Program& program, std::vector<Instruction>& code) {
  const auto at = [&](std::size_t i) { return code.begin() + static_cast<std::ptrdiff_t>(i); };
  for (std::size_t n = code.size(); n-- > 0;) {
    if (code[n].code != Code::wait || !is_exchange(code[n])) continue;
    std::size_t to = n + 1;
    while (to < code.size() && !touches(program, code[to], code[n].outputs[0])) ++to;
    std::rotate(at(n), at(n + 1), at(to));
  }
  for (std::size_t n = 0; n < code.size(); ++n) {
    if (code[n].code != Code::start || !is_exchange(code[n])) continue;
    std::size_t to = n;
    while (to > 0 && !touches(program, code[to - 1], code[n].inputs[0])) --to;
    std::rotate(at(to), at(n), at(n + 1));
  }
}

}  // namespace

Pass overlap_exchanges() {
  return {"overlap exchanges", [](Program& program) {
            for (Segment& segment : program.segments) spread_exchanges(program, segment.code);
          }};
}

Pass bucket_gradients(std::int64_t bytes) {
  return {"bucket gradients", [bytes](Program& program) { fill_buckets(program, bytes); },
          Pass::buckets};
}

Pass overlap_gradient_reduction() {
  return {"overlap gradient reduction", overlap, Pass::reductions};
}

Pass overlap_wgrad() {
  return {"overlap wgrad", [](Program& program) {
            for (Segment& segment : program.segments) {
              if (segment.kind == SegmentKind::backward) delay_wgrads(program, segment);
            }
          }};
}

}  // namespace mw
