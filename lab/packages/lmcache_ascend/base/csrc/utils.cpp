#include "mem_kernels.h"
#include <acl/acl.h>

const char *build_target() { return "lab"; }
