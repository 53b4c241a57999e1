// Follows the stages of a plan side by side, each until it waits for another, and checks what only
// all stages together show.
#include "prove/prove.h"

#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <set>

#include "meshwright/engine/interrupt.h"
#include "prove/stage.h"

namespace mw {
namespace proving {

class Prover {
 public:
  Prover(const std::vector<Program>& programs, const ProveOptions& options, Proof& proof)
      : programs_(programs),
        proof_(proof),
        strict_(options.strict),
        mail_(static_cast<int>(programs.size()), strict_) {}

  void run() {
    Gradients gradients(*programs_.front().graph);
    check_stages();
    for (const Program& program : programs_) {
      stages_.emplace_back(program, gradients, mail_);
      stages_.back().check_program();
    }
    step();
    // A next step may begin with transfers and updates that this one has left, so it is followed.
    bool more = false;
    for (StageProof& stage : stages_) more = stage.turn() || more;
    if (more) {
      mail_.letters.clear();
      mail_.rounds.clear();
      step();
    }
    for (const StageProof& stage : stages_) collect(stage);
  }

 private:
  // Refuses programs that are not those of one plan, of one graph, in the order of stages.
  void check_stages() const {
    const Program& first = programs_.front();
    for (std::size_t s = 0; s < programs_.size(); ++s) {
      const Program& program = programs_[s];
      const std::size_t ops = first.graph->ops().size();
      const bool same = program.stage == static_cast<int>(s) &&
                        program.stages == static_cast<int>(programs_.size()) &&
                        program.microbatches == first.microbatches &&
                        program.batches == first.batches && program.graph->ops().size() == ops &&
                        program.graph->values().size() == first.graph->values().size() &&
                        program.cut.size() == ops && program.follow.size() == ops &&
                        program.mesh.describe() == first.mesh.describe() &&
                        (program.stage_atom < 0
                             ? program.stages == 1
                             : program.mesh.atoms()[program.stage_atom].ways == program.stages);
      if (same) continue;
      Refusal made;
      made.code = "prove.stages";
      made.stage = static_cast<int>(s);
      made.where = fmt::format("stage {}", s);
      made.message = "its program is of another plan than the first stage's";
      throw Refused{std::move(made)};
    }
  }

  void step() {
    using Step = proving::StageProof::Step;
    bool moved = true, ended = false;
    int steps = 0;
    while (moved && !ended) {
      moved = false;
      ended = true;
      for (StageProof& stage : stages_) {
        Step done = Step::moved;
        while ((done = stage.step()) == Step::moved) {
          moved = true;
          if (++steps % 4096 == 0) throw_if_stopped();
        }
        ended = ended && done == Step::ended;
      }
    }
    if (!ended) deadlock();
    for (StageProof& stage : stages_) stage.check_end();
    together();
  }

  [[noreturn]] void deadlock() {
    Refusal made;
    made.code = "prove.deadlock";
    made.message = "the stages wait for each other:";
    for (const StageProof& stage : stages_) {
      if (stage.ended()) {
        made.message += fmt::format("\n    stage {} is at its end", stage.program().stage);
        continue;
      }
      if (made.stage < 0) {
        Refusal here = stage.refusal("prove.deadlock", made.message);
        here.where.swap(made.where);
        here.message.swap(made.message);
        made.stage = here.stage;
        made.segment = here.segment;
        made.run = here.run;
        made.microbatch = here.microbatch;
        made.instruction = here.instruction;
      }
      made.message +=
          fmt::format("\n    stage {} waits in {} for {}", stage.program().stage,
                      proving::text_of(stage.program(), stage.here()), stage.waits_for());
    }
    throw Refused{std::move(made)};
  }

  // Checks what no stage sees alone: messages that nobody takes, collectives that some stages join
  // more often than others, losses and parameters that no stage counts, or two do.
  void together() {
    for (const auto& [key, letter] : mail_.letters) {
      const auto& [from, to, tag, microbatch] = key;
      if (letter.sent && letter.expected) continue;
      throw_refused(
          "prove.message", letter.sent ? from : to,
          fmt::format("message {} of stage {} to stage {} for microbatch {} is {}", tag, from, to,
                      microbatch,
                      letter.sent ? "sent, and never received" : "expected, and never sent"));
    }
    for (const auto& [ranks, rounds] : mail_.rounds) {
      for (const auto& round : rounds.list) {
        const std::size_t all = ranks.stages.empty() ? programs_.size() : ranks.stages.size();
        if (round.posts.size() != all)
          throw_refused(
              "prove.collective", round.posts.begin()->first,
              fmt::format("{} of {} stages come to a collective", round.posts.size(), all));
      }
    }
    count();
  }

  void count() {
    const Graph& graph = *programs_.front().graph;
    std::map<int, int> counted;
    std::set<int> held;
    std::map<int, Microbatches> losses;
    for (const StageProof& stage : stages_) {
      for (const auto& [value, counts] : stage.counted()) counted[value] += counts ? 1 : 0;
      for (const ProgramParameter& parameter : stage.program().parameters)
        held.insert(parameter.value);
      for (const auto& [loss, microbatches] : stage.losses()) {
        if (!losses[loss].add(microbatches))
          throw_refused("prove.loss", stage.program().stage, "a loss is counted by two stages");
      }
    }
    for (const int value : held) {
      const Value& parameter = graph.value(value);
      const int expected = parameter.counts || parameter.frozen ? 0 : 1;
      if (counted[value] != expected)
        throw_refused("prove.totals", -1,
                      fmt::format("the gradient of {} is counted {} times in the norm",
                                  parameter.name, counted[value]));
    }
    const std::size_t all = graph.losses().size();
    bool whole = losses.size() == all;
    for (const auto& [loss, microbatches] : losses)
      whole = whole && microbatches.all(programs_.front().microbatches);
    if (!whole)
      throw_refused("prove.loss", -1, "the losses of some microbatches are in no stage's totals");
    proof_.parameters = static_cast<int>(std::count_if(
        held.begin(), held.end(), [&](int value) { return !graph.value(value).frozen; }));
  }

  [[noreturn]] static void throw_refused(const char* code, int stage, std::string message) {
    Refusal made;
    made.code = code;
    made.stage = stage;
    made.where = stage < 0 ? "all stages together" : fmt::format("stage {}", stage);
    made.message = std::move(message);
    throw Refused{std::move(made)};
  }

  void collect(const StageProof& stage) {
    lemmas_.insert(stage.lemmas().begin(), stage.lemmas().end());
    proof_.rules += stage.rules();
    proof_.notes.insert(proof_.notes.end(), stage.notes().begin(), stage.notes().end());
    proof_.lemmas.assign(lemmas_.begin(), lemmas_.end());
  }

  const std::vector<Program>& programs_;
  Proof& proof_;
  const bool strict_;
  Mail mail_;
  std::deque<StageProof> stages_;
  std::set<Lemma> lemmas_;
};

}  // namespace proving

Proof prove(const std::vector<Program>& stages, const ProveOptions& options) {
  const auto begun = std::chrono::steady_clock::now();
  Proof proof;
  proof.stages = static_cast<int>(stages.size());
  for (const Program& program : stages) {
    for (const Segment& segment : program.segments)
      proof.instructions += static_cast<std::int64_t>(segment.code.size());
    proof.runs += static_cast<std::int64_t>(program.timeline.size());
    proof.microbatches = program.microbatches;
  }
  try {
    if (!stages.empty()) {
      proving::check_constants(stages.front(), proof);
      proving::Prover(stages, options, proof).run();
    }
  } catch (proving::Refused& refused) {
    proof.refusals.push_back(std::move(refused.refusal));
  }
  proof.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return proof;
}

}  // namespace mw
