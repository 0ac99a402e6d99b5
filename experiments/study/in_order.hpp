#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <future>
#include <semaphore>
#include <thread>

namespace ringlab::experiments {

/// Number of threads: `asked`, or one for each processor if it is 0.
inline int threads_of(int asked) {
    return asked > 0 ? asked : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// Calls take(i, make(i)) for all i in [0, count) in order, on this thread. make() is called on `threads` threads; each
/// of them has at most one result that waits to be taken. Throws what make(i) threw when i is next.
template <class Make, class Take>
void make_in_parallel(std::size_t count, int threads, const Make& make, const Take& take) {
    if (threads <= 1) {
        for (std::size_t i = 0; i < count; ++i) take(i, make(i));
        return;
    }
    std::counting_semaphore<> free(threads);
    const auto make_when_free = [&](std::size_t i) {
        struct Busy {
            std::counting_semaphore<>& free;
            explicit Busy(std::counting_semaphore<>& given) : free(given) { free.acquire(); }
            ~Busy() { free.release(); }
        } busy(free);
        return make(i);
    };
    std::deque<decltype(std::async(make_when_free, count))> ahead;
    for (std::size_t i = 0, next = 0; i < count; ++i) {
        for (; next < std::min(count, i + 2 * static_cast<std::size_t>(threads)); ++next)
            ahead.push_back(std::async(std::launch::async, make_when_free, next));
        auto made = std::move(ahead.front());
        ahead.pop_front();
        take(i, made.get());
    }
}

}  // namespace ringlab::experiments
