#include <catch2/catch.hpp>

#include "common/versionlog/log_reader.h"
