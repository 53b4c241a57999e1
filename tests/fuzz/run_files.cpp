// Run files: any bytes, as HDF5 reads them; files whose texts are any JSON; folders of sweeps.
#include <memory>

#include "fuzz/readers.h"
#include "meshwright/error.h"
#include "record/cells.h"
#include "record/run_facts.h"
#include "record/run_reader.h"
#include "record/run_result.h"
#include "record/run_set.h"
#include "record/run_writer.h"

namespace mw::fuzz {
namespace {

void use_run(const std::filesystem::path& path, Probe probe) {
  const RunEntry entry = read_entry(path, probe);
  RunReader reader(path, probe);
  reader.script();
  reader.plan();
  json_text(run_result(reader, entry));
  leaves(experiment_of(reader));
  for (const bool actions : {false, true}) read_run_facts(path, actions);
  find_report_runs({path});
}

// With the probe, as commands read a file: HDF5 itself crashes on some.
void read_run_bytes(Bytes input) {
  clear_scratch();
  use_run(file_of("run.h5", text_of(input)), Probe::yes);
}

StepRow step_row(std::int64_t step) {
  StepRow row;
  row.step = step;
  row.seconds = 0.5;
  row.loss = 3;
  row.tokens = 64;
  return row;
}

// A line each: the plan, the experiment, what was predicted, the result, versions.
void read_run_texts(Bytes input) {
  clear_scratch();
  std::string text = text_of(input);
  RunInfo info;
  info.plan = take_line(text);
  info.experiment = take_line(text);
  info.predicted = take_line(text);
  const std::string result = take_line(text);
  info.name = take_line(text);
  info.hash = text;
  const std::filesystem::path path = scratch_folder() / "run.h5";
  {
    RunWriter writer(path, info);
    for (std::int64_t step = 0; step < 3; ++step) {
      writer.add(step_row(step));
      ActionRow action;
      action.step = step;
      action.action = "F";
      writer.add(action);
      writer.add_series(step, {{"metric", 1.0}});
    }
    writer.set_result(result);
    writer.finish(RunStatus::done, "");
  }
  need_not_probe(path);
  use_run(path, Probe::no);
}

// A line each: the list of a sweep's cells, the result of one, its machine; then predictions.
void read_sweep(Bytes input) {
  clear_scratch();
  std::string text = text_of(input);
  file_of("sweep/sweep.json", take_line(text));
  file_of("sweep/a-1/result.json", take_line(text));
  file_of("sweep/a-1/machine.json", take_line(text));
  file_of("sweep/predicted.jsonl", text);
  find_report_runs({scratch_folder() / "sweep"});
}

const AddReader registered_runs({"runs", read_run_bytes, 20});
const AddReader registered_texts({"run_texts", read_run_texts, 60});
const AddReader registered_sweeps({"sweeps", read_sweep, 400});

}  // namespace
}  // namespace mw::fuzz
