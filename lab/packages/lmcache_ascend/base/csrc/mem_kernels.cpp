// Host memory: wants the NUMA headers.
#include "mem_kernels.h"
#include <numa.h>
#include <numaif.h>

int numa_node_of_cpu_zero() { return numa_available() < 0 ? 0 : numa_max_node() + 1; }
