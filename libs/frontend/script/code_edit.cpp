// Moves instructions of a segment as verbs of a script say, and keeps their numbers.
#include "script/code_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "meshwright/engine/text.h"

namespace mw {

EditOutcome& EditOutcome::operator+=(const EditOutcome& more) {
  asked += more.asked;
  moved += more.moved;
  places += more.places;
  if (why.empty()) why = more.why;
  if (later.empty()) later = more.later;
  return *this;
}

CodeEdit::CodeEdit(Program& program, Segment& segment, const InstructionFacts& facts)
    : program_(program),
      segment_(segment),
      facts_(facts),
      place_(segment.code.size()),
      number_(segment.code.size()) {
  std::iota(place_.begin(), place_.end(), std::size_t{0});
  std::iota(number_.begin(), number_.end(), 0);
}

bool CodeEdit::takes(const InstructionFilter& filter, const Instruction& i) const {
  return filter.may_take(i) && filter.takes(facts_.of(segment_, i));
}

std::vector<int> CodeEdit::find(const InstructionFilter& filter) const {
  std::vector<int> found;
  for (std::size_t at = 0; at < number_.size(); ++at) {
    const Instruction& i = segment_.code[at];
    if (takes(filter, i)) found.push_back(number_[at]);
  }
  return found;
}

Json CodeEdit::facts(int number) const {
  return facts_.of(segment_, at(number));
}

std::string CodeEdit::text(int number) const {
  const Instruction& i = at(number);
  std::string what = i.op >= 0 ? name_of(i.piece) : name_of(i.code);
  if (i.begins_transfer() && !i.runs_hook()) what += std::string(" ") + name_of(i.move.kind);
  return fmt::format("{} of {} (instruction {} of {})", what, i.label, place_[number] + 1,
                     segment_.name);
}

EditOutcome CodeEdit::go(int number, std::size_t to, bool up, const InstructionFilter* over) {
  const std::size_t from = place_[number];
  std::function<bool(const Instruction&)> past;
  if (over != nullptr) past = [&](const Instruction& i) { return takes(*over, i); };
  const std::size_t at = moved(program_, segment_.code, from, to, past);
  const auto place = [&](std::size_t n) {
    return number_.begin() + static_cast<std::ptrdiff_t>(n);
  };
  if (from < at) std::rotate(place(from), place(from + 1), place(at + 1));
  if (at < from) std::rotate(place(at), place(from), place(from + 1));
  for (std::size_t n = std::min(at, from); n <= std::max(at, from); ++n)
    place_[static_cast<std::size_t>(number_[n])] = n;
  const auto distance = static_cast<std::int64_t>(at > from ? at - from : from - at);
  if (distance > 0) return {1, 1, distance};
  return {1, 0, 0, why_still(number, to, up, over)};
}

std::string CodeEdit::why_still(int number, std::size_t to, bool up,
                                const InstructionFilter* over) const {
  const std::size_t place = place_[number];
  if (up ? place == 0 : place + 1 == place_.size())
    return fmt::format("{} is the {} of its segment", text(number), up ? "first" : "last");
  if (to == place) return fmt::format("{} is to move by 0 places", text(number));
  const std::size_t next = up ? place - 1 : place + 1;
  if (over != nullptr && !takes(*over, segment_.code[next]))
    return fmt::format("{} stands {} {}, which `over` does not take", text(number),
                       up ? "behind" : "before", text(number_[next]));
  return up ? why_ordered(next, place, /*chosen=*/false) : why_ordered(place, next, false);
}

std::string CodeEdit::why_ordered(std::size_t first, std::size_t then, bool chosen) const {
  const Instruction &a = segment_.code[first], &b = segment_.code[then];
  const std::string one = text(number_[then]), other = text(number_[first]);
  const auto both = [&](const auto& is) { return is(a) && is(b); };
  const auto between = [](const Instruction& i) {
    return i.begins_transfer() && (!i.move.stages.empty() || i.move.kind == Move::Kind::send ||
                                   i.move.kind == Move::Kind::recv);
  };
  const auto rows = [](const Instruction& i) {
    return i.begins_transfer() && i.move.exchanges_rows();
  };
  const auto fixed = [](const Instruction& i) {
    return i.makes_totals() || i.runs_hook() || i.update != Update::none;
  };
  std::string why = "on which it depends";
  if (fixed(a) || fixed(b)) {
    why = "as what hooks, optimizers and totals do keeps its place in the step";
  } else if (both(between)) {
    why = "as several stages take part in both transfers, and must come to them in one order";
  } else if (both(rows)) {
    why = "as exchanges of rows keep their order: one brings the counts that others need";
  } else if (!chosen && both(std::mem_fn(&Instruction::begins_transfer))) {
    why =
        "as transfers of one stream keep their order under hoist and sink; before and after may "
        "choose it";
  }
  return fmt::format("{} cannot stand before {}, {}", one, other, why);
}

EditOutcome CodeEdit::hoist(int number, const InstructionFilter* over, int most) {
  const std::size_t from = place_[number], far = static_cast<std::size_t>(most);
  return go(number, from > far ? from - far : 0, /*up=*/true, over);
}

EditOutcome CodeEdit::sink(int number, const InstructionFilter* over, int most) {
  const std::size_t end = place_.size() - 1;
  return go(number, std::min(end, place_[number] + static_cast<std::size_t>(most)), /*up=*/false,
            over);
}

std::vector<std::size_t> CodeEdit::places_of(const std::vector<int>& numbers) const {
  std::vector<std::size_t> places;
  for (const int number : numbers) places.push_back(place_[number]);
  std::sort(places.begin(), places.end());
  return places;
}

EditOutcome CodeEdit::order(const std::vector<int>& first, const std::vector<int>& then,
                            Moves moves) {
  std::vector<std::size_t> places;
  const auto [before, after] =
      order_before(program_, segment_.code, places_of(first), places_of(then), moves, places);
  if (before >= 0) {
    const std::string one = text(number_[static_cast<std::size_t>(after)]);
    if (before == after) {
      throw Error(Stage::plan, "pass.order", "", fmt::format("the pass puts {} before itself", one),
                  "let the two conditions take different instructions");
    }
    throw Error(Stage::plan, "pass.order", "",
                why_ordered(static_cast<std::size_t>(before), static_cast<std::size_t>(after),
                            /*chosen=*/true),
                "ask for an order that this allows, or narrow one of the conditions");
  }
  std::vector<int> numbers(number_.size());
  for (std::size_t n = 0; n < places.size(); ++n) numbers[n] = number_[places[n]];
  const std::vector<std::size_t> was = place_;
  number_ = std::move(numbers);
  for (std::size_t n = 0; n < number_.size(); ++n) place_[static_cast<std::size_t>(number_[n])] = n;
  EditOutcome done;
  for (const int number : moves == Moves::first ? first : then) {
    const auto distance = std::abs(static_cast<std::int64_t>(place_[number]) -
                                   static_cast<std::int64_t>(was[number]));
    done +=
        {1, distance > 0 ? 1 : 0, distance, "they stand so already, in each segment that has both"};
  }
  return done;
}

EditOutcome CodeEdit::stream(const std::vector<int>& numbers, const std::string& name) {
  EditOutcome done;
  for (const int number : numbers) {
    Instruction& i = segment_.code[place_[number]];
    if (!i.begins_transfer()) {
      throw Error(Stage::plan, "pass.stream", "",
                  fmt::format("{} starts no transfer, so that there is nothing to put on a stream",
                              text(number)),
                  "take its start: code = \"start\"");
    }
    const bool between = i.move.kind == Move::Kind::send || i.move.kind == Move::Kind::recv;
    if (between || !i.move.stages.empty()) {
      throw Error(
          Stage::plan, "pass.stream", "",
          fmt::format("{} is a transfer between stages, and a script cannot put it on a stream",
                      text(number)),
          "narrow the condition to collectives inside of a stage, by their axis");
    }
    const int stream = stream_named(program_, name);
    done += {1, i.move.stream == stream ? 0 : 1, 0, "they are on it already"};
    i.move.stream = stream;
  }
  return done;
}

// The number of the instruction that awaits the transfer that `start` starts; -1: it is awaited in
// another segment.
int CodeEdit::wait_of(int start) const {
  const Instruction& i = at(start);
  for (std::size_t n = place_[start] + 1; n < segment_.code.size(); ++n) {
    const Instruction& other = segment_.code[n];
    if (other.pending == i.pending && other.awaits_transfer()) return number_[n];
  }
  return -1;
}

std::vector<int> CodeEdit::awaited_here(const std::vector<int>& numbers) const {
  std::vector<int> transfers;
  for (const int number : numbers) {
    if (at(number).begins_transfer() && wait_of(number) >= 0) transfers.push_back(number);
  }
  return transfers;
}

namespace {

// The outcome for transfers none of which is awaited in its segment: nothing is moved.
EditOutcome none_awaited(const std::vector<int>& numbers, const std::vector<int>& transfers) {
  if (numbers.empty() || !transfers.empty()) return {};
  return {static_cast<int>(numbers.size()), 0, 0,
          "they are awaited in other segments than those in which they start"};
}

}  // namespace

EditOutcome CodeEdit::budget(const std::vector<int>& numbers, int most) {
  const std::vector<int> transfers = awaited_here(numbers);  // in the order of their starts
  EditOutcome done = none_awaited(numbers, transfers);
  for (std::size_t k = 0; k < transfers.size(); ++k) {
    if (k < static_cast<std::size_t>(most)) {
      done += {1, 0, 0, "no more of them are under way at once in any segment"};
      continue;
    }
    const int earlier = wait_of(transfers[k - static_cast<std::size_t>(most)]);
    done += order({earlier}, {transfers[k]}, Moves::then);
  }
  return done;
}

// The place before which a transfer is to start: that of the first instruction that computes the
// layer which is `layers_ahead` layers before the one that reads the transfer.
std::size_t CodeEdit::issue_place(int start, int layers_ahead) const {
  const auto layer_at = [&](std::size_t n) {
    const Instruction& i = segment_.code[n];
    return i.op < 0 ? -2 : program_.graph->ops()[i.op].layer;
  };
  std::vector<std::pair<int, std::size_t>> layers;  // each layer's first place, in the code's order
  for (std::size_t n = 0; n < segment_.code.size(); ++n) {
    const int layer = layer_at(n);
    if (layer > -2 && std::none_of(layers.begin(), layers.end(),
                                   [&](const auto& known) { return known.first == layer; }))
      layers.emplace_back(layer, n);
  }
  const std::size_t wait = place_[wait_of(start)];
  std::size_t read = wait;
  while (read < segment_.code.size() && layer_at(read) == -2) ++read;
  if (read == segment_.code.size()) return place_[start];
  const auto own = std::find_if(layers.begin(), layers.end(),
                                [&](const auto& known) { return known.first == layer_at(read); });
  const auto ahead = std::min<std::ptrdiff_t>(layers_ahead, own - layers.begin());
  return std::min(std::prev(own, ahead)->second, wait);
}

EditOutcome CodeEdit::issue(const std::vector<int>& numbers, int layers_ahead) {
  std::vector<int> transfers = awaited_here(numbers);
  EditOutcome done = none_awaited(numbers, transfers);
  if (transfers.empty()) return done;
  for (const int number : transfers) {  // transfers that move up, the first one first
    const std::size_t to = issue_place(number, layers_ahead);
    if (to < place_[number]) done += go(number, to, /*up=*/true, nullptr);
  }
  std::reverse(transfers.begin(), transfers.end());
  for (const int number : transfers) {
    const std::size_t to = issue_place(number, layers_ahead);
    if (to > place_[number] + 1) done += go(number, to - 1, /*up=*/false, nullptr);
  }
  done.asked = static_cast<int>(transfers.size());
  if (done.moved == 0 && done.why.empty()) done.why = "they start there already";
  return done;
}

}  // namespace mw
