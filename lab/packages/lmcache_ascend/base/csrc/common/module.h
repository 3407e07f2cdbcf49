// Makes a module with one function that names what it was built for.
#pragma once
#include <Python.h>

inline PyObject *lab_module(const char *name, PyMethodDef *methods, const char *line) {
  static PyModuleDef definition;
  definition = {PyModuleDef_HEAD_INIT, name, "Stand-in of the lmcache-fleet lab.", -1, methods,
                nullptr, nullptr, nullptr, nullptr};
  PyObject *module = PyModule_Create(&definition);
  if (module != nullptr) {
    PyModule_AddStringConstant(module, "built_for", line);
  }
  return module;
}
