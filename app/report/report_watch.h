// Serves a report of runs to a browser on this machine, and makes it anew while they go on.
#pragma once

#include "app/output.h"
#include "report/runs_page.h"

namespace mw {

// Listens on 127.0.0.1 alone, at `port` (0: one that is free), says the address and returns once
// the user ends it (Ctrl-C). Throws Error as make_report() does, of the first page; Error (options,
// watch.port) if it cannot listen.
void serve_report(const ReportInput& input, int port, Output& output);

}  // namespace mw
