#include "gpu/transports/slot_map.hpp"

#include "layouts/basics/counts.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::gpu {

using layouts::bytes_of;
using layouts::Pass;
using layouts::Place;
using layouts::Pool;
using layouts::Schedule;

namespace {

constexpr std::int64_t alignment = 256;  // of fields, in bytes: vector loads, tensor maps and copy engines like it

constexpr std::size_t index(Pool pool) { return static_cast<std::size_t>(pool); }

}  // namespace

bool output_arrives(const layouts::Program& forward) {
    return std::ranges::any_of(forward.ranks, [](const layouts::RankProgram& rank) {
        return std::ranges::any_of(rank.code, [](const layouts::Instruction& instruction) {
            const auto& op = instruction.op;
            return op.kind == layouts::OpKind::receive && op.pool == Pool::output && op.slot() == 0;
        });
    });
}

std::size_t arrival_flags(const std::vector<layouts::Program>& programs) {
    std::size_t most = 0;
    for (const auto& program : programs)
        for (const auto& rank : program.ranks) most = std::max(most, rank.code.size());
    return 2 * most;
}

std::int64_t elements_compressed_at_once(const Schedule& backward, int rank) {
    const auto& p = backward.problem();
    auto rows = backward.keeps(Pool::dkv) ? backward.block_tokens(rank) * p.kv_heads : 0;
    if (rows == 0)
        for (const auto& group : backward.slots())
            if (group.pool == Pool::dkv) rows = std::max(rows, group.tokens * group.heads);
    return p.batch * rows * p.expanded_dim();
}

std::size_t SlotMap::fields(Pool pool) const { return layouts::tensors(pool).size(); }

std::int64_t SlotMap::width(Pool pool, std::size_t field) const {
    return layouts::width(problem_, layouts::tensors(pool)[field]);
}

std::int64_t SlotMap::field_elements(Pool pool, std::size_t field, std::int64_t tokens) const {
    return rounded_up(problem_.batch * tokens * width(pool, field), padding);
}

std::size_t SlotMap::Memory::take(std::int64_t taken) {
    const auto begin = cursor;
    cursor += size(rounded_up(taken, alignment));
    bytes = std::max(bytes, cursor);
    return begin;
}

std::size_t SlotMap::take(Pool pool, std::int64_t bytes, std::int64_t& account) {
    account += bytes;
    return (is_local(pool) ? local_ : exchange_).take(bytes);
}

Frame SlotMap::make_frame(Pool pool, DType dtype, std::int64_t heads, std::int64_t tokens, std::int64_t& account) {
    Frame frame{.pool = pool, .local = is_local(pool)};
    std::int64_t of_keys = 0;
    for (std::size_t field = 0; field < fields(pool); ++field) {
        frame.dtypes[field] = layouts::tensors(pool)[field].statistic ? DType::fp32 : dtype;
        const auto bytes = heads * field_elements(pool, field, tokens) * bytes_of(frame.dtypes[field]);
        if (of_rows(pool))
            frame.begins[field] = take(pool, bytes, account);
        else
            of_keys += bytes;
    }
    if (!of_rows(pool)) frame.begins[0] = take(pool, of_keys, account);
    return frame;
}

SlotMap::SlotMap(const Schedule& forward, const Schedule* backward, int rank, const MapOptions& options)
    : problem_(forward.problem()), rows_are_local_(options.lent == Lent::rounded_and_rows) {
    const auto tokens = [&](Pool pool) { return forward.block_tokens(forward.own_block(pool, rank)); };
    const auto dtype = problem_.dtype;
    const auto frame = [&](Pool pool, DType of, std::int64_t& account) {
        return make_frame(pool, of, heads_of(problem_, pool), tokens(pool), account);
    };
    const auto field = [&](Pool pool, std::size_t field_index, DType of, std::int64_t& account) {
        return take(pool, problem_.query_heads * field_elements(pool, field_index, tokens(pool)) * bytes_of(of),
                    account);
    };
    auto& ahead = frames(Pass::forward);
    auto& back = frames(Pass::backward);
    const bool partials = forward.options().accumulation == layouts::Accumulation::partials;
    const bool rounds_running = partials && options.round_running_output;
    rounds_output_ = options.round_results && !rounds_running;
    dq_overwrites_output_ = backward && rounds_output_;

    constexpr std::int64_t pair_bytes = 8;
    exchange_.take(static_cast<std::int64_t>(options.arrival_flags * sizeof(std::uint32_t)));
    const auto pairs_bytes = static_cast<std::int64_t>(options.merging_pairs) * pair_bytes;
    memory_.work += pairs_bytes;
    merging_pairs_ = exchange_.take(pairs_bytes);
    zeroed_bytes_ = exchange_.cursor;
    const bool lends_rows = rows_are_local_;
    ahead[index(Pool::q)] =
        back[index(Pool::q)] = {lends_rows ? Frame{Pool::q, {}, {dtype}, true} : frame(Pool::q, dtype, memory_.inputs)};
    for (const auto pool : {Pool::kv, Pool::latent})
        if (forward.keeps(pool)) ahead[index(pool)] = back[index(pool)] = {frame(pool, dtype, memory_.inputs)};
    Frame dout{Pool::dout, {}, {dtype, DType::fp32}, lends_rows};
    if (backward && !lends_rows) dout.begins[0] = field(Pool::dout, 0, dtype, memory_.inputs);
    inputs_end_ = exchange_.cursor;

    const bool dq_is_wider = dq_overwrites_output_ && problem_.head_dim > problem_.value_dim;
    Frame output{Pool::output, {}, {rounds_running ? dtype : DType::fp32, DType::fp32}, lends_rows};
    // If the caller lends the fp32 output, this memory holds the forward pass's state and dQ.
    output.begins[0] = field(dq_is_wider ? Pool::dq : Pool::output, 0, output.dtypes[0], memory_.results);
    if (!lends_rows) output.begins[1] = field(Pool::output, 1, DType::fp32, memory_.results);
    ahead[index(Pool::output)] = back[index(Pool::output)] = {output};
    const bool lends_rounded = options.lent != Lent::nothing;
    if (rounds_output_) {
        rounded_[index(Pool::output)] = {Pool::output, {}, {dtype}};
        if (!lends_rounded) rounded_[index(Pool::output)].begins[0] = field(Pool::output, 0, dtype, memory_.results);
    }
    gradients_begin_ = exchange_.cursor;
    if (backward) {
        const auto dq = dq_overwrites_output_ ? output.begins[0] : field(Pool::dq, 0, DType::fp32, memory_.results);
        back[index(Pool::dq)] = {Frame{Pool::dq, {dq}, {DType::fp32}, lends_rows}};
        for (const auto pool : {Pool::dkv, Pool::dlatent})
            if (forward.keeps(pool)) back[index(pool)] = {frame(pool, DType::fp32, memory_.results)};
    }
    if (problem_.latent.is_given()) {  // held by LatentProducts, not in exchange memory
        const auto matrices = problem_.kv_heads * problem_.expanded_dim() * problem_.latent.rank;
        memory_.inputs += matrices * bytes_of(dtype);
        if (backward) memory_.results += matrices * bytes_of(DType::fp32);
        if (backward) memory_.work += elements_compressed_at_once(*backward, rank) * bytes_of(dtype);
    }

    // From here on the two passes use the same memory, each for itself.
    const auto passes_begin = exchange_.cursor, local_passes_begin = local_.cursor;
    if (!partials)  // The unnormalised output is kept where the result will be, which is written from it.
        ahead[index(Pool::state)] = {Frame{Pool::state,
                                           {output.begins[0], field(Pool::state, 1, DType::fp32, memory_.work),
                                            field(Pool::state, 2, DType::fp32, memory_.work)},
                                           {DType::fp32, DType::fp32, DType::fp32},
                                           lends_rows}};
    has_arrivals_ = options.output_arrives && output.dtypes[0] != dtype;
    if (has_arrivals_) arrivals_ = frame(Pool::output, dtype, memory_.work);
    place_scratch(forward);
    if (!backward) return;

    exchange_.cursor = passes_begin;
    local_.cursor = local_passes_begin;
    dout.begins[1] = field(Pool::dout, 1, DType::fp32, memory_.work);
    back[index(Pool::dout)] = {dout};
    place_scratch(*backward);
    if (!options.round_results) return;
    const auto slots_end = exchange_.bytes;
    exchange_.cursor = passes_begin;
    std::int64_t unused = 0;
    for (const auto pool : {Pool::dq, problem_.latent.is_given() ? Pool::dlatent : Pool::dkv})
        rounded_[index(pool)] = lends_rounded ? Frame{pool, {}, {dtype, dtype}} : frame(pool, dtype, unused);
    memory_.results += static_cast<std::int64_t>(exchange_.bytes - slots_end);
}

void SlotMap::place_scratch(const Schedule& pass) {
    std::array<std::int64_t, layouts::pool_count> of_pools{};
    for (const auto& group : pass.slots()) {
        auto& of_pool = frames(pass.options().pass)[index(group.pool)];
        if (of_pool.empty()) of_pool.emplace_back();  // slot 0, which this pass does not use
        for (int i = 0; i < group.count; ++i)
            of_pool.push_back(
                make_frame(group.pool, group.dtype, group.heads, group.tokens, of_pools[index(group.pool)]));
    }
    const auto slots = std::accumulate(of_pools.begin(), of_pools.end(), std::int64_t{0});
    if (slots > memory_.slots) {
        memory_.slots = slots;
        memory_.slots_of_pool = of_pools;
    }
}

const Frame& SlotMap::frame(Pass pass, const Place& place) const {
    return frames_[static_cast<std::size_t>(pass)][index(place.pool)].at(size(place.slot));
}

const Frame& SlotMap::message_frame(Pass pass, const Place& place) const {
    return converts_arrivals(place) ? arrivals_ : frame(pass, place);
}

Field SlotMap::field(const Frame& frame, const Place& place, std::size_t field) const {
    const auto dtype = frame.dtypes[field];
    const auto row = width(frame.pool, field);
    const auto elements_of = [&](std::size_t field_index) {
        return field_elements(frame.pool, field_index, place.block_tokens);
    };
    std::int64_t head = elements_of(field), before = 0;
    if (!of_rows(frame.pool)) {
        head = 0;
        for (std::size_t other = 0; other < fields(frame.pool); ++other) {
            if (other < field) before += elements_of(other);
            head += elements_of(other);
        }
    }
    const auto elements = before + (place.heads.begin - place.first_head) * head + place.tokens.begin * row;
    return {nullptr,
            frame.begins[of_rows(frame.pool) ? field : 0] + size(elements * bytes_of(dtype)),
            frame.local,
            dtype,
            {problem_.batch, place.tokens.size(), place.heads.count(), row},
            {place.block_tokens * row, row, head}};
}

std::vector<SlotMap> slot_maps(const Schedule& forward, const Schedule* backward, const MapOptions& options) {
    std::vector<SlotMap> maps;
    for (int rank = 0; rank < forward.ranks(); ++rank) maps.emplace_back(forward, backward, rank, options);
    return maps;
}

namespace {

/// A contiguous part of a field.
struct Stretch {
    std::size_t from, to, bytes;
};

std::vector<Piece> in_pieces(const std::vector<Stretch>& stretches) {
    std::vector<Stretch> joined;
    for (const auto& next : stretches) {
        if (!joined.empty() && joined.back().from + joined.back().bytes == next.from &&
            joined.back().to + joined.back().bytes == next.to)
            joined.back().bytes += next.bytes;
        else
            joined.push_back(next);
    }
    std::vector<Piece> pieces;
    for (const auto& next : joined) {
        if (!pieces.empty() && pieces.back().bytes == next.bytes) {
            auto& piece = pieces.back();
            const auto from_pitch = next.from - (piece.from + (piece.rows - 1) * piece.from_pitch);
            const auto to_pitch = next.to - (piece.to + (piece.rows - 1) * piece.to_pitch);
            const bool ascends = next.from > piece.from && next.to > piece.to;
            if (ascends && (piece.rows == 1 || (from_pitch == piece.from_pitch && to_pitch == piece.to_pitch))) {
                piece.from_pitch = from_pitch;
                piece.to_pitch = to_pitch;
                ++piece.rows;
                continue;
            }
        }
        pieces.push_back({next.from, next.to, next.bytes});
    }
    return pieces;
}

}  // namespace

std::vector<Piece> pieces_between(const SlotMap& from_map, const Frame& from, const Place& from_place,
                                  const SlotMap& to_map, const Frame& to, const Place& to_place) {
    struct Ends {
        Field from, to;
        std::int64_t stretch;  // adjacent elements of one head and batch element
        std::int64_t batch;
    };
    // Whole blocks are sent with the padding of their fields, so that all heads are one piece.
    const bool whole = from_place.is_whole() && to_place.is_whole();
    std::vector<Ends> fields;
    for (std::size_t field = 0; field < from_map.fields(from.pool); ++field) {
        Ends ends{from_map.field(from, from_place, field), to_map.field(to, to_place, field), 0, 1};
        require(ends.from.dtype == ends.to.dtype, "{} of type {} would have to arrive as {}", to_string(from.pool),
                to_string(ends.from.dtype), to_string(ends.to.dtype));
        const auto& extent = ends.from.extent;
        ends.batch = whole ? 1 : extent.batch;
        const auto row = extent.tokens * extent.dim;
        ends.stretch = whole ? rounded_up(extent.batch * row, SlotMap::padding) : row;
        fields.push_back(ends);
    }
    std::vector<Stretch> by_head, by_field;
    const auto add = [](std::vector<Stretch>& stretches, const Ends& ends, std::int64_t head) {
        const auto element = bytes_of(ends.from.dtype);
        for (std::int64_t b = 0; b < ends.batch && ends.stretch > 0; ++b) {
            const auto offset = [&](const Field& field) {
                return field.begin + size((head * field.strides.head + b * field.strides.batch) * element);
            };
            stretches.push_back({offset(ends.from), offset(ends.to), size(ends.stretch * element)});
        }
    };
    const auto heads = from_place.heads.count();
    for (std::int64_t head = 0; head < heads; ++head)
        for (const auto& ends : fields) add(by_head, ends, head);
    for (const auto& ends : fields)
        for (std::int64_t head = 0; head < heads; ++head) add(by_field, ends, head);
    auto one = in_pieces(by_head), other = in_pieces(by_field);
    return one.size() <= other.size() ? one : other;
}

}  // namespace ringlab::gpu
