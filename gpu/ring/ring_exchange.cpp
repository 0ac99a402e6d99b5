#include "gpu/ring/ring_exchange.hpp"

#include "gpu/ranks/rank_memory.hpp"
#include "layouts/basics/counts.hpp"

#include <algorithm>
#include <bit>

namespace ringlab::gpu {
namespace {

constexpr std::size_t fewest_flags = 1024;
constexpr std::size_t growth_step = std::size_t{2} << 20;  // bytes

}  // namespace

std::size_t RingExchange::flags_for(std::size_t arrival_flags) const {
    const auto wanted = arrival_flags + static_cast<std::size_t>(team_.size());
    return std::max({held_.flags, fewest_flags, std::bit_ceil(wanted)});
}

bool RingExchange::has(const Needs& needs) const {
    return transport_ && needs.bytes <= held_.bytes && needs.flags <= held_.flags &&
           std::ranges::includes(held_.routes, needs.routes);
}

void RingExchange::grow(const Needs& needs) {
    const auto before = held_;
    auto wanted = before;
    wanted.flags = std::max(before.flags, needs.flags);
    wanted.routes.insert(needs.routes.begin(), needs.routes.end());
    // Plans that there are want as much as before behind the flags.
    const auto of_before = before.bytes + (wanted.flags - before.flags) * sizeof(std::uint32_t);
    // A little more than is asked for, so that packings that differ a little make it grow once.
    wanted.bytes =
        rounded_up(needs.bytes > of_before ? std::max(needs.bytes, of_before + of_before / 4) : of_before, growth_step);
    disconnect();
    try {
        connect(wanted);
    } catch (const Error&) {
        if (team_.cancelled()) throw;
        if (before.bytes > 0) connect(before);
        throw;
    }
}

void RingExchange::connect(const Needs& needs) {
    ++generation_;
    transport_.reset();
    memory_.reset();
    fabric_ = fabric_factory(options_.transport)(
        team_, {layouts::RingGroup{.ring = team_.size()}, options_.timeout, hosts_}, needs.routes);
    team_.together(rank_, options_.timeout,
                   [&] { memory_ = make_exchange_memory(*fabric_, needs.bytes, needs.flags * sizeof(std::uint32_t)); });
    transport_ = fabric_->join({rank_, rank_, options_.device, {memory_.get(), needs.bytes}});
    held_ = needs;
    passes = meetings_ = 0;  // flags are 0 again
}

void RingExchange::disconnect() {
    if (!transport_) return;
    // The first barrier: peers may still be reading this rank's memory. The second: it is freed only after all peers
    // have released it.
    team_.barrier(rank_, options_.timeout);
    transport_->disconnect();
    team_.barrier(rank_, options_.timeout);
    free_memory();
}

void RingExchange::free_memory() {
    transport_.reset();
    memory_.reset();
    fabric_.reset();
    held_ = {};
    ++generation_;
}

bool RingExchange::let_go() {
    if (!transport_) return true;
    try {
        transport_->disconnect();
    } catch (const Error&) {
        transport_->abort();  // it has failed
    }
    if (!transport_->is_free()) return false;
    free_memory();
    return true;
}

void RingExchange::meet(cudaStream_t stream) {
    const auto first = held_.flags - static_cast<std::size_t>(team_.size());
    if (team_.size() > 1) transport_->meet(first * sizeof(std::uint32_t), ++meetings_, stream);
}

}  // namespace ringlab::gpu
