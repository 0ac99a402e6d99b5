#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace ringlab::experiments {

/// Calls body(begin, end) for parts of [0, count) that together are all of it, each on a thread of its own. For bodies
/// that do not throw.
template <class Body>
void for_parts(std::size_t count, const Body& body) {
    constexpr std::size_t least = 1 << 10;
    const auto parts =
        std::clamp<std::size_t>(count / least, 1, std::max<std::size_t>(1, std::thread::hardware_concurrency()));
    const auto bound = [&](std::size_t part) { return count / parts * part + std::min(part, count % parts); };
    std::vector<std::jthread> threads;
    for (std::size_t part = 1; part < parts; ++part)
        threads.emplace_back([&, part] { body(bound(part), bound(part + 1)); });
    body(bound(0), bound(1));
}

}  // namespace ringlab::experiments
