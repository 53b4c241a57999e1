// What was measured: calibrations of this machine, and logs of collectives.
#include "common/files.h"
#include "fuzz/readers.h"
#include "meshwright/error.h"
#include "predict/calibration.h"
#include "predict/link_fit.h"
#include "predict/nccl_log.h"

namespace mw::fuzz {
namespace {

void use_calibration(const Calibration& calibration) {
  for (const int ways : {1, 2, 1000})
    must(calibration.transfer_seconds(Collective::all_reduce, ways, 1e6) >= 0,
         "a transfer takes less than no time");
  calibration.fit_of("linear forward", "product", 4, true, {});
  must(Calibration::from_json(calibration.to_json()).to_json() == calibration.to_json(),
       "a calibration that was written reads back as another one");
}

void read_measured(Bytes input) {
  const std::filesystem::path file = file_of("calibration.json", text_of(input));
  std::optional<Calibration> calibration;
  try {
    calibration = Calibration::from_json(read_json(file));
  } catch (const std::exception&) {  // read_calibration() makes an Error of it
  }
  if (calibration) use_calibration(*calibration);
  try {
    read_calibration(file);
  } catch (const Error& error) {
    // No input is of this machine, which is the last thing that is looked at.
    if (error.problems().front().code != "calibration.other-machine") throw;
    must(calibration.has_value(), "a calibration is of a machine, and cannot be read");
  }
}

void read_log(Bytes input) {
  Problems problems;
  const std::vector<LoggedTable> tables = read_nccl_log("log", text_of(input), problems);
  check_together(tables, problems);
  for (const LoggedTable& table : tables) must(!table.place().empty(), "a table has no place");
  problems.throw_if_any();
  Description description;
  description.base = "small";
  description.table = lua_table(
      "{ name = 'small', device = { name = 'a100', peak16 = 312e12, memory = '80GiB', "
      "bandwidth = 2e12, bandwidth_share = 0.8, gemm = 0.8 }, node = { devices = 8, "
      "bandwidth = 300e9, latency = 5e-6 }, network = { nic = 25e9, latency = 15e-6 } }");
  fit_links(description, tables, /*devices=*/0, problems);
  problems.throw_if_any();
  const Cluster cluster = logged_cluster(description, tables, problems);
  problems.throw_if_any();
  for (const LoggedTable& table : tables) {
    for (const LoggedRow& row : table.rows)
      must(logged_seconds(cluster, table, row.bytes) >= 0, "a collective takes less than no time");
  }
}

const AddReader registered_calibrations({"calibrations", read_measured, 1500});
const AddReader registered_logs({"nccl_logs", read_log, 4000});

}  // namespace
}  // namespace mw::fuzz
