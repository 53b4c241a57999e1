// Reads directives, and carries them out.
#include "script/directives.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

const std::vector<std::string>& kinds() {
  static const std::vector<std::string> names{"order", "stream", "budget", "issue", "reduce"};
  return names;
}

// How each directive is written, for hints.
const char* example(Directive::Kind kind) {
  switch (kind) {
    case Directive::Kind::order:
      return "write { \"order\", { code = \"start\", axis = \"ep\" }, before = { code = \"start\", "
             "phase = \"gradients\" } }";
    case Directive::Kind::stream:
      return "write { \"stream\", { axis = \"ep\" }, \"exchange\" }";
    case Directive::Kind::budget:
      return "write { \"budget\", { move = \"all-gather\" }, 2 }";
    case Directive::Kind::issue:
      return "write { \"issue\", { move = \"all-gather\" }, layers_ahead = 1 }";
    case Directive::Kind::reduce:
      return "write { \"reduce\", { bucket = \"layers.*\" }, after = \"chunk\" }";
  }
  return "";
}

class DirectiveReader {
 public:
  DirectiveReader(const Json& entry, std::string path, Problems& problems)
      : path_(std::move(path)), problems_(problems) {
    if (entry.is_array()) {
      unnamed_ = entry;
    } else if (entry.is_object()) {
      named_ = entry;
      if (entry.contains(unnamed_key)) {
        const Json& list = entry.at(unnamed_key);
        unnamed_ = list.is_array() ? list : Json::array({list});
      }
    }
  }

  std::shared_ptr<const Directive> read() {
    auto directive = std::make_shared<Directive>();
    if (!read_kind(*directive)) return nullptr;
    const std::size_t before = problems_.list().size();
    if (unnamed_.size() < 2) {
      wrong(*directive, "it says of no instruction which one it means");
      return nullptr;
    }
    directive->filter = InstructionFilter(unnamed_[1], path_ + "[2]", problems_);
    switch (directive->kind) {
      case Directive::Kind::order:
        read_order(*directive);
        break;
      case Directive::Kind::stream:
        read_stream(*directive);
        break;
      case Directive::Kind::budget:
        directive->number = whole(*directive, unnamed_.size() > 2 ? unnamed_[2] : Json(), 1);
        break;
      case Directive::Kind::issue:
        directive->number = whole(*directive, taken("layers_ahead"), 0);
        break;
      case Directive::Kind::reduce:
        read_reduce(*directive);
        break;
    }
    if (directive->kind != Directive::Kind::order && directive->kind != Directive::Kind::reduce)
      directive->filter.keep_to_starts();
    refuse_others(*directive);
    return problems_.list().size() == before ? directive : nullptr;
  }

 private:
  void wrong(const Directive& directive, const std::string& what) {
    problems_.add(Stage::options, "option.value", path_, fmt::format("{}: {}", path_, what),
                  example(directive.kind));
  }

  Json taken(const std::string& key) {
    used_.insert(key);
    return named_.is_object() && named_.contains(key) ? named_.at(key) : Json();
  }

  bool read_kind(Directive& directive) {
    const std::string kind =
        !unnamed_.empty() && unnamed_[0].is_string() ? unnamed_[0].get<std::string>() : "";
    const auto found = std::find(kinds().begin(), kinds().end(), kind);
    if (found != kinds().end()) {
      directive.kind = static_cast<Directive::Kind>(found - kinds().begin());
      return true;
    }
    problems_.add(Stage::options, "option.value", path_,
                  kind.empty() ? fmt::format("{}: a directive begins with its name", path_)
                               : fmt::format("{}: there is no directive {}", path_, quote(kind)),
                  nearest_or_all(kind, kinds()));
    return false;
  }

  void read_order(Directive& directive) {
    const Json before = taken("before"), after = taken("after"), within = taken("within");
    if (before.is_null() == after.is_null())
      return wrong(directive, "it says one of `before` and `after`");
    directive.sinks = before.is_null();
    const char* key = directive.sinks ? "after" : "before";
    directive.other =
        InstructionFilter(directive.sinks ? after : before, path_ + "." + key, problems_);
    if (within.is_null()) return;
    if (within != Json("layer"))
      return wrong(directive,
                   fmt::format("within is \"layer\", or left out; got {}", describe(within)));
    directive.layers = true;
  }

  void read_stream(Directive& directive) {
    if (unnamed_.size() < 3 || !unnamed_[2].is_string() || unnamed_[2].get<std::string>().empty())
      return wrong(directive, "a stream has a name");
    directive.stream = unnamed_[2].get<std::string>();
  }

  int whole(const Directive& directive, const Json& given, int least) {
    const auto number = whole_number(given);
    if (number && *number >= least && *number <= 1 << 20) return static_cast<int>(*number);
    wrong(directive,
          fmt::format("{} is a whole number, {} or more; got {}",
                      directive.kind == Directive::Kind::issue ? "layers_ahead" : "the budget",
                      least, describe(given)));
    return least;
  }

  void read_reduce(Directive& directive) {
    static const std::vector<std::string> names{"gradients", "chunk", "step"};
    const Json after = taken("after"), each = taken("each");
    if (each == Json(true) && after.is_null()) {
      directive.after = Directive::After::each;
      return;
    }
    const auto found = after.is_string()
                           ? std::find(names.begin(), names.end(), after.get<std::string>())
                           : names.end();
    if (!each.is_null() || found == names.end())
      return wrong(directive, "after is \"gradients\", \"chunk\" or \"step\"; or each = true");
    directive.after = static_cast<Directive::After>(found - names.begin());
  }

  void refuse_others(const Directive& directive) {
    const std::size_t most =
        directive.kind == Directive::Kind::stream || directive.kind == Directive::Kind::budget ? 3
                                                                                               : 2;
    if (unnamed_.size() > most)
      wrong(directive,
            fmt::format("{} has {} values without a name; it takes {}",
                        kinds()[static_cast<std::size_t>(directive.kind)], unnamed_.size(), most));
    if (!named_.is_object()) return;
    for (const auto& [key, value] : named_.items()) {
      if (key.starts_with("$") || used_.count(key) > 0) continue;
      problems_.add(Stage::options, "option.unknown", path_ + "." + key,
                    fmt::format("{}: {} takes no {}", path_,
                                kinds()[static_cast<std::size_t>(directive.kind)], key),
                    example(directive.kind));
    }
  }

  const std::string path_;
  Problems& problems_;
  Json unnamed_ = Json::array(), named_;
  std::set<std::string> used_;
};

// Why a directive cannot say when a bucket is reduced; "": it can.
std::string why_fixed(const Bucket& bucket) {
  if (bucket.frozen) return "its parameters are frozen, and have no gradients";
  if (bucket.reduce_atoms.empty()) return "its gradients are no sums over ranks";
  if (!bucket.stages.empty())
    return "several stages share it, and reduce it when the last of them is done";
  if (bucket.sharded_state >= ShardedState::gradients)
    return "its gradients are kept in shards, so that each is reduced when it is there";
  if (bucket.counts) return "its parameters are counts, which no optimizer updates";
  return "";
}

// The last run of the timeline that adds to each bucket's gradients; -1: none does.
std::vector<int> last_runs(const Program& program) {
  std::map<int, int> bucket_of;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    for (const int p : program.buckets[b].parameters)
      bucket_of[program.parameters[p].gradient_slot] = static_cast<int>(b);
  }
  std::vector<int> last(program.buckets.size(), -1);
  for (std::size_t r = 0; r < program.timeline.size(); ++r) {
    for (const Span& span : spans(program.segments[program.timeline[r].segment], bucket_of))
      last[span.group] = static_cast<int>(r);
  }
  return last;
}

}  // namespace

Pass::Changes Directive::changes() const {
  if (kind != Kind::reduce) return Pass::Changes::order;
  return after == After::each ? Pass::Changes::numerics : Pass::Changes::placement;
}

std::string Directive::name() const {
  const std::string what = kinds()[static_cast<std::size_t>(kind)];
  return kind == Kind::stream ? what + " " + stream : what;
}

std::shared_ptr<const Directive> read_directive(const Json& entry, const std::string& path,
                                                Problems& problems) {
  return DirectiveReader(entry, path, problems).read();
}

EditOutcome carry_out(const Directive& directive, CodeEdit& code, Matches& matches) {
  const std::vector<int> found = code.find(directive.filter);
  matches.filter += static_cast<int>(found.size());
  switch (directive.kind) {
    case Directive::Kind::stream:
      return code.stream(found, directive.stream);
    case Directive::Kind::budget:
      return code.budget(found, directive.number);
    case Directive::Kind::issue:
      return code.issue(found, directive.number);
    case Directive::Kind::reduce:
      return {};
    case Directive::Kind::order:
      break;
  }
  const std::vector<int> others = code.find(directive.other);
  matches.other += static_cast<int>(others.size());
  const auto order = [&](const std::vector<int>& mine, const std::vector<int>& theirs) {
    return directive.sinks ? code.order(theirs, mine, Moves::then)
                           : code.order(mine, theirs, Moves::first);
  };
  if (!directive.layers) return order(found, others);
  std::map<int, std::pair<std::vector<int>, std::vector<int>>> layers;
  const auto layer = [&](int number) { return code.facts(number).value("layer", -2); };
  for (const int number : found) layers[layer(number)].first.push_back(number);
  for (const int number : others) layers[layer(number)].second.push_back(number);
  EditOutcome done;
  for (const auto& [which, both] : layers) {
    if (which > -2) done += order(both.first, both.second);
  }
  return done;
}

namespace {

// Calls `change` for each bucket that the directive names and may change. `change` returns why it
// changes nothing, or "".
template <class Change>
EditOutcome each_bucket(const Directive& directive, Program& program, const Change& change) {
  EditOutcome done;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    Bucket& bucket = program.buckets[b];
    if (!directive.filter.takes(facts_of(program, bucket))) continue;
    ++done.asked;
    std::string why = why_fixed(bucket);
    if (why.empty()) why = change(static_cast<int>(b), bucket);
    if (why.empty()) {
      ++done.moved;
    } else if (done.why.empty()) {
      done.why = fmt::format("of {}, {}", bucket.name, why);
    }
  }
  return done;
}

}  // namespace

EditOutcome reduce_each(const Directive& directive, Program& program) {
  split_buckets(program, /*by_layer=*/false);
  return each_bucket(directive, program, [](int, Bucket& bucket) {
    const bool was = std::exchange(bucket.reduce_per_microbatch, true);
    return was ? "it is reduced in every microbatch already" : "";
  });
}

EditOutcome reduce_after(const Directive& directive, Program& program) {
  const std::vector<int> last = last_runs(program);
  std::map<int, Insertions> begun;  // by run of the timeline
  std::string shards;
  const auto change = [&](int b, Bucket& bucket) -> std::string {
    if (bucket.reduce_per_microbatch) return "it is reduced in every microbatch";
    const bool early = directive.after == Directive::After::gradients;
    if (!bucket.shard_atoms.empty() && bucket.flat.shard_reduction >= 0)
      shards = fmt::format(
          "the sums over {} alone are begun there; those of their shards over other ranks follow "
          "at the end of the step",
          program.mesh.name_of(bucket.shard_atoms));
    if (last[b] < 0) return "no run of this stage adds to it";
    const bool was = std::exchange(bucket.overlap, early);
    if (directive.after != Directive::After::chunk)
      return was != early ? ""
             : early      ? "it is reduced as soon as its gradients are there already"
                          : "it is reduced at the end of the step already";
    const int segment = program.timeline[last[b]].segment;
    const int end = static_cast<int>(program.segments[segment].code.size());
    begun[last[b]].before(end, begin_reduction(program, b));
    return "";
  };
  EditOutcome done = each_bucket(directive, program, change);
  done.later = shards;
  for (auto& [run, inserts] : begun)
    program.timeline[run].segment =
        add_copy(program, program.timeline[run].segment, "last", inserts);
  return done;
}

}  // namespace mw
