// The HIXL channel: compiled against the toolkit's runtime headers.
#include "common/module.h"
#include "rt_external.h"

static PyObject *devices(PyObject *, PyObject *) {
  int count = 0;
  rtGetDeviceCount(&count);
  return PyLong_FromLong(count);
}

static PyMethodDef methods[] = {{"devices", devices, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyMODINIT_FUNC PyInit_hixl_npu_comms(void) { return lab_module("hixl_npu_comms", methods, "hixl"); }
