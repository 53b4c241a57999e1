// Prints the checks of `meshwright plugins test`, a line each, for people and as JSON.
#include "app/kit/kit_report.h"

#include <fmt/format.h>

#include <array>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::array<const char*, 3> verdict_words = {"ok", "refused", "FAILED"};
constexpr std::array<const char*, 3> verdict_names = {"ok", "refused", "failed"};

}  // namespace

void KitReport::begin(const std::string& subject) {
  subject_ = subject;
  refusal_.reset();
  if (!output_.json()) output_.text(subject);
}

void KitReport::ok(const std::string& check, const std::string& found) {
  add(check, KitVerdict::ok, found, "", "");
}

void KitReport::refused(const std::string& check, const Error& why) {
  const Problem& first = why.problems().front();
  if (!refusal_) refusal_ = first;
  add(check, KitVerdict::refused, first.message, first.hint, first.code);
}

void KitReport::failed(const std::string& check, const std::string& found,
                       const std::string& look_at) {
  add(check, KitVerdict::failed, found, look_at, "");
}

void KitReport::failed(const std::string& check, const Error& why) {
  const Problem& first = why.problems().front();
  add(check, KitVerdict::failed, first.message, first.hint, first.code);
}

void KitReport::add(const std::string& check, KitVerdict verdict, const std::string& found,
                    const std::string& look_at, const std::string& code) {
  ++(verdict == KitVerdict::ok ? ok_ : verdict == KitVerdict::refused ? refused_ : failed_);
  const auto index = static_cast<std::size_t>(verdict);
  output_.result({{"kind", "check"},
                  {"of", subject_},
                  {"check", check},
                  {"status", verdict_names[index]},
                  {"found", found},
                  {"code", code.empty() ? Json() : Json(code)},
                  {"look_at", look_at.empty() ? Json() : Json(look_at)}});
  if (output_.json()) return;
  std::string text = fmt::format("  {:<8} {}", verdict_words[index], check);
  if (!found.empty()) text += ": " + found;
  if (!look_at.empty() && verdict == KitVerdict::failed) text += "\n           " + look_at;
  output_.text(text);
}

void KitReport::end() {
  output_.result({{"kind", "test"},
                  {"status", failed_ == 0 ? "ok" : "failed"},
                  {"ok", ok_},
                  {"refused", refused_},
                  {"failed", failed_}});
  if (output_.json()) return;
  output_.text(fmt::format("{}: {} ok, {} refused, {} failed",
                           plural(ok_ + refused_ + failed_, "check"), ok_, refused_, failed_));
}

}  // namespace mw
