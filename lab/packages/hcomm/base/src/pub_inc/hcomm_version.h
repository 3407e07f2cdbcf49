#pragma once
#define LAB_HCOMM_VERSION "@VERSION@"
