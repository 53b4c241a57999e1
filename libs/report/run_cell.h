// One run of a report: its numbers, as its file and its result have them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"
#include "record/run_set.h"
#include "report/cells.h"

namespace mw {

// Keys of the axes that it has a value of, and that are not among `axes`, are added to these.
ReportCell cell_of(const RunEntry& entry, std::vector<std::string>& axes);
// What a result line says: of kind cell, train or plan.
void take_result(ReportCell& cell, const Json& result);

// As people read it; empty for null.
std::string text_of(const Json& value);
// Empty, or NaN, if there is none.
std::string text_at(const Json& json, const char* key);
double number_at(const Json& json, const char* key);
// Nested tables as "a.b", with their texts.
void flatten(const std::string& name, const Json& json,
             std::vector<std::pair<std::string, std::string>>& out);

}  // namespace mw
