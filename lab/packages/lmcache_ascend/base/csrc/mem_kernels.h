#pragma once
int numa_node_of_cpu_zero();
const char *build_target();
