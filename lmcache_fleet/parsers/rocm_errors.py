"""Error texts of AMD's tools."""

from __future__ import annotations

from lmcache_fleet.parsers.text import error_table

VENDOR = "rocm"

# Sources: issues of ROCm/ROCm and ROCm/rocm_smi_lib, and amd-smi's exceptions.
ERRORS = error_table(
    (
        "driver-not-loaded",
        r"driver not initialized|amdgpu not found in modules|rock module is not loaded|/dev/kfd.*no such file"
        r"|amdsmi_status_(?:driver_not_loaded|no_drv)|check amdgpu version and module status",
    ),
    ("permission-denied", r"/dev/kfd.*permission denied|not (?:a )?member of .*\bgroup\b|amdsmi_status_no_perm"),
    ("library-missing", r"unable to load (?:the )?\S*(?:rocm_smi|amd_smi|amdsmi)\S*"),
    ("hsa-failed", r"hsa api call failure|hsa_status_error|hsa_init failed"),
    ("smi-failed", r"rsmi_(?:init|status)\S* (?:failed|error)|amdsmi_status_(?!success)\w+|exception caught: rsmi"),
    ("no-devices", r"no amd gpus? |unable to detect any gpu|no amdgpu devices"),
)
