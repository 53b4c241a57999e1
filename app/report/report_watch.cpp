// A small HTTP server on the loopback address: the page at /, and at /stamp what tells a page that
// it is out of date. One thread: a page is made when a browser asks for it.
#include "app/report/report_watch.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "meshwright/engine/hash.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;
namespace http = boost::beast::http;
using boost::asio::ip::tcp;

namespace {

constexpr std::chrono::seconds browser_patience{20};          // before a silent browser is dropped
constexpr std::chrono::milliseconds between_stop_checks{50};  // whether the user pressed Ctrl-C

using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;

// The report's page, made again when its files have changed.
class WatchedReport {
 public:
  explicit WatchedReport(ReportInput input) : input_(std::move(input)) { page(); }

  const std::string& page() {
    const std::string now = stamp();
    if (now == input_.watch) return html_;
    input_.watch = now;
    try {
      html_ = make_report(input_).html;
    } catch (...) {
      input_.watch.clear();
      throw;
    }
    return html_;
  }

  // A hash, in sixteen digits, of the names, sizes and times of all files that the report reads.
  std::string stamp() const {
    std::map<std::string, std::pair<std::uintmax_t, std::int64_t>> files;
    for (const fs::path& path : input_.paths) {
      add(path, files);
      std::error_code error;
      fs::recursive_directory_iterator entry(path, fs::directory_options::skip_permission_denied,
                                             error);
      for (const fs::recursive_directory_iterator end; !error && entry != end;
           entry.increment(error)) {
        // A run's hidden copy changes places with the run file, whose own time says so.
        const bool hidden = entry->path().filename().string().starts_with('.');
        if (hidden) entry.disable_recursion_pending();
        if (!hidden && is_read(entry->path())) add(entry->path(), files);
      }
    }
    Fnv1a<std::uint64_t> hash;
    for (const auto& [name, facts] : files) {
      hash.add(name.data(), name.size());
      hash.add(&facts.first, sizeof facts.first);
      hash.add(&facts.second, sizeof facts.second);
    }
    return fmt::format("{:016x}", hash.value());
  }

 private:
  static bool is_read(const fs::path& path) {
    const std::string ending = path.extension().string();
    return ending == ".h5" || ending == ".json" || ending == ".jsonl";
  }
  static void add(const fs::path& path,
                  std::map<std::string, std::pair<std::uintmax_t, std::int64_t>>& files) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return;
    const auto size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    files[path.string()] = {size, static_cast<std::int64_t>(time)};
  }

  ReportInput input_;
  std::string html_;
};

Response text_response(http::status status, const std::string& text) {
  Response response(status, 11);
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = text;
  return response;
}

// A page of another site may send its visitor's browser here under a name of its own (DNS
// rebinding): only the loopback names are answered.
bool is_for_us(const Request& request) {
  std::string host(request[http::field::host]);
  if (const std::size_t colon = host.rfind(':'); colon != std::string::npos) host.resize(colon);
  return host == "127.0.0.1" || host == "localhost";
}

Response answer_to(const Request& request, WatchedReport& report) try {
  const std::string target(request.target());
  if (!is_for_us(request))
    return text_response(http::status::forbidden, "this page is for 127.0.0.1 alone\n");
  if (request.method() != http::verb::get)
    return text_response(http::status::method_not_allowed, "this page can only be read: GET\n");
  if (target == "/stamp") return text_response(http::status::ok, report.stamp());
  if (target != "/") return text_response(http::status::not_found, "the report is at /\n");
  Response response = text_response(http::status::ok, report.page());
  response.set(http::field::content_type, "text/html; charset=utf-8");
  return response;
} catch (const Error& error) {  // files that come and go: the page asks again
  return text_response(http::status::service_unavailable, error.problems().front().text() + "\n");
} catch (const std::exception& error) {
  return text_response(http::status::internal_server_error, fmt::format("{}\n", error.what()));
}

// One connection: a request, its answer, the end.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, WatchedReport& report)
      : stream_(std::move(socket)), report_(report) {}

  void begin() {
    stream_.expires_after(browser_patience);
    http::async_read(stream_, buffer_, request_,
                     [self = shared_from_this()](boost::beast::error_code error, std::size_t) {
                       if (!error) self->respond();
                     });
  }

 private:
  void respond() {
    response_ = answer_to(request_, report_);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.keep_alive(false);
    response_.prepare_payload();
    stream_.expires_after(browser_patience);
    http::async_write(stream_, response_,
                      [self = shared_from_this()](boost::beast::error_code, std::size_t) {
                        boost::beast::error_code ignored;
                        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                      });
  }

  boost::beast::tcp_stream stream_;
  WatchedReport& report_;
  boost::beast::flat_buffer buffer_;
  Request request_;
  Response response_;
};

class Listener {
 public:
  Listener(boost::asio::io_context& context, int port, WatchedReport& report)
      : acceptor_(context), later_(context), report_(report) {
    boost::beast::error_code error;
    const tcp::endpoint at(boost::asio::ip::address_v4::loopback(),
                           static_cast<std::uint16_t>(port));
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(boost::asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(boost::asio::socket_base::max_listen_connections, error);
    if (error)
      throw Error(Stage::options, "watch.port", "",
                  fmt::format("--port {}: cannot listen there: {}", port, error.message()),
                  "name another port, or leave --port out for one that is free");
    accept();
  }
  int port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](boost::beast::error_code error, tcp::socket socket) {
      if (!error) {
        std::make_shared<Session>(std::move(socket), report_)->begin();
        return accept();
      }
      // Where descriptors have run out, the next call would fail at once too.
      later_.expires_after(between_failures);
      later_.async_wait([this](boost::beast::error_code) { accept(); });
    });
  }

  static constexpr std::chrono::milliseconds between_failures{200};
  tcp::acceptor acceptor_;
  boost::asio::steady_timer later_;
  WatchedReport& report_;
};

}  // namespace

void serve_report(const ReportInput& input, int port, Output& output) {
  stop_on_signals();
  WatchedReport report(input);
  boost::asio::io_context context(1);
  const Listener listener(context, port, report);
  const std::string address = fmt::format("http://127.0.0.1:{}/", listener.port());
  output.text(fmt::format("watching at {}; Ctrl-C ends it", address));
  output.result({{"kind", "watch"}, {"url", address}});
  while (!stop_requested()) context.run_for(between_stop_checks);
}

}  // namespace mw
