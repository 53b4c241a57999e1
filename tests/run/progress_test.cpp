// The progress line: what it says, and how it is rewritten on a terminal.
#include "app/progress.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

namespace {

// A stream into memory; what was written so far.
class Stream {
 public:
  Stream() : file_(::open_memstream(&text_, &size_)) {}
  ~Stream() {
    std::fclose(file_);
    std::free(text_);  // NOLINT: open_memstream's
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

mw::ProgressStep report(std::int64_t step, double seconds = 0.5) {
  return {step, 5.0 - 0.5 * static_cast<double>(step), seconds, 1000, 312 << 20};
}

mw::ProgressStyle rewriting() {
  mw::ProgressStyle style;
  style.rewrite = true;
  return style;
}

}  // namespace

TEST_CASE("durations and counts read as people write them") {
  CHECK(mw::format_duration(0) == "0 s");
  CHECK(mw::format_duration(8.4) == "8 s");
  CHECK(mw::format_duration(59.6) == "1:00");
  CHECK(mw::format_duration(65) == "1:05");
  CHECK(mw::format_duration(7380) == "2:03:00");
  CHECK(mw::format_duration(3 * 86400 + 4 * 3600 + 100) == "3 d 4 h");
  CHECK(mw::format_duration(std::nan("")) == "?");
  CHECK(mw::format_duration(-1) == "?");
  CHECK(mw::format_duration(std::numeric_limits<double>::infinity()) == "?");
  CHECK(mw::format_count(950) == "950");
  CHECK(mw::format_count(999.6) == "1.00k");
  CHECK(mw::format_count(18234) == "18.2k");
  CHECK(mw::format_count(182340) == "182k");
  CHECK(mw::format_count(1.25e6) == "1.25M");
}

TEST_CASE("a line holds step, loss, speed, memory and what is left") {
  const mw::ProgressLine line{7, 100, 5.43211, 18234, 312 << 20, 65};
  const std::string text = mw::format_progress(line);
  CHECK(text == "step   7/100  loss 5.4321  18.2k tokens/s  312 MiB/rank  1:05 left");
  CHECK(mw::format_progress(line, false, text.size()) == text);
  CHECK(mw::format_progress(line, false, text.size() - 1) ==
        "step   7/100  loss 5.4321  18.2k tokens/s  312 MiB/rank");
  CHECK(mw::format_progress(line, false, 3) == "step   7/100");
  const std::string colored = mw::format_progress(line, true, text.size());
  CHECK_THAT(colored, Catch::Contains("\x1b[2m left\x1b[0m") && !Catch::Contains("\x1b[31m"));
  const mw::ProgressLine bad{100, 100, std::nan(""), 1, 0, 0};
  CHECK_THAT(mw::format_progress(bad, true), Catch::Contains("\x1b[31mnan"));
  CHECK(mw::format_progress(bad) == "step 100/100  loss nan  1 tokens/s");
}

TEST_CASE("plain lines: the first, one an interval, the last") {
  Stream out;
  {
    mw::Progress progress(out.file(), 10, mw::ProgressStyle{});
    for (int step = 0; step < 10; ++step) progress.step(report(step), 2.0 * step);
  }
  CHECK(out.text() ==
        "step  1/10  loss 5.0000  2.00k tokens/s  312 MiB/rank  5 s left\n"
        "step  4/10  loss 3.5000  2.00k tokens/s  312 MiB/rank  3 s left\n"
        "step  7/10  loss 2.0000  2.00k tokens/s  312 MiB/rank  2 s left\n"
        "step 10/10  loss 0.5000  2.00k tokens/s  312 MiB/rank\n");
}

TEST_CASE("on a terminal one line is rewritten, and ends in its last state") {
  Stream out;
  mw::Progress progress(out.file(), 100, rewriting());
  progress.step(report(0), 0);
  progress.step(report(1), 0.01);  // too soon to show
  CHECK_THAT(out.text(), !Catch::Contains("2/100") && !Catch::Contains("\n"));
  progress.step(report(2), 0.2);
  CHECK_THAT(out.text(), Catch::Contains("\r\x1b[2Kstep   3/100"));
  progress.note("a note");
  CHECK_THAT(out.text(), Catch::Contains("\r\x1b[2Ka note\nstep   3/100"));
  progress.step(report(3), 0.21);
  progress.finish();
  CHECK_THAT(out.text(), Catch::Contains("step   4/100") && Catch::EndsWith("left\n"));
  const std::string done = out.text();
  progress.finish();
  CHECK(out.text() == done);
}

TEST_CASE("a slow first step does not spoil the estimate") {
  Stream out;
  mw::Progress progress(out.file(), 12, mw::ProgressStyle{});
  progress.step(report(0, 60), 60);
  progress.step(report(1, 1), 70);
  CHECK_THAT(out.text(), Catch::Contains("step  1/12") && Catch::Contains("11:00 left") &&
                             Catch::EndsWith("10 s left\n"));
}

TEST_CASE("a file is no terminal") {
  Stream out;
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  const auto style = mw::style_for(file);
  std::fclose(file);
  CHECK_FALSE(style.rewrite);
  CHECK_FALSE(style.color);
}
