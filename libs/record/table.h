// The layout of each table in a run file: its columns, their types and units, and the bytes of a
// row. Nothing here uses HDF5: a row is packed once, when it comes in, and its bytes are written as
// they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "record/rows.h"

namespace mw {

struct Column {
  enum class Type : std::uint8_t { int32, int64, float64, text };
  const char* name;
  Type type;
  std::size_t bytes;  // text: fixed length, padded with zeros
  const char* unit;   // "": none, for a column that counts or names (a step, a rank)
};

struct TableLayout {
  const char* name;
  std::vector<Column> columns;
  std::size_t chunk_rows;
  std::size_t row_bytes() const;
};

const TableLayout& step_table();
const TableLayout& memory_table();
const TableLayout& rank_memory_table();
const TableLayout& communication_table();
const TableLayout& work_table();
const TableLayout& expert_table();
const TableLayout& action_table();
const TableLayout& predicted_action_table();  // action_table without `step`
const TableLayout& trace_table();
const TableLayout& predicted_trace_table();  // same columns as trace_table
const TableLayout& trace_memory_table();
const TableLayout& predicted_trace_memory_table();  // same columns as trace_memory_table
const TableLayout& account_table();
const TableLayout& bandwidth_table();
const TableLayout& event_table();
std::vector<const TableLayout*> all_tables();

// Appends a row's bytes, as the layout says. Texts that are too long are cut before a code point.
template <class Row>
void pack(const Row& row, std::vector<char>& out);
void pack_predicted(const ActionRow& row, std::vector<char>& out);

// Makes a row of its bytes, as the layout says.
ActionRow unpack_action(const char* bytes);
ActionRow unpack_predicted_action(const char* bytes);

}  // namespace mw
