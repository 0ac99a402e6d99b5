#include "gpu/ring/ring_plan.hpp"

#include "layouts/program/deadlock_check.hpp"
#include "layouts/schedules/schedule.hpp"

#include <algorithm>

namespace ringlab::gpu {

using layouts::Pass;

namespace {

bool messages_carry_rows(const std::vector<layouts::Program>& programs) {
    for (const auto& program : programs)
        for (const auto& rank : program.ranks)
            for (const auto& instruction : rank.code)
                if (instruction.op.transfers() && of_rows(instruction.op.pool)) return true;
    return false;
}

/// Whether rows that see nothing, such as padding, come last on every rank. Kernels then leave them out of tensors that
/// they read in place.
bool blind_rows_come_last(const layouts::Schedule& schedule) {
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        const auto rows = schedule.block(schedule.row_block(rank));
        const auto blind = layouts::blind_rows(schedule.mask(), rows);
        if (blind.size() > 1 || (blind.size() == 1 && blind.front().end < count_tokens(rows))) return false;
    }
    return true;
}

}  // namespace

RingPlan::RingPlan(const Ring& ring, std::unique_ptr<const layouts::Schedule> forward,
                   std::unique_ptr<const layouts::Schedule> backward, bool deterministic)
    : ring_(ring),
      rank_(ring.team.first_local()),
      deterministic_(deterministic),
      schedules_{std::move(forward), std::move(backward)} {
    const auto ranks = ring.team.size();
    require(schedule(Pass::forward).ranks() == ranks, "the schedule is for {} ranks, the ring has {}",
            schedule(Pass::forward).ranks(), ranks);
    layouts::require_same_problem(schedule(Pass::forward), schedule(Pass::backward));
    for (const auto& schedule : schedules_)
        programs_.push_back(program_of(*schedule, {.ring = ranks}, ring.exchange.hosts()));
    lends_rows_ = !messages_carry_rows(programs_) && blind_rows_come_last(schedule(Pass::forward));
    const auto& p = schedule(Pass::forward).problem();
    const auto& mask = schedule(Pass::forward).mask().name();
    for (const auto pass : {Pass::forward, Pass::backward})
        kernels_[index(pass)] =
            fmt::format("{} {} {} {} {} {} {} {}:{} {}/{} {} {} {} {} {}", ring.device, to_string(pass),
                        schedule(pass).options().schedule, mask.substr(0, mask.find(':')), ranks, p.batch, p.tokens,
                        p.query_heads, p.kv_heads, p.head_dim, p.value_dim, to_string(p.dtype),
                        p.soft_cap > 0 || p.effective_scale() <= 0, p.dropout.drops(), p.sinks.size(), deterministic);
}

MapOptions RingPlan::map_options() const {
    return {.round_results = true,
            .output_arrives = output_arrives(programs_.front()),
            .arrival_flags = ring_.exchange.flags_for(gpu::arrival_flags(programs_)),
            .lent = lends_rows_ ? Lent::rounded_and_rows : Lent::rounded};
}

RingExchange::Needs RingPlan::needs() const {
    const auto options = map_options();
    RingExchange::Needs needs{.flags = options.arrival_flags,
                              .routes = routes_of({.ring = ring_.team.size()}, programs_)};
    for (const auto& map : slot_maps(schedule(Pass::forward), &schedule(Pass::backward), options))
        needs.bytes = std::max(needs.bytes, map.bytes());
    return needs;
}

std::size_t RingPlan::lanes() const {
    int lanes = 1;
    for (const auto& program : programs_) lanes = std::max(lanes, program.lanes);
    return static_cast<std::size_t>(lanes);
}

std::size_t RingPlan::instructions() const {
    std::size_t most = 0;
    for (const auto& program : programs_)
        most = std::max(most, program.ranks[static_cast<std::size_t>(rank_)].code.size());
    return most;
}

void RingPlan::place(const std::vector<cudaStream_t>& lanes) {
    auto& exchange = ring_.exchange;
    issuer_.reset();
    work_.reset();
    tables_ = std::make_unique<PlanTables>(ring_.tables);
    const auto memory = map_options();
    const auto maps = slot_maps(schedule(Pass::forward), &schedule(Pass::backward), memory);
    require(maps[static_cast<std::size_t>(rank_)].bytes() <= exchange.bytes(),
            "the memory that peers see has {} bytes, the plan wants {}: an attempt to make it larger has failed",
            exchange.bytes(), maps[static_cast<std::size_t>(rank_)].bytes());
    const RankOptions options{.memory = memory,
                              .deterministic = deterministic_,
                              .fused_start = ring_.fused_start,
                              // Longer than the ring, which fills what did not arrive with NaN before it ends waits.
                              .most_wait = 2 * ring_.timeout,
                              .flagged_peers = flagged_peers(exchange.fabric(), {.ring = ring_.team.size()}, rank_),
                              .tables = tables_.get(),
                              .passes = &exchange.passes,
                              .give_up_stream = ring_.give_up_stream};
    work_ = std::make_unique<Rank>(schedule(Pass::forward), &schedule(Pass::backward), rank_, programs_, maps,
                                   exchange.memory(), options);
    tables_->flush();
    for (const auto pass : {Pass::forward, Pass::backward}) kernels_[index(pass)] += " " + work_->kernel_choices(pass);
    const IssuedRank issued{rank_, 0, rank_, ring_.device, work_.get(), &exchange.transport(), lanes};
    issuer_ = std::make_unique<Issuer>(std::vector{issued}, ring_.team,
                                       Issuer::Options{{.ring = ring_.team.size()}, ring_.timeout});
    generation_ = exchange.generation();
}

}  // namespace ringlab::gpu
