#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ringlab {

/// A count or an index as std::size_t, for containers.
constexpr std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

/// The least multiple that is not below `value`.
template <class Integer>
constexpr Integer rounded_up(Integer value, std::type_identity_t<Integer> multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace ringlab
