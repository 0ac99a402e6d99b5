#include "python/library/callback_team.hpp"

namespace ringlab::python {

using gpu::Bytes;

std::vector<Bytes> CallbackTeam::all_gather(int, Bytes bytes, gpu::Clock::duration) {
    if (ranks_ == 1) return {std::move(bytes)};
    const void* all = nullptr;
    std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks_));
    if (exchange_.all_gather(exchange_.context, bytes.data(), bytes.size(), &all, sizes.data()) != 0) {
        cancel();
        fail("the others did not come to make a plan, or one is gone");
    }
    std::vector<Bytes> given;
    const auto* next = static_cast<const std::byte*>(all);
    for (const auto size : sizes) {
        given.emplace_back(next, next + size);
        next += size;
    }
    return given;
}

std::vector<Bytes> CallbackTeam::gather_to_root(Bytes bytes, gpu::Clock::duration timeout) {
    auto all = all_gather(rank_, std::move(bytes), timeout);
    if (!is_root()) all.clear();
    return all;
}

bool CallbackTeam::agree(bool root_says) {
    return all_gather(rank_, {std::byte{root_says}}, {}).front().front() != std::byte{0};
}

}  // namespace ringlab::python
