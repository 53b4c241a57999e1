// The columns of each table of a run file, and how a row becomes bytes and back.
#include "record/table.h"

#include <bit>
#include <cstring>
#include <string_view>

namespace mw {

static_assert(std::endian::native == std::endian::little, "rows are packed as little-endian bytes");

namespace {

constexpr std::size_t category_bytes = 16, axis_bytes = 24, op_bytes = 24, phase_bytes = 16,
                      piece_bytes = 16, action_bytes = 12, kind_bytes = 24, message_bytes = 480;

Column int32(const char* name, const char* unit = "") {
  return {name, Column::Type::int32, 4, unit};
}
Column int64(const char* name, const char* unit = "") {
  return {name, Column::Type::int64, 8, unit};
}
Column float64(const char* name, const char* unit = "") {
  return {name, Column::Type::float64, 8, unit};
}
Column text(const char* name, std::size_t bytes) {
  return {name, Column::Type::text, bytes, ""};
}

template <typename Number>
void put(std::vector<char>& out, Number value) {
  const char* bytes = reinterpret_cast<const char*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

// Reads a number and moves on behind it.
template <typename Number>
void take(const char*& bytes, Number& value) {
  std::memcpy(&value, bytes, sizeof value);
  bytes += sizeof value;
}

void put_text(std::vector<char>& out, std::string_view value, std::size_t size) {
  std::size_t length = value.size();
  if (length > size) {
    length = size;
    while (length > 0 && (static_cast<unsigned char>(value[length]) & 0xc0) == 0x80) --length;
  }
  out.insert(out.end(), value.begin(), value.begin() + static_cast<std::ptrdiff_t>(length));
  out.insert(out.end(), size - length, '\0');
}

}  // namespace

std::size_t TableLayout::row_bytes() const {
  std::size_t sum = 0;
  for (const Column& column : columns) sum += column.bytes;
  return sum;
}

const TableLayout& step_table() {
  static const TableLayout layout{
      "steps",
      {int64("step"), float64("seconds", "s"), float64("loss", "nats"),
       float64("grad_norm", "nats"), float64("lr", "1"), int64("tokens", "tokens"),
       float64("tokens_per_second", "tokens/s"), float64("mfu", "1"), float64("bubble", "1")},
      512};
  return layout;
}

const TableLayout& memory_table() {
  static const TableLayout layout{
      "memory",
      {int32("rank"), int32("stage"), text("category", category_bytes), int64("bytes", "bytes"),
       int64("peak_bytes", "bytes"), int64("predicted_bytes", "bytes")},
      64};
  return layout;
}

const TableLayout& rank_memory_table() {
  static const TableLayout layout{"rank_memory",
                                  {int32("rank"), int32("stage"), int64("bytes", "bytes"),
                                   int64("peak_bytes", "bytes"), int64("predicted_bytes", "bytes")},
                                  64};
  return layout;
}

const TableLayout& communication_table() {
  static const TableLayout layout{
      "communication",
      {int64("step"), int32("rank"), text("axis", axis_bytes), text("op", op_bytes),
       text("phase", phase_bytes), int64("calls", "1"), int64("bytes", "bytes"),
       float64("seconds", "s"), int64("predicted_bytes", "bytes"),
       float64("predicted_seconds", "s")},
      512};
  return layout;
}

const TableLayout& work_table() {
  static const TableLayout layout{
      "work",
      {int64("step"), int32("rank"), int32("stage"), text("op", op_bytes),
       text("piece", piece_bytes), int64("calls", "1"), float64("flops", "flop"),
       float64("seconds", "s")},
      512};
  return layout;
}

const TableLayout& expert_table() {
  static const TableLayout layout{"experts",
                                  {int64("step"), int32("layer"), int32("expert"),
                                   int64("chosen", "tokens"), int64("taken", "tokens")},
                                  512};
  return layout;
}

const TableLayout& action_table() {
  static const TableLayout layout{
      "actions",
      {int64("step"), int32("rank"), int32("stage"), int32("chunk"), text("action", action_bytes),
       int32("microbatch"), float64("start", "s"), float64("end", "s")},
      1024};
  return layout;
}

const TableLayout& predicted_action_table() {
  static const TableLayout layout = [] {
    TableLayout without_step = action_table();
    without_step.name = "predicted_actions";
    without_step.columns.erase(without_step.columns.begin());
    without_step.chunk_rows = 256;
    return without_step;
  }();
  return layout;
}

const TableLayout& event_table() {
  static const TableLayout layout{"events",
                                  {float64("time", "s"), int64("step"), int32("rank"),
                                   text("kind", kind_bytes), text("message", message_bytes)},
                                  16};
  return layout;
}

void pack(const StepRow& row, std::vector<char>& out) {
  put(out, row.step);
  for (const double value : {row.seconds, row.loss, row.grad_norm, row.lr}) put(out, value);
  put(out, row.tokens);
  for (const double value : {row.tokens_per_second, row.mfu, row.bubble}) put(out, value);
}

void pack(const MemoryRow& row, std::vector<char>& out) {
  put(out, row.rank);
  put(out, row.stage);
  put_text(out, row.category, category_bytes);
  for (const std::int64_t value : {row.bytes, row.peak_bytes, row.predicted_bytes}) put(out, value);
}

void pack(const RankMemoryRow& row, std::vector<char>& out) {
  put(out, row.rank);
  put(out, row.stage);
  for (const std::int64_t value : {row.bytes, row.peak_bytes, row.predicted_bytes}) put(out, value);
}

void pack(const CommunicationRow& row, std::vector<char>& out) {
  put(out, row.step);
  put(out, row.rank);
  put_text(out, row.axis, axis_bytes);
  put_text(out, row.op, op_bytes);
  put_text(out, row.phase, phase_bytes);
  put(out, row.calls);
  put(out, row.bytes);
  put(out, row.seconds);
  put(out, row.predicted_bytes);
  put(out, row.predicted_seconds);
}

void pack(const WorkRow& row, std::vector<char>& out) {
  put(out, row.step);
  put(out, row.rank);
  put(out, row.stage);
  put_text(out, row.op, op_bytes);
  put_text(out, row.piece, piece_bytes);
  put(out, row.calls);
  put(out, row.flops);
  put(out, row.seconds);
}

void pack(const ExpertRow& row, std::vector<char>& out) {
  put(out, row.step);
  put(out, row.layer);
  put(out, row.expert);
  put(out, row.chosen);
  put(out, row.taken);
}

void pack(const ActionRow& row, std::vector<char>& out) {
  put(out, row.step);
  pack_predicted(row, out);
}

void pack_predicted(const ActionRow& row, std::vector<char>& out) {
  for (const std::int32_t value : {row.rank, row.stage, row.chunk}) put(out, value);
  put_text(out, row.action, action_bytes);
  put(out, row.microbatch);
  put(out, row.start);
  put(out, row.end);
}

StepRow unpack_step(const char* bytes) {
  StepRow row;
  take(bytes, row.step);
  for (double* value : {&row.seconds, &row.loss, &row.grad_norm, &row.lr}) take(bytes, *value);
  take(bytes, row.tokens);
  for (double* value : {&row.tokens_per_second, &row.mfu, &row.bubble}) take(bytes, *value);
  return row;
}

ActionRow unpack_predicted_action(const char* bytes) {
  ActionRow row;
  for (std::int32_t* value : {&row.rank, &row.stage, &row.chunk}) take(bytes, *value);
  row.action.assign(bytes, ::strnlen(bytes, action_bytes));
  bytes += action_bytes;
  take(bytes, row.microbatch);
  take(bytes, row.start);
  take(bytes, row.end);
  return row;
}

ActionRow unpack_action(const char* bytes) {
  std::int64_t step = 0;
  take(bytes, step);
  ActionRow row = unpack_predicted_action(bytes);
  row.step = step;
  return row;
}

void pack(const EventRow& row, std::vector<char>& out) {
  put(out, row.time);
  put(out, row.step);
  put(out, row.rank);
  put_text(out, row.kind, kind_bytes);
  put_text(out, row.message, message_bytes);
}

}  // namespace mw
