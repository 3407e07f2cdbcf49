// The HCCL channel: compiled against the headers of the hcomm submodule.
#include "common/module.h"
#include "hccl/hccl_network_pub.h"

static PyMethodDef methods[] = {{nullptr, nullptr, 0, nullptr}};

PyMODINIT_FUNC PyInit_hccl_npu_comms(void) {
  return lab_module("hccl_npu_comms", methods, "hcomm " LAB_HCOMM_VERSION);
}
