"""What this build is for; builds for other cards have another one."""

DEVICE = "npu"
KERNELS = "lmcache_ascend.ops"
MISSING = "NPU requires the LMCache-Ascend native ops (lmcache_ascend.ops): Install LMCache-Ascend and retry."
