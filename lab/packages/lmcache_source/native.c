/* The common native part of lmcache, for simulated hosts: a module that can be imported. */
#include <Python.h>

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lmcache_native", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_lmcache_native(void) { return PyModule_Create(&definition); }
