// Reads samples of token files, and refuses ids that the model does not know.
#include "shard_data.h"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "meshwright/engine/json_text.h"
#include "meshwright/plugin.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Ids of each file that are looked at before a rank starts; the others as they are read.
constexpr std::int64_t looked_at_first = 1 << 16;

// What matches, by name; of an index and its tokens the index.
std::vector<fs::path> matches(const std::string& pattern) {
  std::vector<fs::path> found;
  glob_t list{};
  if (::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &list) == 0) {
    for (std::size_t i = 0; i < list.gl_pathc; ++i) found.emplace_back(list.gl_pathv[i]);
  }
  ::globfree(&list);
  const std::set<fs::path> all(found.begin(), found.end());
  std::erase_if(found, [&](const fs::path& path) {
    std::error_code error;
    fs::path index = path;
    return fs::is_directory(path, error) ||
           (path.extension() == ".bin" && all.count(index.replace_extension(".idx")) > 0);
  });
  return found;
}

// Under the first root that has any.
std::vector<fs::path> find(const std::string& pattern, const DataContext& context) {
  if (fs::path(pattern).is_absolute() || pattern.starts_with('~') || context.roots.empty())
    return matches(pattern);
  for (const fs::path& root : context.roots) {
    std::vector<fs::path> found = matches((root / pattern).lexically_normal().string());
    if (!found.empty()) return found;
  }
  return {};
}

std::vector<std::string> patterns_of(const Json& given, Problems& problems) {
  std::vector<std::string> patterns;
  for (const Json& one : given.is_array() ? given : Json::array({given})) {
    if (one.is_string()) {
      patterns.push_back(one.get<std::string>());
    } else {
      problems.add(Stage::options, "option.value", "path",
                   fmt::format("{} is no path", json_text(one)),
                   "write the name of a file in quotes, or a pattern: \"data/train_*.bin\"");
    }
  }
  if (patterns.empty() && problems.empty()) {
    problems.add(Stage::options, "option.value", "path", "an empty list of files",
                 "write a pattern: \"data/train_*.bin\"");
  }
  return patterns;
}

std::string wrong_id(const TokenFile& file, std::int64_t i, std::int64_t vocab) {
  return fmt::format("{}: token {} is {}, and the model's ids are 0 to {}", file.path().string(), i,
                     file.at(i), vocab - 1);
}

}  // namespace

Options ShardSource::options() {
  Options options;
  options
      .any("path",
           "files of tokens: a name, a pattern such as \"data/train_*.bin\", or a list of these; "
           "llm.c's, nanoGPT's (.bin) and Megatron's (.idx beside .bin) are told apart by their "
           "headers")
      .positional("path")
      .choice("dtype", {"auto", "u16", "u32"},
              "of a token in files without a header; auto: u16, if their names end in .bin")
      .fallback("auto");
  SampleOrder::add_options(options);
  return options;
}

ShardSource::ShardSource(const Values& values, const DataContext& context)
    : order_(values, context), vocab_(context.vocab) {
  Problems problems;
  for (const std::string& pattern : patterns_of(values.at("path"), problems)) {
    const std::vector<fs::path> found = find(pattern, context);
    if (found.empty()) {
      problems.add(Stage::options, "file.missing", "path",
                   fmt::format("no file matches \"{}\"", pattern),
                   "paths are looked for here, beside the script and in the folder above it");
    }
    for (const fs::path& path : found) {
      try {
        files_.emplace_back(path, values.text("dtype"));
        starts_.push_back(starts_.back() + files_.back().tokens());
      } catch (const Error& error) {
        for (Problem p : error.problems()) {
          p.key = "path";
          problems.add(std::move(p));
        }
      }
    }
  }
  if (problems.empty()) {
    order_.take(
        starts_.back(),
        files_.size() == 1 ? files_[0].path().string() : fmt::format("{} files", files_.size()),
        problems);
    check_first_ids(problems);
  }
  problems.throw_if_any();
}

void ShardSource::check_first_ids(Problems& problems) const {
  for (const TokenFile& file : files_) {
    std::int64_t largest = 0, at = -1;
    for (std::int64_t i = 0; i < std::min(file.tokens(), looked_at_first); ++i) {
      const std::int64_t id = file.at(i);
      if (id >= 0 && id < vocab_) continue;
      if (at < 0) at = i;
      largest = std::max(largest, id);
    }
    if (at < 0) continue;
    problems.add(Stage::options, "data.token", "path", wrong_id(file, at, vocab_),
                 largest >= vocab_
                     ? fmt::format("the model's vocab must be {} at least", largest + 1)
                     : "are they tokens of this type? dtype says so of files without a header");
  }
}

void ShardSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                         std::int64_t* labels) const {
  std::int64_t at = order_.offset(k, sequence);
  // The file that holds the first token; empty files share a start with the next one.
  auto number = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1;
  for (std::int64_t done = 0; done <= sequence; ++number) {
    const TokenFile& file = files_[number];
    const std::int64_t end = std::min(starts_[number + 1], at + sequence + 1 - done);
    for (; at < end; ++at, ++done) {
      const std::int64_t id = file.at(at - starts_[number]);
      if (id < 0 || id >= vocab_) {
        file.check();
        throw Error(Stage::run, "data.token", "data", wrong_id(file, at - starts_[number], vocab_),
                    "give the model a larger vocab, or tokenise for this one");
      }
      if (done < sequence) inputs[done] = id;
      if (done > 0) labels[done - 1] = id;
    }
    file.check();
  }
}

std::string ShardSource::content() const {
  const std::int64_t share = most_digested / static_cast<std::int64_t>(files_.size());
  std::string text;
  for (const TokenFile& file : files_) text += fmt::format("{:016x}", file.digest(share));
  return text;
}

MESHWRIGHT_BUILT_IN(data<ShardSource>("shards",
                                      "Files of tokens: llm.c's, nanoGPT's or Megatron's."));

}  // namespace mw
