// `mw.pack`: another source's samples as documents, which a policy lays into rows.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "inner_source.h"
#include "length_distribution.h"
#include "meshwright/choice.h"
#include "meshwright/data.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/packing.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

// Tokens of one document that are adjacent in a sample of the inner source, and in a row.
struct Piece {
  std::int64_t sample = 0, from = 0, size = 0;
  bool ends = false;  // whether the document ends here
};
using Row = std::vector<Piece>;

// Pairs of a token and one that it sees in a document: the work of attention.
double pairs_of(std::int64_t length) {
  const auto tokens = static_cast<double>(length);
  return tokens * (tokens + 1) / 2;
}

using Rows = std::vector<std::vector<std::size_t>>;  // the documents of each row

std::uint64_t digest_of(const Json& json) {
  const std::string text = json.dump();
  Fnv1a<std::uint64_t> digest;
  digest.add(text.data(), text.size());
  return digest.value();
}

// The rows that a script's function returns, which counts documents from 1.
class ScriptPacking final : public Packing {
 public:
  explicit ScriptPacking(const Values& values) : call_(values.function("into")) {}
  Rows rows(const PackingRequest& request) const override;

 private:
  const std::function<Json(const std::vector<Json>&)> call_;
};

[[noreturn]] void refuse_rows(const PackingRequest& request, const std::string& message) {
  throw Error(Stage::run, "data.pack", "data.into", message,
              fmt::format("return at most {} lists, which have each of the {} documents once",
                          request.rows, request.lengths.size()));
}

// Whether each document lies in one row. `first`: the number of the first document, for messages.
void check_rows(const Rows& rows, const PackingRequest& request, std::size_t first) {
  if (static_cast<std::int64_t>(rows.size()) > request.rows)
    refuse_rows(request, fmt::format("the policy returned {} for {} rows",
                                     plural(rows.size(), "list"), request.rows));
  std::vector<std::size_t> row_of(request.lengths.size(), 0);
  const auto name = [&](std::size_t document) {
    return fmt::format("document {} ({})", document + first,
                       plural(request.lengths[document], "token"));
  };
  for (std::size_t row = 1; row <= rows.size(); ++row) {
    for (const std::size_t document : rows[row - 1]) {
      if (document >= row_of.size())
        refuse_rows(request, fmt::format("row {} has the document {}", row, document + first));
      if (row_of[document] > 0)
        refuse_rows(request, fmt::format("{} is in row {} and again in row {}", name(document),
                                         row_of[document], row));
      row_of[document] = row;
    }
  }
  const auto lost = std::find(row_of.begin(), row_of.end(), 0) - row_of.begin();
  if (lost < std::ssize(row_of))
    refuse_rows(request, name(static_cast<std::size_t>(lost)) + " is in no row");
}

class PackedSource final : public TokenSource {
 public:
  static Options options();
  PackedSource(const Values& values, const DataContext& context);

  std::int64_t vocab() const override { return inner_->vocab(); }
  std::int64_t tokens() const override { return inner_->tokens(); }
  bool masks_labels() const override { return true; }
  bool has_documents() const override { return true; }
  std::string content() const override {
    return inner_->content() + (lengths_ ? lengths_->digest() : "");
  }
  std::vector<SourceFile> files() const override { return inner_->files(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::vector<std::int64_t> documents(std::int64_t k, std::int64_t sequence) const override;
  std::vector<std::int64_t> order_of_rows(std::int64_t first,
                                          const std::vector<std::int64_t>& groups,
                                          std::int64_t sequence) const override;

 private:
  // Tokens and labels of a sample of the inner source.
  struct Sample {
    std::vector<std::int64_t> tokens, labels;
  };
  struct Window {
    std::int64_t number, sequence;
    std::vector<Row> rows;
    std::map<std::int64_t, std::shared_ptr<const Sample>> read;  // samples that were read
  };

  Window& window_of(std::int64_t k, std::int64_t sequence) const;  // called under the lock
  Row row(std::int64_t k, std::int64_t sequence) const;
  std::shared_ptr<const Sample> read(std::int64_t k, std::int64_t sample,
                                     std::int64_t sequence) const;
  Row documents_of(std::int64_t sample, std::int64_t sequence) const;
  std::vector<Row> lay_rows(const Row& documents, std::int64_t sequence) const;
  std::shared_ptr<const TokenSource> inner_;
  std::optional<LengthDistribution> lengths_;
  std::unique_ptr<const Packing> policy_;
  std::string policy_name_;  // empty: a function of the script
  // The digest of the rows that the policy returned, by the digest of the lengths.
  mutable std::unordered_map<std::uint64_t, std::uint64_t> answers_;
  std::int64_t window_;
  bool balance_ranks_;
  std::uint64_t seed_;
  std::size_t most_known_;  // windows that are kept: those of a step, and one that it shares
  mutable std::mutex mutex_;
  mutable std::deque<Window> known_;
};

Options PackedSource::options() {
  return Options()
      .any("data", "the source whose samples are packed: mw.shards { … }, mw.synthetic { … }")
      .names(Kind::data)
      .positional("data")
      .any("lengths",
           "the lengths of documents: \"own\", those of the source's documents; or drawn from "
           "mw.lognormal { median, sigma }, mw.uniform { least, most }, a number of tokens, or a "
           ".csv of length,count. A document ends where its sample does")
      .fallback("own")
      .any("into",
           "how documents lie in rows: \"sequential\", as in the source; \"greedy\", the longest "
           "first, each in the first row that has room; \"balanced\", each in the row with the "
           "least work of attention that has room; a plugin's policy; or a function(lengths, rows, "
           "work) that returns for each row the list of its documents. What is too long for its "
           "row goes on in others, as a document of its own")
      .names(Kind::packing)
      .fallback("sequential")
      .integer("window",
               "samples whose documents are packed together; by default the batch, up to 1024")
      .range(1, 4096)
      .optional()
      .unit("samples")
      .boolean("balance_ranks",
               "whether a step's rows go to microbatches and ranks so that these have equal work; "
               "by default where into = \"balanced\", or as a plugin's policy says")
      .optional()
      .integer("sequence", "tokens of one sample")
      .optional()
      .at_least(1)
      .unit("tokens");
}

PackedSource::PackedSource(const Values& values, const DataContext& context)
    : window_(values.has("window") ? values.integer("window")
                                   : std::min<std::int64_t>(context.batch, 1024)),
      seed_(mix64(static_cast<std::uint64_t>(context.seed) ^ 0x7061636b)),
      most_known_(static_cast<std::size_t>(context.batch / window_) + 2) {
  Problems problems;
  const auto refuse = [&](const char* option, const std::string& message, std::string hint) {
    problems.add(Stage::options, "option.value", option, message, std::move(hint));
  };
  inner_ = inner_source(values, values.at("data"), "data", context);

  const Json& lengths = values.at("lengths");
  if (lengths != "own") lengths_.emplace(lengths, "lengths", values);
  const Json& into = values.at("into");
  if (values.is_function("into")) {
    policy_ = std::make_unique<ScriptPacking>(values);
  } else if (const auto named = named_choice(into)) {
    const Registration& packing = values.catalog().find(Kind::packing, named->name, "into");
    Values of_policy = packing.options().read(named->options, values.path("into"), problems);
    of_policy.set_reach(values.reach());
    if (problems.empty()) policy_ = make<Packing>(packing, of_policy);
    policy_name_ = named->name;
  } else {
    refuse(
        "into", fmt::format("got {}", lua_text(into)),
        names_of(values.catalog(), Kind::packing, true) + ", or a function(lengths, rows, work)");
  }
  if (!lengths_ && !inner_->has_documents()) {
    refuse("lengths", "\"own\", and the source that is packed has no documents",
           "mw.shards { …, documents = … } has some; or lengths = mw.lognormal { median = 600, "
           "sigma = 1.2 }");
  }
  problems.throw_if_any();
  balance_ranks_ = values.has("balance_ranks") ? values.flag("balance_ranks") : policy_->balances();
}

// Documents of a sample, as they lie in it.
Row PackedSource::documents_of(std::int64_t sample, std::int64_t sequence) const {
  Row documents;
  if (lengths_) {
    const std::uint64_t stream = mix64(seed_ ^ mix64(static_cast<std::uint64_t>(sample)));
    for (std::int64_t from = 0, size = 0; from < sequence; from += size) {
      const std::int64_t length = lengths_->draw(mix64(stream + static_cast<std::uint64_t>(from)));
      size = std::min(length, sequence - from);
      documents.push_back({sample, from, size, size == length});
    }
    return documents;
  }
  std::vector<std::int64_t> begins = inner_->documents(sample, sequence);
  begins.push_back(sequence);
  for (std::size_t d = 0; d + 1 < begins.size(); ++d)  // the inner source masks their last labels
    documents.push_back({sample, begins[d], begins[d + 1] - begins[d], false});
  return documents;
}

PackedSource::Window& PackedSource::window_of(std::int64_t k, std::int64_t sequence) const {
  const std::int64_t number = k / window_;
  for (Window& one : known_)
    if (one.number == number && one.sequence == sequence) return one;
  Row all;
  for (k = number * window_; k < (number + 1) * window_; ++k) {
    const Row of_sample = documents_of(k, sequence);
    all.insert(all.end(), of_sample.begin(), of_sample.end());
  }
  Window made{number, sequence, lay_rows(all, sequence), {}};
  if (known_.size() == most_known_) known_.pop_back();
  return known_.emplace_front(std::move(made));
}

// Lays documents into rows by the policy. What does not fit its row fills the others.
std::vector<Row> PackedSource::lay_rows(const Row& documents, std::int64_t sequence) const {
  PackingRequest request{{}, {}, window_, sequence};
  for (const Piece& document : documents) {
    request.lengths.push_back(document.size);
    request.work.push_back(pairs_of(document.size));
  }
  const auto lay = [&] { return policy_->rows(request); };
  const Rows documents_of_row =
      policy_name_.empty()
          ? lay()
          : call_plugin({policy_name_, "data.into"}, "packed documents", lay, Stage::run);
  check_rows(documents_of_row, request, policy_name_.empty() ? 1 : 0);
  // A policy that answers the same question otherwise would give ranks other rows.
  const std::uint64_t answer = digest_of(documents_of_row);
  if (answers_.try_emplace(digest_of(request.lengths), answer).first->second != answer)
    throw Error(Stage::run, "data.pack", "data.into",
                "the policy returned other rows for the same lengths than before",
                "let it depend on its arguments alone");
  std::vector<Row> rows(static_cast<std::size_t>(window_));
  std::vector<std::int64_t> room(rows.size(), sequence);
  const auto put = [&](std::size_t row, Piece& piece) {
    const std::int64_t size = std::min(piece.size, room[row]);
    if (size == 0) return;
    rows[row].push_back({piece.sample, piece.from, size, piece.ends && size == piece.size});
    room[row] -= size;
    piece.from += size;
    piece.size -= size;
  };
  Row rest;
  for (std::size_t row = 0; row < documents_of_row.size(); ++row) {
    for (const std::size_t document : documents_of_row[row]) {
      Piece piece = documents[document];
      put(row, piece);
      if (piece.size > 0) rest.push_back(piece);
    }
  }
  for (Piece& piece : rest)
    for (std::size_t row = 0; row < rows.size(); ++row) put(row, piece);
  return rows;
}

Row PackedSource::row(std::int64_t k, std::int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  return window_of(k, sequence).rows[static_cast<std::size_t>(k % window_)];
}

// A sample of which row k has a piece. Rows of a window share what they read, unless it is much.
std::shared_ptr<const PackedSource::Sample> PackedSource::read(std::int64_t k, std::int64_t sample,
                                                               std::int64_t sequence) const {
  constexpr std::int64_t most_kept = std::int64_t{1} << 23;  // tokens of all windows
  const bool keeps = window_ * sequence <= most_kept / static_cast<std::int64_t>(most_known_);
  if (keeps) {
    const std::lock_guard lock(mutex_);
    const auto& known = window_of(k, sequence).read;
    if (const auto found = known.find(sample); found != known.end()) return found->second;
  }
  const auto made = std::make_shared<Sample>();
  made->tokens.resize(static_cast<std::size_t>(sequence));
  made->labels.resize(made->tokens.size());
  inner_->sample(sample, sequence, made->tokens.data(), made->labels.data());
  if (keeps) {
    const std::lock_guard lock(mutex_);
    window_of(k, sequence).read.emplace(sample, made);
  }
  return made;
}

void PackedSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                          std::int64_t* labels) const {
  std::map<std::int64_t, std::shared_ptr<const Sample>> samples;
  for (const Piece& piece : row(k, sequence)) {
    auto& sample = samples[piece.sample];
    if (sample == nullptr) sample = read(k, piece.sample, sequence);
    inputs = std::copy_n(sample->tokens.begin() + piece.from, piece.size, inputs);
    labels = std::copy_n(sample->labels.begin() + piece.from, piece.size, labels);
    if (piece.ends) labels[-1] = -1 - inputs[-1];
  }
}

std::vector<std::int64_t> PackedSource::documents(std::int64_t k, std::int64_t sequence) const {
  std::vector<std::int64_t> begins;
  std::int64_t at = 0;
  for (const Piece& piece : row(k, sequence)) {
    begins.push_back(at);
    at += piece.size;
  }
  return begins;
}

// The rows with the most work first, each to the group that has the least work and room for it.
std::vector<std::int64_t> PackedSource::order_of_rows(std::int64_t first,
                                                      const std::vector<std::int64_t>& groups,
                                                      std::int64_t sequence) const {
  if (!balance_ranks_) return {};
  std::vector<std::pair<double, std::int64_t>> rows;  // work, negated, and number
  for (std::int64_t k = 0; k < std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
       ++k) {
    double work = 0;
    for (const Piece& piece : row(first + k, sequence)) work += pairs_of(piece.size);
    rows.emplace_back(-work, k);
  }
  std::sort(rows.begin(), rows.end());
  std::vector<std::vector<std::int64_t>> members(groups.size());
  std::vector<double> sums(groups.size(), 0);
  for (const auto& [work, k] : rows) {
    std::optional<std::size_t> best;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const bool room = static_cast<std::int64_t>(members[g].size()) < groups[g];
      if (room && (!best || sums[g] < sums[*best])) best = g;
    }
    members[*best].push_back(k);
    sums[*best] -= work;
  }
  std::vector<std::int64_t> order;
  for (const auto& group : members) order.insert(order.end(), group.begin(), group.end());
  return order;
}

// Called under the source's lock.
Rows ScriptPacking::rows(const PackingRequest& request) const {
  Json returned;
  try {
    returned = call_({Json(request.lengths), Json(request.rows), Json(request.work)});
  } catch (const Error& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) problem.stage = Stage::run;
    throw Error(std::move(problems));
  }
  if (!returned.is_array())
    refuse_rows(request, fmt::format("the function returned {} for {} rows", describe(returned),
                                     request.rows));
  Rows rows;
  for (const Json& row : returned) {
    rows.emplace_back();
    if (!row.is_array() && !row.empty())
      refuse_rows(request, fmt::format("row {} is {}, and no list of documents", rows.size(),
                                       describe(row)));
    for (const Json& one : row) {
      const auto number = whole_number(one);
      if (!number || *number < 1)
        refuse_rows(request, fmt::format("row {} has the document {}", rows.size(), lua_text(one)));
      rows.back().push_back(static_cast<std::size_t>(*number) - 1);
    }
  }
  return rows;
}

}  // namespace

MESHWRIGHT_BUILT_IN(data<PackedSource>(
    "pack", "Another source's samples as documents that do not see each other, laid into rows."));

}  // namespace mw
