// The simulated accelerator itself: it computes what the CPU does, finds what no wait orders, and
// keeps quiet where all is in order.
#include <c10/core/StreamGuard.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "meshwright/engine/host.h"
#include "on_devices.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT
using Catch::Contains;

namespace {

const at::Device here(at::kPrivateUse1, 0);

void order(c10::Stream first, c10::Stream then) {
  wait_for(then, record_event(first), [] { return "a test's"; });
}

template <class Do>
void on(c10::Stream stream, const Do& what) {
  const c10::StreamGuard guard(stream);
  what();
}

void same(const at::Tensor& device, const at::Tensor& cpu) {
  CHECK(device.device().type() == at::kPrivateUse1);
  CHECK(at::equal(device.cpu(), cpu));
}

}  // namespace

TEST_CASE("Ops give the bits that the CPU gives") {
  const OnDevices devices(Ranks::apart);
  const at::Tensor a = at::randn({4, 6}), b = at::randn({6, 3}), long_ids = at::randint(4, {5});
  const at::Tensor x = a.to(here), y = b.to(here), ids = long_ids.to(here);
  same(at::matmul(x, y), at::matmul(a, b));
  same(x.t().slice(0, 1, 3).softmax(-1), a.t().slice(0, 1, 3).softmax(-1));
  same(at::embedding(x, ids), at::embedding(a, long_ids));
  same(at::layer_norm(x, {6}), at::layer_norm(a, {6}));
  same(at::cat({x, x}, 1), at::cat({a, a}, 1));
  same(x.index_select(0, ids), a.index_select(0, long_ids));
  same(std::get<1>(x.topk(2)), std::get<1>(a.topk(2)));
  same(x.to(at::kBFloat16).add(1), a.to(at::kBFloat16).add(1));
  at::Tensor out = at::empty({0}, x.options());
  same(at::add_out(out, x, x), a + a);  // resized
  x.narrow(1, 0, 2).copy_(x.narrow(1, 2, 2));
  a.narrow(1, 0, 2).copy_(a.narrow(1, 2, 2));
  same(x, a);
  CHECK_THROWS_WITH(x + a, Contains("a CPU tensor beside"));
  CHECK(reported() == "");
}

TEST_CASE("An access that no wait orders names both ops and streams") {
  const OnDevices devices(Ranks::apart);
  const c10::Stream first = current_stream(here), other = new_stream(here);
  at::Tensor t = at::zeros({64}, here), u = at::zeros({64}, here);
  order(first, other);
  t.add_(1);
  on(other, [&] { u.copy_(t); });
  const std::string report = reported();
  CHECK_THAT(report, Contains("_copy_from on sim:0 stream 1 reads"));
  CHECK_THAT(report, Contains("aten::add_.Tensor on sim:0 stream 0 writes"));
  order(first, other);
  on(other, [&] { u.copy_(t); });
  CHECK(reported() == "");
  t.add_(1);  // while the copy still reads
  CHECK_THAT(reported(), Contains("writes"));
  order(other, first);
  order(first, other);
  t.slice(0, 0, 32).add_(1);
  on(other, [&] { t.slice(0, 32, 64).add_(1); });
  CHECK(reported() == "");  // other halves of one block
  on(other, [&] { t.slice(0, 31, 64).add_(1); });
  CHECK_THAT(reported(), Contains("bytes 124..256"));
  first.synchronize();
  other.synchronize();
  u.copy_(t);
  CHECK(reported() == "");  // the host has waited for both
}

TEST_CASE("A free in use is found, unless a wait or a mark orders it") {
  const OnDevices devices(Ranks::apart);
  const c10::Stream first = current_stream(here), other = new_stream(here);
  at::Tensor u = at::zeros({8}, here);
  const auto use = [&](bool marks, bool waits) {
    at::Tensor t = at::ones({8}, here);
    order(first, other);
    on(other, [&] { u.copy_(t); });
    if (marks) t.record_stream(other);
    if (waits) order(other, first);
    t.reset();
    return reported();
  };
  CHECK_THAT(use(false, false),
             Contains("is freed while aten::_copy_from on sim:0 stream 1 reads"));
  CHECK(use(true, false).empty());
  CHECK(use(false, true).empty());
}

TEST_CASE("Page-locked memory: copies land when the host has waited") {
  const OnDevices devices(Ranks::apart);
  at::Tensor host = at::zeros({4}, at::TensorOptions().pinned_memory(true));
  const at::Tensor t = at::ones({4}, here);
  CHECK(host.is_pinned());
  host.copy_(t, /*non_blocking=*/true);
  CHECK_FALSE(host[0].item<float>() == 1);
  current_stream(here).synchronize();
  CHECK(host[0].item<float>() == 1);
  t.copy_(host, /*non_blocking=*/true);
  host.fill_(2);
  current_stream(here).synchronize();
  CHECK_THAT(reported(), Contains("the host wrote page-locked memory"));
}

TEST_CASE("A wait of the host that nobody declared is reported where none may be") {
  const OnDevices devices(Ranks::apart);
  const at::Tensor t = at::ones({4}, here);
  t.sum().item<float>();
  CHECK(reported() == "");
  const sim::NoHostWaits watch;
  t.sum().item<float>();
  CHECK_THAT(reported(), Contains("host wait: aten::_local_scalar_dense"));
  t.nonzero();
  CHECK_THAT(reported(), Contains("host wait: aten::nonzero"));
  {
    const HostWait wait("a test");
    t.cpu();
  }
  CHECK(reported() == "");
  CHECK(sim::host_waits().at("a test") == 1);
}

TEST_CASE("The host cannot touch a device's memory") {
  const OnDevices devices(Ranks::apart);
  const at::Tensor t = at::ones({4}, here);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // not the test program's, which tells of it
    (void)*static_cast<volatile char*>(t.data_ptr());
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}
