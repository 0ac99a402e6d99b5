#include "gpu/ring/plan_tables.hpp"

#include "layouts/basics/counts.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ringlab::gpu {
namespace {

constexpr std::size_t alignment = 256;               // of tables: kernels load vectors
constexpr std::size_t least = std::size_t{1} << 18;  // bytes of a chunk

}  // namespace

TableStore::Staging::Staging(std::size_t bytes) : bytes_(bytes) {
    RINGLAB_CUDA(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped));
}

TableStore::Staging::~Staging() {
    cudaEventSynchronize(copied);  // a copy may be reading it
    cudaFreeHost(data_);
}

std::unique_ptr<TableStore::Staging> TableStore::take(std::size_t bytes) {
    const auto take_out = [&](auto found) {
        auto staging = std::move(*found);
        staging_.erase(found);
        return staging;
    };
    const auto free = std::ranges::find_if(
        staging_, [&](const auto& staging) { return staging->bytes() >= bytes && staging->copied.done(); });
    if (free != staging_.end()) return take_out(free);
    if (staging_.size() >= most_staging) {
        RINGLAB_CUDA(cudaEventSynchronize(staging_.front()->copied));
        auto oldest = take_out(staging_.begin());
        if (oldest->bytes() >= bytes) return oldest;
    }
    return std::make_unique<Staging>(std::bit_ceil(std::max(bytes, least)));
}

std::shared_ptr<std::uint32_t> TableStore::host_word() {
    if (words_.empty()) {
        auto& page = pages_.emplace_back(std::make_unique<Staging>(words_in_page * sizeof(std::uint32_t)));
        auto* const first = reinterpret_cast<std::uint32_t*>(page->data());
        for (std::size_t i = 0; i < words_in_page; ++i) words_.push_back(first + i);
    }
    auto* const word = words_.back();
    words_.pop_back();
    *word = 0;
    return {word, [this](std::uint32_t* one) { words_.push_back(one); }};
}

std::int64_t TableStore::host_bytes() const {
    std::size_t bytes = 0;
    for (const auto* list : {&staging_, &pages_})
        for (const auto& staging : *list) bytes += staging->bytes();
    return static_cast<std::int64_t>(bytes);
}

PlanTables::~PlanTables() {
    for (auto& chunk : chunks_) {
        if (chunk.host) store_.give_back(std::move(chunk.host));
        store_.memory.release(chunk.device);
    }
}

void* PlanTables::allocate(std::size_t bytes) {
    const auto taken = rounded_up(bytes, alignment);
    if (chunks_.empty() || chunks_.back().used + taken > chunks_.back().bytes) {
        // With a quarter to spare, so that plans that differ a little have chunks of one size.
        const auto all = chunks_.empty() ? rounded_up(store_.latest_bytes + store_.latest_bytes / 4, least) : 0;
        Chunk chunk;
        chunk.bytes = std::max({taken, all, least});
        chunk.host = store_.take(chunk.bytes);
        chunk.device = static_cast<char*>(store_.memory.allocate(chunk.bytes, store_.stream));
        chunks_.push_back(std::move(chunk));
    }
    auto& chunk = chunks_.back();
    auto* const memory = chunk.device + chunk.used;
    chunk.used += taken;
    return memory;
}

void PlanTables::upload(void* to, const void* from, std::size_t bytes) {
    auto* const address = static_cast<char*>(to);
    for (const auto& chunk : chunks_)
        if (chunk.host && std::less_equal<>()(chunk.device, address) &&
            std::less<>()(address, chunk.device + chunk.used)) {
            std::memcpy(chunk.host->data() + (address - chunk.device), from, bytes);
            return;
        }
    fail("an upload of {} bytes to a table that is not of this plan, or has been copied", bytes);
}

void PlanTables::flush() {
    store_.latest_bytes = 0;
    for (auto& chunk : chunks_) {
        RINGLAB_CUDA(
            cudaMemcpyAsync(chunk.device, chunk.host->data(), chunk.used, cudaMemcpyHostToDevice, store_.stream));
        chunk.host->copied.record(store_.stream);
        store_.give_back(std::move(chunk.host));
        store_.latest_bytes += chunk.used;
    }
}

}  // namespace ringlab::gpu
