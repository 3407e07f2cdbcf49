extern "C" const char *lab_kernel_soc() { return LAB_SOC; }
