#pragma once

#include <cstddef>
#include <cstdint>

namespace ringlab::layouts::testing {

/// Calls of operator new in this program so far.
std::int64_t allocations();

/// Bytes that operator new holds now, and the most that it ever held at once since reset_peak().
std::size_t allocated_bytes();
std::size_t peak_bytes();
void reset_peak();

}  // namespace ringlab::layouts::testing
