// Has the library of vector functions choose its kernels before several threads want them.
#pragma once

namespace mw {

// The first call of exp, log, sqrt and their like, in float32 and float64, in this thread; once in
// a process, 1.4 ms. Before kernels run in more than one thread: oneMKL 2024, which libtorch has in
// it, chooses a function's kernel in the function's first call, and of two threads that make it at
// once one may be given a kernel of 11 bits (PyTorch's issue 188792). The numbers of that one call
// are then wrong in their fifth digit, and no later ones are.
void settle_vector_math();

}  // namespace mw
