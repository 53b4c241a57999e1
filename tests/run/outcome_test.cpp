// What `meshwright chaos` calls right: only a training to which a fault has happened.
#include "chaos/chaos.h"

#include <catch2/catch.hpp>

using namespace mw::chaos;

TEST_CASE("Faults of which none has come about say nothing of a training") {
  Outcome outcome;
  CHECK(outcome.why_untried() == "nothing was tried: no fault was made");
  Record missed;
  missed.kind = "kill";
  outcome.records.push_back(missed);
  CHECK(outcome.why_untried() == "nothing was tried: the fault found no place");
  outcome.records.push_back(missed);
  CHECK(outcome.why_untried() == "nothing was tried: each of the faults found no place");
  Record met = missed;
  met.met = true;
  outcome.records.push_back(met);
  CHECK(outcome.why_untried() == "");
  CHECK(outcome.good());
}
