#include "sim/cost/cost.hpp"

#include "layouts/basics/require.hpp"
#include "sim/machine/terms.hpp"
#include "sim/tiles/fused_launch.hpp"
#include "sim/tiles/kernels.hpp"

#include <algorithm>
#include <memory>

namespace ringlab::sim {

using layouts::OpKind;
using layouts::Pass;

namespace {

constexpr double fraction_of_add = 2.0 / 3;  // an add reads two numbers for each that these launches write, they one

Picoseconds ticks(double seconds) { return layouts::checked_picoseconds(seconds); }

Picoseconds stretched(Picoseconds time, double factor) {
    return factor == 1 ? time : ticks(layouts::to_seconds(time) * factor);
}

}  // namespace

double rotated_bytes(const Schedule& schedule, std::int64_t tokens) {
    const auto& p = schedule.problem();
    if (!p.rotary.rotates()) return 0;
    const bool gradients = schedule.options().pass == Pass::backward;
    const auto rows = p.queries.empty() ? tokens : (tokens * p.rows() + p.tokens - 1) / p.tokens;  // of the rank
    const auto keys = p.with_latent_as_key();
    return static_cast<double>(p.batch * (rows * p.query_heads * p.head_dim + tokens * keys.kv_heads * keys.head_dim) *
                               bytes_of(gradients ? schedule.accumulator() : p.dtype));
}

double rotation_seconds(const Schedule& schedule, const Machine& machine, std::int64_t tokens) {
    const auto bytes = rotated_bytes(schedule, tokens);
    if (bytes == 0) return 0;
    const auto calibrated =
        schedule.options().pass == Pass::forward ? machine.rotate_memory_ratio : machine.rotate_back_memory_ratio;
    constexpr int launches = 2;
    const auto ratio = calibrated > 0 ? calibrated : fraction_of_add * machine.add_memory_ratio;
    return launches * machine.accumulate_launch_seconds + ratio * bytes / machine.memory_bytes_per_second;
}

std::shared_ptr<TileModel> make_tiles(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    return options.compute == ComputeModel::tiles ? std::make_shared<TileModel>(schedule, machine) : nullptr;
}

CostModel::CostModel(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                     std::vector<double> clocks, std::shared_ptr<TileModel> tiles)
    : schedule_(schedule),
      machine_(machine),
      attention_(attention_cost(machine, schedule)),
      options_(options),
      topology_(ranks(), machine, options),
      is_one_launch_(options.compute == ComputeModel::tiles && topology_.hosts() == 1 &&
                     passes_are_one_launch(schedule, machine)),
      draws_(options.jitter, ranks(), schedule.options().pass),
      clocks_(std::move(clocks)),
      by_copy_engine_(!machine.inside_host.uses_kernels()),
      arrival_order_matters_(by_copy_engine_ && machine.transfer_issue_seconds > 0
                                 ? lanes_where_arrival_order_matters(schedule)
                                 : std::vector<bool>(static_cast<std::size_t>(schedule.lanes()), true)),
      issue_transfer_(issue_time(machine.transfer_issue_seconds)),
      // Kernels cannot read a peer's memory. So a rank that fetches also serves the fetches of others.
      issue_fetch_(by_copy_engine_ ? issue_transfer_ : 2 * issue_transfer_),
      issue_piece_(issue_time(machine.inside_host.piece_issue_seconds)),
      tiles_(tiles ? std::move(tiles) : make_tiles(schedule, machine, options)),
      prices_fused_launches_(options.compute == ComputeModel::tiles && prices_fused_launches() &&
                             !is_free(Cause::attends)) {
    require(options.start.empty() || static_cast<int>(options.start.size()) == ranks(),
            "{} start times for {} ranks; give one each, or none", options.start.size(), ranks());
    for (const auto start : options.start)
        require(start >= 0, "a rank starts at {} ps; it must not be negative", start);
}

Picoseconds CostModel::issue_time(double seconds) const { return is_free(Cause::issue) ? 0 : ticks(seconds); }

bool CostModel::prices_fused_launches() const { return machine_.sms > 1 && has_fused_launches(schedule_); }

/// Price of the rank's next attend. All attends of a rank with fused launches are priced at the first call.
double CostModel::next_fused_seconds(int rank) {
    fused_prices_.resize(static_cast<std::size_t>(ranks()));
    auto& [times, next] = fused_prices_[static_cast<std::size_t>(rank)];
    if (times.empty())
        times =
            attend_seconds_of_rank(schedule_, rank % schedule_.ranks(), splits_fused_launches(), *tiles_, attention_);
    const auto found = times.at(next++);
    if (next == times.size()) times = {}, next = 0;
    return found / clock(rank);
}

bool CostModel::waits_inside_kernel() const {
    return prices_fused_launches_ && !splits_fused_launches() && schedule_.options().pass == Pass::backward;
}

KeyLaunches CostModel::key_launches(int rank) const {
    return {schedule_, rank % schedule_.ranks(), *tiles_, attention_.launch_seconds};
}

double CostModel::slowdown(int rank, layouts::OpIndex index) const {
    return draws_.gpu_factor(rank) * draws_.compute_factor(rank, index) / clock(rank);
}

/// Added in the rate model, which counts only visible pairs.
double CostModel::dropout_seconds(const Op& op, int rank) const {
    const auto pairs = static_cast<double>(op.pair_count) * static_cast<double>(schedule_.problem().batch) *
                       static_cast<double>(op.rows().heads.count());
    const auto tiles = pairs / (static_cast<double>(attention_.tile_rows) * static_cast<double>(attention_.tile_keys));
    return std::max(0.0, attention_.dropout_tile_seconds) * tiles / (machine_.sms * clock(rank));
}

double CostModel::attend_seconds(const Op& op, int rank) {
    const bool by_tiles = options_.compute == ComputeModel::tiles;
    if (by_tiles && uses_split_kv(schedule_, op, machine_))
        return split_kv_seconds(schedule_, op, machine_) - (is_one_launch_ ? machine_.split_kv.launch_seconds : 0);
    if (prices_fused_launches_) return next_fused_seconds(rank);
    double seconds = op.fused ? 0 : attention_.launch_seconds;
    if (options_.compute == ComputeModel::rate) {
        // K and V have to be read whatever is computed. For few rows and a long cache that takes longest.
        const auto keys = static_cast<double>(std::min(op.part.tokens.size(), op.pair_count));
        const auto all = static_cast<double>(op.part.tokens.size());
        const auto read =
            all == 0 ? 0 : keys / all * static_cast<double>(schedule_.bytes(layouts::Pool::kv, 0, op.part));
        const auto dropped = schedule_.problem().dropout.drops() ? dropout_seconds(op, rank) : 0;
        seconds += std::max(schedule_.flop(op) / (attention_.flops * clock(rank)) + dropped,
                            read / machine_.memory_bytes_per_second);
    } else {
        const auto time = tiles_->attend(op.rows(), op.part, {op.begins, op.ends});
        seconds += (op.fused ? time.continued : time.alone) / clock(rank);
    }
    return seconds;
}

double CostModel::computed_flop(const Op& op) const {
    if (is_free(Cause::attends)) return 0;
    const auto visible = schedule_.flop(op);
    if (op.pair_count == 0 || options_.compute != ComputeModel::tiles || uses_split_kv(schedule_, op, machine_))
        return visible;
    return visible * tiles_->computed_pairs(op.rows(), op.part) / static_cast<double>(op.pair_count);
}

/// Expanding takes one matrix product for K and one for V, limited by arithmetic or memory, and copies the numbers that
/// heads share. Compressing converts the gradient to the products' type and takes two products: for the latent and for
/// the matrices.
double CostModel::latent_seconds(const Op& op, int rank) const {
    const auto& p = schedule_.problem();
    const bool expands = op.kind == OpKind::expand;
    const auto heads = (expands ? op.part : op.read()).heads.count();
    const auto numbers = static_cast<double>(p.batch * op.part.tokens.size() * heads * p.expanded_dim());
    const auto product = 2 * numbers * static_cast<double>(p.latent.rank) / (machine_.product_flops() * clock(rank));
    const auto moved = [&](double bytes) { return bytes / machine_.memory_bytes_per_second; };
    constexpr int launches = 3;
    const auto launching = launches * machine_.accumulate_launch_seconds;
    const auto element = static_cast<double>(layouts::bytes_of(p.dtype));
    if (expands)
        return launching + std::max(product, moved(static_cast<double>(schedule_.bytes(op.pool, op.slot(), op.part))));
    return launching + moved(static_cast<double>(op.bytes) + numbers * element) + 2 * product;
}

Picoseconds CostModel::compute(const Op& op, int rank) {
    const bool accumulates = op.kind == OpKind::merge || op.kind == OpKind::add || op.kind == OpKind::copy;
    if (is_free(accumulates ? Cause::memory : Cause::attends)) return 0;
    if (op.kind == OpKind::attend) return ticks(attend_seconds(op, rank));
    if (!accumulates) return ticks(latent_seconds(op, rank));
    const auto seconds = terms::Sums::seconds(machine_, op, layouts::bytes_of(schedule_.problem().dtype));
    const bool is_inside_launch = is_one_launch_ && op.kind == OpKind::merge;
    return ticks(seconds - (is_inside_launch ? machine_.accumulate_launch_seconds : 0));
}

Picoseconds CostModel::time_of_tiles_alone(const Op& attend, int rank, Picoseconds price) {
    if (options_.compute == ComputeModel::rate || uses_split_kv(schedule_, attend, machine_)) return price;
    return at_clock(tiles_->attend(attend.rows(), attend.part, {attend.begins, attend.ends}).continued, rank);
}

Picoseconds CostModel::at_clock(double seconds, int rank) const { return ticks(seconds / clock(rank)); }

Picoseconds CostModel::compute(const Op& op, int rank, layouts::OpIndex index) {
    return stretched(compute(op, rank), draws_.gpu_factor(rank) * draws_.compute_factor(rank, index));
}

TransferCost CostModel::with_noise(TransferCost cost, int rank, layouts::OpIndex index) const {
    const auto factor = draws_.transfer_factor(rank, index);
    // Noise changes the duration and not the latency: the engine relies on there being few different latencies.
    if (factor != 1) cost.duration = std::max<Picoseconds>(0, stretched(cost.whole(), factor) - cost.latency);
    return cost;
}

void CostModel::price(Known& known, Route route, double slower, std::int64_t bytes, const Message& message) const {
    auto& [known_bytes, known_message, cost] = known;
    cost.route = route;
    cost.link = route == Route::inside_host ? &machine_.inside_host : &machine_.between_hosts;
    known_bytes = bytes;
    known_message = message;
    if (is_free(Cause::links)) return;
    cost.sms = cost.link->sms(static_cast<double>(bytes));
    cost.latency =
        ticks(cost.link->latency_seconds + (route == Route::spine ? machine_.network.spine_latency_seconds : 0));
    auto rate = cost.link->rate(static_cast<double>(bytes), slower);
    cost.speed_beside_attend = cost.link->busy_speed_ratio;
    if (route == Route::inside_host) {
        if (message.is_split_by_heads) rate = std::min(rate, cost.link->pieces_bytes_per_second);
        if (message.pieces > 1)
            cost.latency =
                layouts::checked_sum(cost.latency, ticks(terms::Pieces::latency(*cost.link, message.pieces)));
    }
    cost.duration = ticks(static_cast<double>(bytes) / rate);
    cost.bytes_per_second = cost.duration > 0 ? rate : 0;
}

Picoseconds CostModel::begin_of_pass(int rank) const {
    if (is_free(Cause::ends)) return 0;
    const auto& p = schedule_.problem();
    const auto rows = schedule_.block_tokens(schedule_.row_block(rank % schedule_.ranks()));
    const auto q = p.batch * rows * p.query_heads * p.head_dim * bytes_of(p.dtype);
    const auto launch = is_one_launch_ && !is_free(Cause::attends) ? machine_.split_kv.launch_seconds : 0;
    return stretched(
        ticks(terms::Begin::seconds(attention_, static_cast<double>(q), machine_.memory_bytes_per_second) + launch),
        draws_.gpu_factor(rank));
}

/// Adds the sinks to a rank's merged rows in a launch of its own, which reads and writes o at the speed of adds.
double CostModel::sink_seconds(std::int64_t rows) const {
    const auto& p = schedule_.problem();
    if (p.sinks.empty() || schedule_.options().pass == Pass::backward) return 0;
    const auto bytes = p.batch * rows * p.query_heads * p.value_dim * bytes_of(schedule_.accumulator());
    return machine_.accumulate_launch_seconds +
           fraction_of_add * machine_.add_memory_ratio * static_cast<double>(bytes) / machine_.memory_bytes_per_second;
}

Picoseconds CostModel::end_of_pass(int rank) const {
    if (is_free(Cause::ends)) return 0;
    return stretched(ticks(sink_seconds(schedule_.block_tokens(schedule_.row_block(rank % schedule_.ranks())))),
                     draws_.gpu_factor(rank));
}

Picoseconds CostModel::start(int rank) const {
    const auto given = options_.start.empty() ? 0 : options_.start[static_cast<std::size_t>(rank)];
    return layouts::checked_sum(given, ticks(draws_.start_seconds(rank)));
}

std::vector<std::string> CostModel::notes() const {
    const auto& problem = schedule_.problem();
    std::vector<std::string> notes;
    if (options_.compute == ComputeModel::rate)
        notes.push_back("attention times come from the machine's FLOP/s, not from tiles");
    else
        notes = notes_of_kernel(machine_, schedule_);
    if (problem.dropout.drops() && attention_.dropout_tile_seconds < 0)
        notes.emplace_back("the machine file has no price of dropout: the prediction assumes that it takes no time");
    if (layouts::bytes_of(problem.dtype) != 2)
        notes.push_back(fmt::format("attention times are those of 16-bit arithmetic, but the problem has {}",
                                    layouts::to_string(problem.dtype)));
    return notes;
}

}  // namespace ringlab::sim
