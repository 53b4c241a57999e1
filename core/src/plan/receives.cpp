// Puts the receives of a stage into the order in which other stages send. Between two ranks NCCL
// matches sends and receives by their order alone, so a receive begins after those of all messages
// that the same stage sends before.
#include <map>
#include <set>
#include <utility>

#include "plan/build.h"

namespace mw {
namespace {

// A message of one stage to another: its tag and microbatch.
using Message = std::pair<int, int>;

// The messages that a program sends, or receives, by the other stage, in the order of their starts.
std::map<int, std::vector<Message>> messages_of(const Program& program, Move::Kind kind) {
  std::vector<std::vector<const Instruction*>> of_segment(program.segments.size());
  for (std::size_t s = 0; s < of_segment.size(); ++s) {
    for (const Instruction& i : program.segments[s].code)
      if (i.code == Code::start && i.move.kind == kind) of_segment[s].push_back(&i);
  }
  std::map<int, std::vector<Message>> messages;
  for (const SegmentRun& run : program.timeline) {
    for (const Instruction* i : of_segment[static_cast<std::size_t>(run.segment)])
      messages[i->move.peer].emplace_back(i->move.tag, microbatch_of(run, i->lane));
  }
  return messages;
}

// Reorders the receives of one stage: those from each sender begin in the order of `sent`.
class Receiver {
 public:
  Receiver(Program& program, const std::map<int, std::vector<Message>>& sent)
      : program_(program), sent_(sent) {}

  void run() {
    give_each_a_segment();
    std::vector<SegmentRun> timeline;
    timeline.swap(program_.timeline);
    for (SegmentRun& run : timeline) {
      const auto messages = of_segment_.find(run.segment);
      if (messages == of_segment_.end()) {
        program_.timeline.push_back(std::move(run));
        continue;
      }
      for (const auto& [peer, tag] : messages->second) begin(peer, {tag, run.microbatch});
    }
  }

 private:
  // Gives each receive a segment of its own: a segment that begins several fixes their order.
  void give_each_a_segment() {
    const std::size_t before = program_.segments.size();
    for (std::size_t s = 0; s < before; ++s) {
      const std::vector<Instruction> code = program_.segments[s].code;
      if (program_.segments[s].kind != SegmentKind::post || code.empty()) continue;
      for (std::size_t n = 0; n < code.size(); ++n) {
        of_segment_[static_cast<int>(s)].emplace_back(code[n].move.peer, code[n].move.tag);
        segment_of_[code[n].move.tag] = static_cast<int>(n == 0 ? s : program_.segments.size());
        if (n == 0) continue;
        Segment own = program_.segments[s];
        own.name += " " + code[n].label;
        own.code = {code[n]};
        program_.segments.push_back(std::move(own));
      }
      program_.segments[s].code.resize(1);
    }
  }

  // Begins the receives of the peer's messages up to `message`, in the order in which they are
  // sent; none if the receive of `message` has begun already.
  void begin(int peer, const Message& message) {
    if (begun_.count({peer, message}) > 0) return;
    const std::vector<Message>& sent = sent_.at(peer);
    std::size_t& next = next_[peer];
    for (bool is_last = false; !is_last; ++next) {
      is_last = sent.at(next) == message;
      begun_.insert({peer, sent[next]});
      program_.timeline.push_back({segment_of_.at(sent[next].first), sent[next].second, {}});
    }
  }

  Program& program_;
  const std::map<int, std::vector<Message>>& sent_;
  // peer and tag of each receive that a segment began
  std::map<int, std::vector<std::pair<int, int>>> of_segment_;
  std::map<int, int> segment_of_;    // segment that begins a receive, by tag
  std::map<int, std::size_t> next_;  // by sender: the first message not yet begun
  std::set<std::pair<int, Message>> begun_;
};

}  // namespace

void order_receives(std::vector<Program>& programs) {
  std::map<int, std::map<int, std::vector<Message>>> sent;  // by receiver, then by sender
  for (const Program& program : programs) {
    for (auto& [peer, messages] : messages_of(program, Move::Kind::send))
      sent[peer][program.stage] = std::move(messages);
  }
  for (Program& program : programs) {
    const auto& own = sent[program.stage];
    if (messages_of(program, Move::Kind::recv) != own) Receiver(program, own).run();
  }
}

}  // namespace mw
