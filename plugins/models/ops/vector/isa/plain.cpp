// The loops for every CPU.
#define MW_VECTOR_ISA plain
#include "../loops.h"
