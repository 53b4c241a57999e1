// The loops for AVX2 and FMA.
#define MW_VECTOR_ISA avx2
#include "../loops.h"
