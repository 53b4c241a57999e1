// Preloaded into the program: it stops before its `main`, and each request that comes over the
// socket LOADED_SOCKET is a call of it, in a process forked from the one that waits. So its
// libraries are loaded once for all calls of a test: that takes 0.3 s, mostly to register what
// libtorch can compute. tests/support/loaded.py asks.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

extern char** environ;

namespace {

using Main = int(int, char**, char**);
Main* program = nullptr;

// The head of a call's message. The message also carries the descriptors of the call's standard
// streams and of its working directory.
struct Request {
  std::uint32_t arguments, variables, bytes;
};
constexpr std::size_t files_of_call = 4;

[[noreturn]] void give_up() {
  ::_exit(EXIT_FAILURE);
}

bool receive(int socket, Request& request, int (&files)[files_of_call]) {
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof files)] = {};
  iovec part{&request, sizeof request};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  const ssize_t size = ::recvmsg(socket, &message, MSG_WAITALL);
  if (size == 0) return false;
  const cmsghdr* first = CMSG_FIRSTHDR(&message);
  if (size != sizeof request || first == nullptr || first->cmsg_len != CMSG_LEN(sizeof files))
    give_up();
  std::memcpy(files, CMSG_DATA(first), sizeof files);
  return true;
}

void send(int socket, std::int32_t number) {
  if (::write(socket, &number, sizeof number) != sizeof number) give_up();
}

std::vector<char*> strings(char*& text, std::uint32_t count) {
  std::vector<char*> found;
  for (; count > 0; --count, text += std::strlen(text) + 1) found.push_back(text);
  found.push_back(nullptr);
  return found;
}

int call(const Request& request, const int (&files)[files_of_call], char* text) {
  for (int stream = 0; stream < 3; ++stream) ::dup2(files[stream], stream);
  if (::fchdir(files[3]) != 0) give_up();
  for (const int file : files) ::close(file);
  static std::vector<char*> arguments, variables;
  arguments = strings(text, request.arguments);
  variables = strings(text, request.variables);
  environ = variables.data();
  return program(static_cast<int>(request.arguments), arguments.data(), environ);
}

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

int wait_for_calls(int, char**, char**) {
  const int socket = std::atoi(std::getenv("LOADED_SOCKET"));
  if (threads() != 1) give_up();  // a fork has the thread that forks, and no other
  Request request{};
  int files[files_of_call];
  while (receive(socket, request, files)) {
    std::vector<char> text(request.bytes);
    if (::recv(socket, text.data(), text.size(), MSG_WAITALL) != ssize_t{request.bytes}) give_up();
    const pid_t process = ::fork();
    if (process == 0) {
      ::close(socket);
      return call(request, files, text.data());
    }
    for (const int file : files) ::close(file);
    int status = 0;
    send(socket, process);
    if (::waitpid(process, &status, 0) != process) give_up();
    send(socket, status);
  }
  ::_exit(EXIT_SUCCESS);
}

}  // namespace

extern "C" int __libc_start_main(Main* main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*unload)(), void* stack) {
  program = main;
  const auto start =
      reinterpret_cast<decltype(&__libc_start_main)>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(wait_for_calls, argc, argv, init, fini, unload, stack);
}
