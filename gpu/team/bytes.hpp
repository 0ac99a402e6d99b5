#pragma once

#include "gpu/team/team.hpp"

#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace ringlab::gpu {

// Members exchange vectors, one after another in one piece of memory. take() throws Error if the bytes end too early.

template <class Element>
void append(Bytes& bytes, const std::vector<Element>& values) {
    static_assert(std::is_trivially_copyable_v<Element>);
    const std::size_t count = values.size(), begin = bytes.size();
    bytes.resize(begin + sizeof(count) + count * sizeof(Element));
    std::memcpy(bytes.data() + begin, &count, sizeof(count));
    if (count > 0) std::memcpy(bytes.data() + begin + sizeof(count), values.data(), count * sizeof(Element));
}

template <class Element>
void take(std::span<const std::byte>& bytes, std::vector<Element>& values) {
    std::size_t count = 0;
    const auto require_bytes = [&](bool is_there) {
        require(is_there, "another rank's message of {} bytes is too short; do all ranks run the same build?",
                bytes.size());
    };
    require_bytes(bytes.size() >= sizeof(count));
    std::memcpy(&count, bytes.data(), sizeof(count));
    require_bytes(count <= (bytes.size() - sizeof(count)) / sizeof(Element));
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes.data() + sizeof(count), count * sizeof(Element));
    bytes = bytes.subspan(sizeof(count) + count * sizeof(Element));
}

}  // namespace ringlab::gpu
