// What was measured: calibrations of this machine.
#include "common/files.h"
#include "fuzz/readers.h"
#include "meshwright/error.h"
#include "predict/calibration.h"

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

const AddReader registered_calibrations({"calibrations", read_measured, 1500});

}  // namespace
}  // namespace mw::fuzz
