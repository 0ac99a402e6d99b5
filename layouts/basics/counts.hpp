#pragma once

#include <cstddef>
#include <cstdint>

namespace ringlab {

/// A count or an index as std::size_t, for containers.
constexpr std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace ringlab
