// Sweeps in a program that was made without them.
#include "app/left_out.h"
#include "app/app_host.h"
#include "app/script_command.h"
#include "app/sweep/table.h"

namespace mw {

const LeftOutCommand sweep_command{"sweep", 70, "sweep"};

const Options& sweep_options() {
  static const Options none;
  return none;
}

const Options& go_options() {
  return sweep_options();
}

AppHost::Sweeping sweeping_of(const ScriptArguments&) {
  return {};
}

void look_for_sweeps(const AppHost&, const std::string&, std::size_t) {}

void AppHost::check_sweep(const Json&, const std::vector<AppliedSetting>&) {
  throw_left_out("sweep");
}

Json AppHost::run_sweep(const Json&, const Json&, const std::string&, const CallFunction&) {
  throw_left_out("sweep");
}

std::string AppHost::report_sweep(const Json&, const std::string&, const Json&) {
  throw_left_out("sweep");
}

}  // namespace mw
