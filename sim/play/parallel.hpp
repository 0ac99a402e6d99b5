#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ringlab::sim {

/// Calls body(i) once for each i in [0, count), on up to `threads` threads, and returns when all calls have ended. If a
/// call throws, no further ones are begun, and the first exception is thrown again when the others have ended.
template <class Body>
void for_each_in_parallel(std::size_t count, int threads, const Body& body) {
    std::atomic<std::size_t> next = 0;
    std::exception_ptr thrown;
    std::mutex one;
    const auto work = [&] {
        try {
            for (std::size_t i = 0; (i = next++) < count;) body(i);
        } catch (...) {
            next = count;
            const std::lock_guard lock(one);
            if (!thrown) thrown = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::size_t i = 1; i < count && i < static_cast<std::size_t>(threads); ++i) others.emplace_back(work);
        work();
    }
    if (thrown) std::rethrow_exception(thrown);
}

}  // namespace ringlab::sim
