// What `meshwright plugins test` found: each check as it is over, and their number at the end.
#pragma once

#include <optional>
#include <string>

#include "app/output.h"
#include "meshwright/error.h"

namespace mw {

// `refused`: something that may refuse an experiment did, with a reason; nobody's fault by itself.
enum class KitVerdict : std::uint8_t { ok, refused, failed };

class KitReport {
 public:
  explicit KitReport(Output& output) : output_(output) {}

  // `subject`: what the next checks are about, "strategy mine".
  void begin(const std::string& subject);
  void ok(const std::string& check, const std::string& found = "");
  void refused(const std::string& check, const Error& why);
  void failed(const std::string& check, const std::string& found, const std::string& look_at);
  // Reports the error's first problem as what the checked thing did wrong.
  void failed(const std::string& check, const Error& why);

  // Prints how many checks have each verdict. Called once.
  void end();
  int failures() const { return failed_; }
  // The problem of the first thing that was refused since begin(); null: nothing was.
  const Problem* first_refusal() const { return refusal_ ? &*refusal_ : nullptr; }

 private:
  void add(const std::string& check, KitVerdict verdict, const std::string& found,
           const std::string& look_at, const std::string& code);

  Output& output_;
  std::string subject_;
  std::optional<Problem> refusal_;
  int ok_ = 0, refused_ = 0, failed_ = 0;
};

}  // namespace mw
