#pragma once
#include "hcomm_version.h"
