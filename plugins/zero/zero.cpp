// ZeRO (Rajbhandari et al. 2020): data parallelism in which each rank keeps its part of the
// optimizer state (stage 1), of the gradients too (2), of the parameters too (3). Hybrid sharding
// is the same with parts inside groups of ranks and copies across them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/program_facts.h"
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/strategy.h"

namespace {

struct ShardedStorage {
  std::vector<std::string> axes;
  // ZeRO's stages: optimizer state (1), gradients too (2), parameters too (3).
  mw::ShardedState sharded_state = mw::ShardedState::optimizer;
  // Below stage 3: updated parameters are gathered beside the next step's forward.
  bool gather_overlaps_forward = true;
  int prefetch = 1;  // layers whose parameters are gathered ahead of the one that computes
  // Stage 3: parameters are gathered for each forward and backward; false: once a step.
  bool reshard_after_forward = true;
  // Gradients in shards are reduced when the stage turns to another chunk of the model, not in
  // every microbatch.
  bool by_chunk = false;
  // The state of every bucket, sharded or not, that lies in host memory (Ren et al. 2021,
  // "ZeRO-Offload").
  mw::Offload offload = mw::Offload::nothing;
  bool update_on_device = false;  // offloaded state is updated on the device, not in host memory
  bool update_overlaps = true;    // updates in host memory go on beside computation
  mw::HookChoice gather;          // stage 3: the hook that gathers parameters
};

// The sharded buckets, by the slot that `slot` names of each of their parameters.
std::map<int, int> buckets_of(const mw::Program& program, int mw::ProgramParameter::*slot) {
  std::map<int, int> buckets;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (program.buckets[b].shard_atoms.empty()) continue;
    for (const int p : program.buckets[b].parameters)
      buckets[program.parameters[p].*slot] = static_cast<int>(b);
  }
  buckets.erase(-1);  // frozen parameters have no gradients
  return buckets;
}

class ShardStorage {
 public:
  ShardStorage(mw::Program& program, const ShardedStorage& storage)
      : program_(program), storage_(storage) {}

  void run() {
    const bool gradients = storage_.sharded_state >= mw::ShardedState::gradients;
    if (gradients) mw::split_buckets(program_, /*by_layer=*/true);
    if (!choose()) return;
    mw::make_flat_slots(program_);
    if (gradients && !storage_.by_chunk) {
      const std::map<int, int> buckets = buckets_of(program_, &mw::ProgramParameter::gradient_slot);
      for (mw::Segment& segment : program_.segments) reduce_in(segment, buckets);
    }
    if (storage_.sharded_state != mw::ShardedState::parameters) return;
    const std::map<int, int> buckets = buckets_of(program_, &mw::ProgramParameter::slot);
    for (mw::Segment& segment : program_.segments) gather_in(segment, buckets);
    if (!storage_.reshard_after_forward) gather_once();
  }

 private:
  // Sets how each bucket is sharded. Whether any is.
  bool choose() {
    bool any = false;
    for (mw::Bucket& bucket : program_.buckets) {
      if (bucket.counts) continue;  // counters stay whole: all ranks see all counts
      if (bucket.frozen && storage_.sharded_state != mw::ShardedState::parameters) continue;
      for (const std::string& axis : storage_.axes) {
        for (int atom : program_.mesh.axis(axis).atoms) {
          const auto& reduce = bucket.reduce_atoms;
          const bool reduces = std::find(reduce.begin(), reduce.end(), atom) != reduce.end();
          if (reduces && program_.mesh.atoms()[atom].ways > 1) bucket.shard_atoms.push_back(atom);
        }
      }
      std::sort(bucket.shard_atoms.begin(), bucket.shard_atoms.end());
      bucket.offload = bucket.shard_atoms.empty()
                           ? std::min(storage_.offload, mw::Offload::optimizer)
                           : storage_.offload;
      bucket.update_on_device = storage_.update_on_device;
      bucket.update_overlaps = update_goes_on();
      if (bucket.shard_atoms.empty()) continue;
      any = true;
      bucket.sharded_state = storage_.sharded_state;
      if (storage_.gather.choose) gather_by_hook(bucket);
      bucket.gather_overlaps_forward =
          storage_.gather_overlaps_forward && bucket.gathered_once_updated();
      if (bucket.sharded_state < mw::ShardedState::gradients) continue;
      bucket.overlap = false;  // reduced in every microbatch or by chunk, not after the last one
    }
    return any;
  }

  void gather_by_hook(mw::Bucket& bucket) {
    bucket.gather_hook =
        storage_.gather.choose(mw::gathered_shape_of(program_, bucket, program_.first()));
    if (!bucket.gather_hook || bucket.gather_hook->gathers()) return;
    throw mw::Error(mw::Stage::plan, "hook.gathers", "gather",
                    fmt::format("the hook {} sums gradients, and gathers no parameters",
                                bucket.gather_hook->name()),
                    "gather = \"int8\", or leave it out");
  }

  bool update_goes_on() const {
    return storage_.update_overlaps && !storage_.update_on_device &&
           storage_.offload != mw::Offload::nothing && storage_.reshard_after_forward;
  }

  // Begins each bucket's reduction after its last gradient. Awaited before the next one with the
  // same reduce_atoms and parameter_atoms begins, so that two such buckets' gradients live at most.
  void reduce_in(mw::Segment& segment, const std::map<int, int>& buckets) {
    if (segment.kind == mw::SegmentKind::finish) return;
    std::vector<mw::Span> list = mw::spans(segment, buckets);
    std::stable_sort(list.begin(), list.end(),
                     [](const mw::Span& a, const mw::Span& b) { return a.last < b.last; });
    mw::Insertions inserts;
    // by reduce_atoms and parameter_atoms: the bucket begun last
    std::map<std::pair<std::vector<int>, std::vector<int>>, int> before;
    for (const mw::Span& span : list) {
      const mw::Bucket& bucket = program_.buckets[span.group];
      const auto [place, first] =
          before.try_emplace({bucket.reduce_atoms, bucket.parameter_atoms}, span.group);
      if (!first) inserts.before(span.last + 1, mw::end_reduction(program_, place->second));
      inserts.before(span.last + 1, mw::begin_reduction(program_, span.group));
      place->second = span.group;
    }
    for (const auto& [how, bucket] : before)
      inserts.before(static_cast<int>(segment.code.size()), mw::end_reduction(program_, bucket));
    inserts.into(segment);
  }

  // Groups consecutive spans of one layer.
  std::vector<std::vector<mw::Span>> by_layer(const mw::Segment& segment,
                                              const std::vector<mw::Span>& list) const {
    std::vector<std::vector<mw::Span>> layers;
    int before = -1;  // layer of the previous span; -1: none
    for (const mw::Span& span : list) {
      const int op = segment.code[span.first].op;
      const int layer = op < 0 ? -1 : program_.graph->ops()[op].layer;
      if (layers.empty() || layer < 0 || layer != before) layers.emplace_back();
      layers.back().push_back(span);
      before = layer;
    }
    return layers;
  }

  void gather_in(mw::Segment& segment, const std::map<int, int>& buckets) {
    const auto layers = by_layer(segment, mw::spans(segment, buckets));
    const auto ahead = static_cast<std::size_t>(storage_.prefetch);
    const char* phase = segment.kind == mw::SegmentKind::forward ? "forward" : "backward";
    mw::Insertions inserts;
    for (std::size_t n = 0; n < layers.size(); ++n) {
      if (storage_.reshard_after_forward) {
        // At the first layer, gathers without an earlier place begin too.
        for (std::size_t k = n == 0 ? 0 : n + ahead; k <= n + ahead && k < layers.size(); ++k) {
          for (const mw::Span& span : layers[k])
            inserts.before(layers[n].front().first, mw::begin_gather(program_, span.group, phase));
        }
        for (const mw::Span& span : layers[n])
          segment.code[span.last].release.push_back(program_.buckets[span.group].flat.parameters);
      }
      for (const mw::Span& span : layers[n])
        inserts.before(span.first, mw::end_gather(program_, span.group, phase));
    }
    inserts.into(segment);
  }

  // Begins all gathers at the start of the step, in the order of use; what is gathered is kept
  // until its end. All runs that use a gather await it; a hook's gathers end before any use.
  void gather_once() {
    mw::Segment all;
    all.name = "gather";
    all.kind = mw::SegmentKind::gather;
    std::vector<mw::Instruction> ends;
    std::set<int> seen;
    const auto gathers = [](const mw::Instruction& i) {
      return i.awaits_transfer() && i.serves == mw::Serves::parameters;
    };
    for (const mw::SegmentRun& run : program_.timeline) {
      std::vector<mw::Instruction>& code = program_.segments[run.segment].code;
      for (mw::Instruction& i : code) {
        if (!gathers(i)) continue;
        i.again = true;
        if (!seen.insert(i.bucket).second) continue;
        for (mw::Instruction& begins : mw::begin_gather(program_, i.bucket, "forward"))
          all.code.push_back(std::move(begins));
        if (i.runs_hook()) ends.push_back(mw::end_gather(program_, i.bucket, "forward"));
      }
      std::erase_if(code, [&](const mw::Instruction& i) { return gathers(i) && i.runs_hook(); });
    }
    all.code.insert(all.code.end(), ends.begin(), ends.end());
    program_.timeline.insert(program_.timeline.begin(),
                             {static_cast<int>(program_.segments.size()), -1});
    program_.segments.push_back(std::move(all));
  }

  mw::Program& program_;
  const ShardedStorage& storage_;
};

// Reduces gradients when a stage turns to another chunk: they are added up whole while its backward
// stays with one chunk of the model, and copies of the segments reduce them where the timeline
// turns.
class ByChunk {
 public:
  ByChunk(mw::Program& program, const std::map<int, int>& bucket_of) : program_(program) {
    for (const mw::Segment& segment : program.segments) {
      written_.push_back(mw::spans(segment, bucket_of));
      std::stable_sort(written_.back().begin(), written_.back().end(),
                       [](const mw::Span& a, const mw::Span& b) { return a.last < b.last; });
    }
  }

  void run() {
    const std::vector<std::vector<int>> reduced = last_runs();
    std::vector<int> underway;
    for (std::size_t r = 0; r < reduced.size(); ++r) {
      int& segment = program_.timeline[r].segment;
      Copy copy{segment, {}, {}, reduced[r]};
      for (const mw::Span& span : written_[segment]) {
        if (std::erase(underway, span.group) > 0) copy.before.push_back(span.group);
      }
      if (copy.before.empty() && copy.begun.empty()) continue;
      if (!copy.begun.empty()) copy.awaited = std::exchange(underway, copy.begun);
      const auto [known, fresh] = copies_.try_emplace(std::move(copy), -1);
      if (fresh) known->second = make(known->first);
      segment = known->second;
    }
  }

 private:
  // A copy of segment `of`. before: reductions awaited first, as it adds to the same gradients
  // again; begun: those that it begins; awaited: those awaited before these.
  struct Copy {
    int of = -1;
    std::vector<int> before, awaited, begun;
    auto operator<=>(const Copy&) const = default;
  };

  // By run: the buckets to which no later run adds before the stage turns to another chunk.
  std::vector<std::vector<int>> last_runs() const {
    std::vector<std::vector<int>> reduced(program_.timeline.size());
    std::map<int, std::size_t> next;  // by virtual stage: the next run that adds
    std::map<int, std::size_t> adds;  // by bucket: the next run that adds to it
    for (std::size_t r = program_.timeline.size(); r-- > 0;) {
      const int segment = program_.timeline[r].segment;
      if (written_[segment].empty()) continue;
      const int vstage = program_.segments[segment].vstage;
      std::size_t turn = program_.timeline.size();
      for (const auto& [other, run] : next) {
        if (other != vstage) turn = std::min(turn, run);
      }
      for (const mw::Span& span : written_[segment]) {
        const auto known = adds.find(span.group);
        if (known == adds.end() || turn < known->second) reduced[r].push_back(span.group);
      }
      for (const mw::Span& span : written_[segment]) adds[span.group] = r;
      next[vstage] = r;
    }
    return reduced;
  }

  // Makes a copy. A reduction begins after its bucket's last gradient. It is awaited when others
  // begin: at the next turn or, where weights' gradients are pieces of their own, before it.
  // Earlier waits would keep earlier stages from their gradients, and two chunks' gradients exist
  // at once in any case.
  int make(const Copy& copy) {
    const auto& [of, before, awaited, begun] = copy;
    mw::Insertions inserts;
    for (const int bucket : before) inserts.before(0, mw::end_reduction(program_, bucket));
    bool first = true;
    for (const mw::Span& span : written_[of]) {
      if (std::find(begun.begin(), begun.end(), span.group) == begun.end()) continue;
      if (std::exchange(first, false)) {
        for (const int bucket : awaited)
          inserts.before(span.last + 1, mw::end_reduction(program_, bucket));
      }
      inserts.before(span.last + 1, mw::begin_reduction(program_, span.group));
    }
    return mw::add_copy(program_, of, begun.empty() ? "next" : "last", inserts);
  }

  mw::Program& program_;
  std::vector<std::vector<mw::Span>> written_;  // by segment: spans of gradients, by last use
  std::map<Copy, int> copies_;                  // copies that were made, with their segments
};

// A note on when offloaded state is updated in host memory, and why then; empty if none is.
std::string say_when_updated(const std::vector<mw::Program>& programs) {
  std::size_t all = 0, asked = 0, forward = 0;
  bool waits = false;
  for (const mw::Program& program : programs) {
    waits = waits || program.update_needs_totals;
    for (const mw::Bucket& bucket : program.buckets) {
      // Counts the buckets of matrices too, whose updates have no place in a forward.
      const bool offloaded = bucket.offload != mw::Offload::nothing && !bucket.update_on_device;
      all += bucket.rule && offloaded ? 1 : 0;
      asked += bucket.updated_on_host() && bucket.update_overlaps ? 1 : 0;
      forward += bucket.update_overlaps_forward ? 1 : 0;
    }
  }
  if (asked == 0) return "";
  if (!waits)
    return "updates in host memory go on beside the backward, as no norm clips them and no step is "
           "left out (on_nan = \"continue\")";
  const std::string why =
      "updates in host memory begin when the norm of all gradients is known, by which they are "
      "clipped or left out";
  if (forward == 0) return why + ", and end with the step";
  if (forward == all) return why + ", and go on beside the next step's forward";
  return fmt::format(
      "{}; those of {} of {} buckets go on beside the next step's forward, the "
      "others end with the step",
      why, forward, all);
}

// Cuts the flat tensors of the buckets that are reduced over `axes`: gradients are
// reduce-scattered, and parameters all-gathered after the update, or, stored as shards themselves,
// before each use and let go after it. Gradients stored as shards are reduced in every microbatch,
// each bucket as soon as its gradients are complete, or by chunk.
mw::Pass shard_storage(const ShardedStorage& storage) {
  mw::Pass pass{"shard storage",
                [storage](mw::Program& program) { ShardStorage(program, storage).run(); },
                mw::Pass::storage, storage.axes.front()};
  pass.note = say_when_updated;
  if (storage.by_chunk) {
    pass.finish = [](mw::Program& program) {
      ByChunk(program, buckets_of(program, &mw::ProgramParameter::gradient_slot)).run();
    };
  }
  return pass;
}

class Zero : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that the batch is split over")
        .range(1, 1 << 20)
        .positional("ways")
        .integer("stage", "what is sharded: 1 optimizer state, 2 gradients too, 3 parameters too")
        .fallback(1)
        .range(1, 3)
        .integer(
            "replicas",
            "copies of the model among these ranks; state is sharded within ways / replicas ranks")
        .fallback(1)
        .range(1, 1 << 20)
        .integer("prefetch", "stage 3: layers whose parameters are gathered ahead")
        .fallback(usual_prefetch)
        .range(0, 1024)
        .boolean("overlap_gather",
                 "stages 1 and 2: updated parameters are gathered beside the next step's forward, "
                 "each bucket's until its first use; else all at the step's end")
        .fallback(true)
        .boolean("keep", "stage 3: gather once a step, not again for each forward and backward")
        .fallback(false)
        .choice("reduce", {"each", "chunk"},
                "stages 2 and 3: gradients are reduced in every microbatch; or added up whole and "
                "reduced when a stage changes to another chunk of the model")
        .fallback("each")
        .boolean("sequence",
                 "state is sharded over the ranks that split the sequence too, beside its own")
        .fallback(false)
        .any("hook",
             "how a bucket's gradients are summed, as dp's hook: \"none\", \"int8\", \"bf16\", "
             "\"powersgd\", another hook by name, or a function of the bucket")
        .fallback("none")
        .names(mw::Kind::hook)
        .any("gather",
             "stage 3: how a bucket's parameters are gathered: \"none\", as they are; \"int8\", or "
             "another hook that gathers; or a function of the bucket. Loses bits")
        .fallback("none")
        .names(mw::Kind::hook)
        .bytes("bucket",
               "gradients that are reduced together, at most (stage 1; stage 2 also parts them by "
               "layer)")
        .fallback("25MiB")
        .at_least(1)
        .choice("offload", {"none", "optimizer", "parameters"},
                "state kept in host memory: optimizer state; at stage 3 also a rank's shard of the "
                "parameters")
        .fallback("none")
        .choice("update", {"host", "device"},
                "where offloaded state is updated: in host memory, or on the device, to which each "
                "bucket is copied and back")
        .fallback("host")
        .boolean(
            "overlap_update",
            "updates in host memory overlap with the next step's forward, or with the backward "
            "if no update needs the norm of all gradients; false: all at the step's end")
        .fallback(true);
  }

  explicit Zero(const mw::Values& values)
      : ways_(values.int32("ways")),
        stage_(values.int32("stage")),
        replicas_(values.int32("replicas")),
        prefetch_(values.int32("prefetch")),
        overlap_gather_(values.flag("overlap_gather")),
        keep_(values.flag("keep")),
        by_chunk_(values.text("reduce") == "chunk"),
        sequence_(values.flag("sequence")),
        bucket_(values.integer("bucket")),
        offload_(values.text("offload") == "none"        ? mw::Offload::nothing
                 : values.text("offload") == "optimizer" ? mw::Offload::optimizer
                                                         : mw::Offload::parameters),
        update_on_device_(values.text("update") == "device"),
        overlap_update_(values.flag("overlap_update")),
        hook_(mw::read_hook(values, "hook")),
        gather_(mw::read_hook(values, "gather", "\"none\", a hook that gathers, as \"int8\"")) {
    if (offload_ == mw::Offload::parameters && stage_ < 3) {
      throw mw::Error(
          mw::Stage::options, "option.conflict", "offload",
          fmt::format("zero({}): offload = \"parameters\" at stage {}, where every rank computes "
                      "with all parameters it holds",
                      ways_, stage_),
          "nearest: offload = \"optimizer\", or stage = 3");
    }
    if (keep_ && stage_ < 3) {
      throw mw::Error(mw::Stage::options, "option.conflict", "keep",
                      fmt::format("zero({}): keep = true at stage {}, where parameters stay whole",
                                  ways_, stage_),
                      "leave keep out, or write stage = 3");
    }
    if (by_chunk_ && stage_ == 1) {
      throw mw::Error(mw::Stage::options, "option.conflict", "reduce",
                      fmt::format("zero({}): reduce = \"chunk\" at stage 1, where gradients stay "
                                  "whole and are reduced once a step",
                                  ways_),
                      "leave reduce out, or write stage = 2");
    }
    refuse_idle_options();
    if (ways_ % replicas_ != 0) {
      int below = std::min(replicas_, ways_), above = replicas_;
      while (ways_ % below != 0) --below;
      while (above < ways_ && ways_ % above != 0) ++above;
      const std::string more = above <= ways_ ? fmt::format(" or {}", above) : "";
      throw mw::Error(
          mw::Stage::options, "option.divides", "replicas",
          fmt::format("zero({}): {} replicas do not divide {} ranks", ways_, replicas_, ways_),
          fmt::format("nearest: replicas = {}{}", below, more));
    }
  }

  std::vector<mw::AxisRequest> axes() const override {
    std::vector<mw::AxisRequest> axes{{"zero", ways_, mw::Role::data}};
    if (replicas_ > 1) {
      axes.push_back({parts_axis(), ways_ / replicas_, mw::Role::data, {"zero"}});
    }
    return axes;
  }

  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "zero");
    if (stage_ < 3) draft.add_pass(mw::bucket_gradients(bucket_));
    ShardedStorage storage;
    storage.axes = {parts_axis()};
    if (sequence_) {
      for (const mw::Axis& axis : draft.mesh().with_role(mw::Role::sequence)) {
        if (!axis.borrowed) storage.axes.push_back(axis.name);
      }
      if (storage.axes.size() == 1) {
        draft.refuse(
            "axis.unknown", "sequence",
            fmt::format("zero({}).sequence: no axis of the plan splits the sequence", ways_),
            "leave sequence out, or add sp { n }");
        return;
      }
    }
    note_copies(draft, storage.axes);
    if (ways_ > 1 || sequence_) draft.add_pass(mw::overlap_gradient_reduction());
    storage.sharded_state = stage_ == 1   ? mw::ShardedState::optimizer
                            : stage_ == 2 ? mw::ShardedState::gradients
                                          : mw::ShardedState::parameters;
    storage.gather_overlaps_forward = overlap_gather_;
    storage.prefetch = prefetch_;
    storage.reshard_after_forward = !(keep_ && stage_ == 3);
    storage.by_chunk = by_chunk_;
    storage.offload = offload_;
    storage.update_on_device = update_on_device_;
    storage.update_overlaps = overlap_update_;
    storage.gather = gather_;
    if (hook_.choose) draft.add_pass(mw::hook_reductions("zero", hook_.choose, hook_.note));
    if (gather_.choose && ways_ > replicas_)
      draft.note(fmt::format("zero({}): parameters are gathered by {}", ways_, gather_.note));
    draft.add_pass(shard_storage(storage));
  }

  std::vector<mw::Lighter> lighter() const override {
    std::vector<mw::Lighter> variants;
    if (by_chunk_) variants.push_back({"ZeRO stage", {{"reduce", "each"}}});
    for (int stage = stage_ + 1; stage <= 3; ++stage) {
      mw::Json options = {{"stage", stage}};
      if (stage == 3 && bucket_ != usual_bucket) options["bucket"] = usual_bucket;
      if (by_chunk_) options["reduce"] = "each";
      variants.push_back({"ZeRO stage", options});
    }
    if (keep_) {
      mw::Json options = {{"keep", false}};
      if (by_chunk_) options["reduce"] = "each";
      variants.push_back({"ZeRO stage", options});
    }
    if (offload_ == mw::Offload::nothing)
      variants.push_back({"offload", {{"offload", "optimizer"}}, true});
    if (offload_ != mw::Offload::parameters && stage_ == 3)
      variants.push_back({"offload", {{"offload", "parameters"}}, true});
    return variants;
  }

 private:
  static constexpr std::int64_t usual_bucket = 25 << 20;
  static constexpr int usual_prefetch = 1;

  // Throws for options that were given and would change nothing.
  void refuse_idle_options() const {
    const auto refuse = [&](const char* key, const std::string& why, const std::string& hint) {
      throw mw::Error(mw::Stage::options, "option.needs", key,
                      fmt::format("zero({}): {}", ways_, why), hint);
    };
    if (prefetch_ != usual_prefetch && stage_ < 3) {
      refuse("prefetch",
             fmt::format("prefetch = {} at stage {}, where no parameters are gathered ahead",
                         prefetch_, stage_),
             "leave prefetch out, or write stage = 3");
    }
    if (prefetch_ != usual_prefetch && keep_) {
      refuse("prefetch",
             fmt::format("prefetch = {} with keep = true, which gathers all parameters at the "
                         "start of a step",
                         prefetch_),
             "leave prefetch out, or keep");
    }
    if (update_on_device_ && offload_ == mw::Offload::nothing) {
      refuse("update", "update = \"device\" where nothing is offloaded, and all is updated there",
             "leave update out, or write offload = \"optimizer\"");
    }
    if (!overlap_update_ && (update_on_device_ || offload_ == mw::Offload::nothing)) {
      refuse(
          "overlap_update", "overlap_update = false where nothing is updated in host memory",
          "leave overlap_update out, or write offload = \"optimizer\" without update = \"device\"");
    }
    if (!overlap_gather_ && stage_ == 3) {
      refuse("overlap_gather",
             "overlap_gather = false at stage 3, which gathers parameters before each use",
             "leave overlap_gather out, or write stage = 1 or 2");
    }
    if (gather_.choose && stage_ < 3) {
      refuse("gather",
             fmt::format("gather = … at stage {}, where each rank keeps whole parameters", stage_),
             "leave gather out, or write stage = 3");
    }
    if (bucket_ != usual_bucket && stage_ == 3) {
      refuse("bucket",
             fmt::format("bucket = {} bytes at stage 3, which reduces gradients layer by layer",
                         bucket_),
             "leave bucket out, or write stage = 1 or 2");
    }
  }

  // Notes that nothing is sharded, if all axes that shard have one rank.
  void note_copies(mw::Draft& draft, const std::vector<std::string>& axes) const {
    if (std::any_of(axes.begin(), axes.end(),
                    [&](const std::string& axis) { return draft.mesh().axis(axis).ways > 1; }))
      return;
    const std::string why =
        ways_ == 1 ? "one rank" : fmt::format("replicas = {}, a copy on each rank", replicas_);
    draft.note(fmt::format("zero({}): {}: nothing is sharded, whatever the stage", ways_, why));
  }

  std::string parts_axis() const { return replicas_ > 1 ? "zero_parts" : "zero"; }

  int ways_, stage_, replicas_, prefetch_;
  bool overlap_gather_, keep_, by_chunk_, sequence_;
  std::int64_t bucket_;
  mw::Offload offload_;
  bool update_on_device_, overlap_update_;
  mw::HookChoice hook_, gather_;
};

}  // namespace

MESHWRIGHT_PLUGIN("zero", "1.0.0",
                  "ZeRO: optimizer state, gradients, parameters sharded over data-parallel ranks",
                  mw::strategy<Zero>())
