// The columns of each table of a run file, and how a row becomes bytes and back. All of it follows
// from the function `fields` of each row type.
#include "record/table.h"

#include <concepts>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace mw {

static_assert(std::endian::native == std::endian::little, "rows are packed as little-endian bytes");

namespace {

// --- Fields of each row type, in byte order: numbers with units, texts with sizes ---

template <class Given, class Row>
concept IsRow = std::same_as<std::remove_const_t<Given>, Row>;

void fields(auto& visit, IsRow<StepRow> auto& row) {
  visit("step", row.step);
  visit("seconds", row.seconds, "s");
  visit("loss", row.loss, "nats");
  visit("grad_norm", row.grad_norm, "nats");
  visit("lr", row.lr, "1");
  visit("tokens", row.tokens, "tokens");
  visit("tokens_per_second", row.tokens_per_second, "tokens/s");
  visit("mfu", row.mfu, "1");
  visit("bubble", row.bubble, "1");
  visit("cpu_seconds", row.cpu_seconds, "s");
  visit("others_cores", row.others_cores, "cores");
  visit("throttled_cores", row.throttled_cores, "cores");
  visit("clock", row.clock, "Hz");
}

void fields(auto& visit, IsRow<MemoryRow> auto& row) {
  visit("rank", row.rank);
  visit("stage", row.stage);
  visit.text("category", row.category, 16);
  visit("bytes", row.bytes, "bytes");
  visit("peak_bytes", row.peak_bytes, "bytes");
  visit("predicted_bytes", row.predicted_bytes, "bytes");
}

void fields(auto& visit, IsRow<RankMemoryRow> auto& row) {
  visit("rank", row.rank);
  visit("stage", row.stage);
  visit("bytes", row.bytes, "bytes");
  visit("peak_bytes", row.peak_bytes, "bytes");
  visit("predicted_bytes", row.predicted_bytes, "bytes");
}

void fields(auto& visit, IsRow<CommunicationRow> auto& row) {
  visit("step", row.step);
  visit("rank", row.rank);
  visit.text("axis", row.axis, 24);
  visit.text("op", row.op, 24);
  visit.text("phase", row.phase, 16);
  visit("calls", row.calls, "1");
  visit("bytes", row.bytes, "bytes");
  visit("seconds", row.seconds, "s");
  visit("predicted_bytes", row.predicted_bytes, "bytes");
  visit("predicted_seconds", row.predicted_seconds, "s");
}

void fields(auto& visit, IsRow<WorkRow> auto& row) {
  visit("step", row.step);
  visit("rank", row.rank);
  visit("stage", row.stage);
  visit.text("op", row.op, 24);
  visit.text("piece", row.piece, 16);
  visit("calls", row.calls, "1");
  visit("flops", row.flops, "flop");
  visit("seconds", row.seconds, "s");
}

void fields(auto& visit, IsRow<ExpertRow> auto& row) {
  visit("step", row.step);
  visit("layer", row.layer);
  visit("expert", row.expert);
  visit("chosen", row.chosen, "tokens");
  visit("taken", row.taken, "tokens");
}

void predicted_fields(auto& visit, IsRow<ActionRow> auto& row) {
  visit("rank", row.rank);
  visit("stage", row.stage);
  visit("chunk", row.chunk);
  visit.text("action", row.action, 12);
  visit("microbatch", row.microbatch);
  visit("start", row.start, "s");
  visit("end", row.end, "s");
}

void fields(auto& visit, IsRow<ActionRow> auto& row) {
  visit("step", row.step);
  predicted_fields(visit, row);
}

void fields(auto& visit, IsRow<SpanRow> auto& row) {
  visit("step", row.step);
  visit("rank", row.rank);
  visit("stage", row.stage);
  visit.text("kind", row.kind, 12);
  visit.text("axis", row.axis, 24);
  visit.text("name", row.name, 40);
  visit.text("phase", row.phase, 16);
  visit.text("label", row.label, 64);
  visit("microbatch", row.microbatch);
  visit("start", row.start, "s");
  visit("end", row.end, "s");
  visit("bytes", row.bytes, "bytes");
}

void fields(auto& visit, IsRow<SpanMemoryRow> auto& row) {
  visit("step", row.step);
  visit("rank", row.rank);
  visit("time", row.time, "s");
  visit("parameters", row.parameters, "bytes");
  visit("gradients", row.gradients, "bytes");
  visit("optimizer", row.optimizer, "bytes");
  visit("activations", row.activations, "bytes");
  visit("buffers", row.buffers, "bytes");
  visit("host", row.host, "bytes");
}

void fields(auto& visit, IsRow<AccountRow> auto& row) {
  visit("step", row.step);
  visit("rank", row.rank);
  visit("stage", row.stage);
  visit.text("part", row.part, 16);
  visit.text("name", row.name, 64);
  visit.text("shape", row.shape, 64);
  visit("calls", row.calls, "1");
  visit("kernels", row.kernels, "1");
  visit("seconds", row.seconds, "s");
  visit("flops", row.flops, "flop");
  visit("bytes", row.bytes, "bytes");
  visit("limit_seconds", row.limit_seconds, "s");
}

void fields(auto& visit, IsRow<BandwidthRow> auto& row) {
  visit.text("kind", row.kind, 12);
  visit("ranks", row.ranks, "ranks");
  visit("bytes", row.bytes, "bytes");
  visit("bytes_per_second", row.bytes_per_second, "bytes/s");
}

void fields(auto& visit, IsRow<EventRow> auto& row) {
  visit("time", row.time, "s");
  visit("step", row.step);
  visit("rank", row.rank);
  visit.text("kind", row.kind, 24);
  visit.text("message", row.message, 480);
}

// --- Visitors of `fields`, and the tables ---

struct Columns {
  void operator()(const char* name, std::int32_t, const char* unit = "") {
    list.push_back({name, Column::Type::int32, 4, unit});
  }
  void operator()(const char* name, std::int64_t, const char* unit = "") {
    list.push_back({name, Column::Type::int64, 8, unit});
  }
  void operator()(const char* name, double, const char* unit = "") {
    list.push_back({name, Column::Type::float64, 8, unit});
  }
  void text(const char* name, const std::string&, std::size_t bytes) {
    list.push_back({name, Column::Type::text, bytes, ""});
  }
  std::vector<Column> list;
};

struct Packer {
  template <typename Number>
  void operator()(const char*, Number value, const char* = "") {
    const char* bytes = reinterpret_cast<const char*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof value);
  }
  void text(const char*, std::string_view value, std::size_t size) {
    std::size_t length = value.size();
    if (length > size) {
      length = size;
      while (length > 0 && (static_cast<unsigned char>(value[length]) & 0xc0) == 0x80) --length;
    }
    out.insert(out.end(), value.begin(), value.begin() + static_cast<std::ptrdiff_t>(length));
    out.insert(out.end(), size - length, '\0');
  }
  std::vector<char>& out;
};

struct Unpacker {
  template <typename Number>
  void operator()(const char*, Number& value, const char* = "") {
    std::memcpy(&value, bytes, sizeof value);
    bytes += sizeof value;
  }
  void text(const char*, std::string& value, std::size_t size) {
    value.assign(bytes, ::strnlen(bytes, size));
    bytes += size;
  }
  const char* bytes;
};

template <class Row>
TableLayout make_table(const char* name, std::size_t chunk_rows) {
  Columns columns;
  const Row row;
  fields(columns, row);
  return {name, std::move(columns.list), chunk_rows};
}

template <class Row>
const TableLayout& table(const char* name, std::size_t chunk_rows) {
  static const TableLayout layout = make_table<Row>(name, chunk_rows);
  return layout;
}

template <class Row>
Row unpack(const char* bytes) {
  Unpacker unpacker{bytes};
  Row row;
  fields(unpacker, row);
  return row;
}

}  // namespace

std::size_t TableLayout::row_bytes() const {
  std::size_t sum = 0;
  for (const Column& column : columns) sum += column.bytes;
  return sum;
}

const TableLayout& step_table() {
  return table<StepRow>("steps", 512);
}
const TableLayout& memory_table() {
  return table<MemoryRow>("memory", 64);
}
const TableLayout& rank_memory_table() {
  return table<RankMemoryRow>("rank_memory", 64);
}
const TableLayout& communication_table() {
  return table<CommunicationRow>("communication", 512);
}
const TableLayout& work_table() {
  return table<WorkRow>("work", 512);
}
const TableLayout& expert_table() {
  return table<ExpertRow>("experts", 512);
}
const TableLayout& action_table() {
  return table<ActionRow>("actions", 1024);
}
const TableLayout& trace_table() {
  return table<SpanRow>("trace", 512);
}
const TableLayout& predicted_trace_table() {
  static const TableLayout layout = make_table<SpanRow>("predicted_trace", 512);
  return layout;
}
const TableLayout& trace_memory_table() {
  return table<SpanMemoryRow>("trace_memory", 512);
}
const TableLayout& predicted_trace_memory_table() {
  static const TableLayout layout = make_table<SpanMemoryRow>("predicted_trace_memory", 512);
  return layout;
}
const TableLayout& account_table() {
  return table<AccountRow>("account", 256);
}
const TableLayout& bandwidth_table() {
  return table<BandwidthRow>("bandwidth", 32);
}
const TableLayout& event_table() {
  return table<EventRow>("events", 16);
}

const TableLayout& predicted_action_table() {
  static const TableLayout layout = [] {
    Columns columns;
    const ActionRow row;
    predicted_fields(columns, row);
    return TableLayout{"predicted_actions", std::move(columns.list), 256};
  }();
  return layout;
}

std::vector<const TableLayout*> all_tables() {
  return {&step_table(),
          &memory_table(),
          &rank_memory_table(),
          &communication_table(),
          &work_table(),
          &expert_table(),
          &action_table(),
          &predicted_action_table(),
          &event_table(),
          &trace_table(),
          &predicted_trace_table(),
          &trace_memory_table(),
          &predicted_trace_memory_table(),
          &account_table(),
          &bandwidth_table()};
}

template <class Row>
void pack(const Row& row, std::vector<char>& out) {
  Packer packer{out};
  fields(packer, row);
}
template void pack(const StepRow&, std::vector<char>&);
template void pack(const MemoryRow&, std::vector<char>&);
template void pack(const RankMemoryRow&, std::vector<char>&);
template void pack(const CommunicationRow&, std::vector<char>&);
template void pack(const WorkRow&, std::vector<char>&);
template void pack(const ExpertRow&, std::vector<char>&);
template void pack(const ActionRow&, std::vector<char>&);
template void pack(const SpanRow&, std::vector<char>&);
template void pack(const SpanMemoryRow&, std::vector<char>&);
template void pack(const AccountRow&, std::vector<char>&);
template void pack(const BandwidthRow&, std::vector<char>&);
template void pack(const EventRow&, std::vector<char>&);

void pack_predicted(const ActionRow& row, std::vector<char>& out) {
  Packer packer{out};
  predicted_fields(packer, row);
}

ActionRow unpack_action(const char* bytes) {
  return unpack<ActionRow>(bytes);
}
ActionRow unpack_predicted_action(const char* bytes) {
  Unpacker unpacker{bytes};
  ActionRow row;
  predicted_fields(unpacker, row);
  return row;
}

}  // namespace mw
