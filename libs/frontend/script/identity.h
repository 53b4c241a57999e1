// What an experiment is called and what tells it apart: its name, the whole of it as a table, and a
// hash of all that decides its numbers.
#pragma once

#include <cstdint>
#include <string>

#include "common/run_request.h"
#include "meshwright/engine/run.h"
#include "meshwright/options.h"

namespace mw {

// 16 hex digits over the plans' hashes and all else that decides what is computed, how long it
// takes or whether it may run: seed, data, weights, steps, threads, memory, check, … Not in it:
// the keys of keys_of_run(), and where functions stand.
struct ExperimentHashes {
  std::string whole;
  // The hash of everything but the seed. Runs with equal hashes are repeats: they differ at most in
  // their seeds.
  std::string without_seed;
};
// `resolved`: RunRequest::resolved.
ExperimentHashes hashes_of(const Json& resolved, const RunSetup& setup);

// What results carry: { name =, hash =, hash_without_seed =, seed =, experiment = }.
Json identity_of(const RunRequest& asked, std::int64_t seed);

// A value of a script's table for RunRequest::resolved: hidden keys left out; a Lua function is
// { function = "script.lua:12", hash = … }.
Json resolved_value(const Json& value);

// Fills in `{name}`, `{seed}` and `{hash}` of the path under a key; the name becomes fit for a
// file's: "{ dp(2), tp(4) }" is "dp2-tp4". A problem for any other word in braces.
std::string fill_in_path(const std::string& key, const std::string& path, const RunRequest& asked,
                         std::int64_t seed, Problems& problems);

// The settings that a run must share with the run from whose checkpoint it goes on: model, data and
// what its files say ("data.content": a hash of the source's digest, where it has one), batch,
// optimizer and its schedule, seed, precision, initial weights. The mix may differ, and how and for
// how long the run goes. A function is { hash = … }; those of a model are "a function", and
// "model_ops" is a hash of the ops that they recorded.
Json settings_to_resume(const RunRequest& asked, const RunSetup& setup);

}  // namespace mw
