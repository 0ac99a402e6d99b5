#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ringlab::experiments {

/// Number of threads: `asked`, or one for each processor if it is 0.
inline int threads_of(int asked) {
    return asked > 0 ? asked : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// Calls take(i, make(i)) for all i in [0, count) in order, on this thread. make() is called on `threads` threads; each
/// of them has at most one result that waits to be taken. Throws what make(i) threw when i is next.
template <class Make, class Take>
void make_in_parallel(std::size_t count, int threads, const Make& make, const Take& take) {
    using Result = decltype(make(std::size_t{}));
    if (threads <= 1) {
        for (std::size_t i = 0; i < count; ++i) take(i, make(i));
        return;
    }
    struct Made {
        std::optional<Result> result;
        std::exception_ptr error;
    };
    std::mutex one;
    std::condition_variable changed;
    std::vector<Made> all(count);
    std::size_t next = 0, taken = 0;
    const auto ahead = 2 * static_cast<std::size_t>(threads);
    const auto work = [&] {
        for (std::unique_lock lock(one);;) {
            changed.wait(lock, [&] { return next >= count || next < taken + ahead; });
            if (next >= count) return;
            const auto i = next++;
            lock.unlock();
            Made made;
            try {
                made.result = make(i);
            } catch (...) {
                made.error = std::current_exception();
            }
            lock.lock();
            all[i] = std::move(made);
            changed.notify_all();
        }
    };
    std::vector<std::jthread> workers;
    // Before the threads end, however this does.
    struct Stop {
        std::mutex& one;
        std::condition_variable& changed;
        std::size_t &next, count;
        ~Stop() {
            const std::lock_guard lock(one);
            next = count;
            changed.notify_all();
        }
    } stop{one, changed, next, count};
    for (int i = 0; i < threads; ++i) workers.emplace_back(work);
    for (std::size_t i = 0; i < count; ++i) {
        std::unique_lock lock(one);
        changed.wait(lock, [&] { return all[i].result || all[i].error; });
        auto made = std::move(all[i]);
        all[i].result.reset();
        ++taken;
        changed.notify_all();
        lock.unlock();
        if (made.error) std::rethrow_exception(made.error);
        take(i, std::move(*made.result));
    }
}

}  // namespace ringlab::experiments
