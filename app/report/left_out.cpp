// Reports of runs in a program that was made without them.
#include "app/left_out.h"
#include "app/report/write_report.h"

namespace mw {

const LeftOutCommand report_command{"report", 140, "report"};

Json write_report(const std::string&, const std::string&, const ReportInput&) {
  throw_left_out("report");
}

}  // namespace mw
