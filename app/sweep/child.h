// The process of one cell: started, limited, waited for, and what became of it in a sentence.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/process.h"

namespace mw {

// Starts this program again, with the words of `start` as its arguments, in a process group of its
// own, so that Ctrl-C is this process' to handle; it is killed when this process ends, however.
// Throws Error (run).
pid_t start_child(ProcessStart start);

// Bytes that ProcessStart::memory would count for this process, before it has done anything much.
std::int64_t allocated_here();

// How many processes the kernel has killed for want of memory in this process' control group, or on
// the machine if no group is to be seen; -1: not known.
std::int64_t kills_for_memory();

// Why a process that left no result ended: "crashed: SIGSEGV (…)", "out of memory: …". `output`:
// the file of its output, whose last words are told. `killed_for_memory`: the kernel killed some
// process for want of memory meanwhile.
std::string reason_of_end(int status, const std::string& output, bool killed_for_memory);

}  // namespace mw
