// The loops for AVX-512.
#define MW_VECTOR_ISA avx512
#include "../loops.h"
