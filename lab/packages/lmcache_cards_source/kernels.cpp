/* Kernels of lmcache for simulated hosts: they load beside the torch that they were built against, and no other. */
#include <Python.h>
#include <torch/lab_abi.h>

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, LAB_NAME, NULL, -1, NULL};

PyMODINIT_FUNC LAB_INIT(void) {
    LAB_TORCH_ABI();
    return PyModule_Create(&definition);
}
