// The entry of c_ops.
#include "common/module.h"
#include "mem_kernels.h"
#include <torch/lab_abi.h>

extern "C" int lab_cache_kernels();
extern "C" int aclInit(const char *);

static PyObject *nodes(PyObject *, PyObject *) { return PyLong_FromLong(numa_node_of_cpu_zero()); }

static PyObject *ready(PyObject *, PyObject *) {
  // a symbol that only the torch this was built against has
  return PyBool_FromLong(LAB_TORCH_ABI() == 0 && lab_cache_kernels() == 0 && aclInit(nullptr) == 0);
}

static PyMethodDef methods[] = {{"numa_nodes", nodes, METH_NOARGS, nullptr},
                                {"ready", ready, METH_NOARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};

PyMODINIT_FUNC PyInit_c_ops(void) { return lab_module("c_ops", methods, build_target()); }
