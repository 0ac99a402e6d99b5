#include "experiments/memory/longest.hpp"

#include "experiments/options/values.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ringlab::experiments {
namespace {

constexpr double gigabyte = 1e9;

std::int64_t bytes_from(double gigabytes) { return std::llround(gigabytes * gigabyte); }

// Kernels hold positions in 32 bits, one of which stands for none; plans hold up to 2^31 tokens.
constexpr std::int64_t most_positions = (std::int64_t{1} << 31) - 2;

}  // namespace

Capacity capacity_of(const DescribedMachine& described, const MemoryConfig& config) {
    const auto& machine = described.machine;
    const Capacity capacity{
        config.device_gigabytes > 0 ? bytes_from(config.device_gigabytes) : std::llround(machine.device_memory_bytes),
        std::llround(machine.reserved_memory_bytes), bytes_from(config.resident_gigabytes)};
    require(capacity.device > 0,
            "machine file '{}' does not say how much memory a device has ([device_memory] gigabytes); say "
            "--device-memory GB",
            described.given);
    require(capacity.reserved + capacity.resident < capacity.device,
            "{:.1f} GB reserved and {:.1f} GB resident leave nothing of {:.1f} GB of device memory",
            static_cast<double>(capacity.reserved) / gigabyte, static_cast<double>(capacity.resident) / gigabyte,
            static_cast<double>(capacity.device) / gigabyte);
    return capacity;
}

std::vector<Device> devices_of(const Config& config) {
    std::vector<Device> devices;
    for (auto& described : described_machines(config)) {
        const auto capacity = capacity_of(described, config.memory);
        devices.push_back({std::move(described), capacity});
    }
    require(!devices.empty(), "no machine is given; name one by --machines");
    return devices;
}

Keeping keeping(const std::string& policy, const layouts::Problem& problem, const MemoryConfig& config) {
    const auto element = bytes_of(problem.dtype), statistic = bytes_of(layouts::DType::fp32);
    const auto q = problem.query_heads * problem.head_dim * element;
    const auto kv = element * (problem.latent.is_given() ? problem.latent.width()
                                                         : problem.kv_heads * (problem.head_dim + problem.value_dim));
    const auto o = problem.query_heads * (problem.value_dim * element + statistic);  // and lse
    const auto apart = q + config.beside_bytes;                                      // a layer's input is as wide as q
    const auto choice =
        parse_choice(policy, "the policy of --keep", {"everything", "output", "kv", "checkpoint", "cache"});
    switch (choice) {
        case 0: return {policy, apart + q + kv + o, apart, true, "nothing"};
        case 1: return {policy, apart + o, apart, true, "projections"};
        case 2: return {policy, apart + kv, apart, true, "Q, attention forward"};
        case 3: return {policy, apart, apart, true, "projections, attention forward"};
        default: return {policy, kv, 0, false, "no backward pass"};
    }
}

std::string Footprint::largest_part() const {
    std::int64_t keys = 0, rows = 0;
    for (std::size_t pool = 0; pool < pass.slots.size(); ++pool)
        (of_rows(static_cast<layouts::Pool>(pool)) ? rows : keys) += pass.slots[pool];
    const std::vector<std::pair<std::int64_t, const char*>> parts{{kept, "kept activations"},
                                                                  {pass.inputs, "inputs"},
                                                                  {pass.results, "results and their fp32 sums"},
                                                                  {keys, "slots of travelling K, V and gradients"},
                                                                  {rows, "slots of travelling rows"},
                                                                  {pass.statistics, "statistics of rows"},
                                                                  {pass.lists, "work lists"},
                                                                  {resident, "what is resident"},
                                                                  {reserved, "what is reserved"}};
    const auto& [bytes, name] = *std::max_element(parts.begin(), parts.end());
    return fmt::format("{} {:.0f} %", name, 100 * static_cast<double>(bytes) / static_cast<double>(total()));
}

Footprint footprint(const layouts::Schedule& forward, const layouts::Schedule* backward, const Keeping& keeping,
                    int layers, const Capacity& capacity) {
    Footprint all;
    all.pass = most_memory(forward, keeping.with_backward ? backward : nullptr, {});
    std::int64_t tokens = 0;
    for (int rank = 0; rank < forward.ranks(); ++rank) tokens = std::max(tokens, forward.block_tokens(rank));
    tokens *= forward.problem().batch;
    all.kept = tokens * (keeping.token_bytes * (layers - 1) + keeping.apart_bytes);
    all.resident = capacity.resident;
    all.reserved = capacity.reserved;
    return all;
}

std::int64_t longest_that(std::int64_t granularity, std::int64_t most, const std::function<bool(std::int64_t)>& fits) {
    const auto largest = most / granularity;
    if (largest < 1 || !fits(granularity)) return 0;
    std::int64_t good = 1, bad = 2;
    for (; bad <= largest && fits(bad * granularity); bad *= 2) good = bad;
    bad = std::min(bad, largest + 1);
    while (bad - good > 1) {
        const auto middle = good + (bad - good) / 2;
        (fits(middle * granularity) ? good : bad) = middle;
    }
    return good * granularity;
}

Longest longest_context(Case setup, const layouts::Problem& problem, const MemoryConfig& config, const Keeping& keeping,
                        const Capacity& capacity) {
    const auto granularity = layouts::layout_granularity(setup.layout, setup.ranks);
    const auto footprint_of = [&](std::int64_t tokens) {
        setup.tokens = tokens;
        const auto plan = make_plan(setup, problem);
        return footprint(*plan.forward, plan.backward.get(), keeping, config.model_layers, capacity);
    };
    const auto fits = [&](std::int64_t tokens) { return footprint_of(tokens).total() <= capacity.device; };
    Longest found;
    found.tokens = longest_that(granularity, most_positions, fits);
    found.footprint = footprint_of(std::max(found.tokens, granularity));
    if (found.tokens + granularity > most_positions)
        found.limit = "positions of 32 bits";
    else if (found.tokens == 0)
        found.limit = fmt::format("{} tokens need {}: {}", granularity, memory_text(found.footprint.total()),
                                  found.footprint.largest_part());
    else
        found.limit = fmt::format("memory: {}", found.footprint.largest_part());
    return found;
}

}  // namespace ringlab::experiments
