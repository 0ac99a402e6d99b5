// Where the tensors of a rank lie, and what messages between ranks move. Needs no device.

#include "gpu/ranks/merging_pass.hpp"
#include "gpu/ranks/rank_memory.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <map>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::OpKind;
using layouts::Pass;
using layouts::Place;
using layouts::Pool;

const std::vector<std::string> masks{"full", "causal", "window:100,0", "documents:97,43,300,136",
                                     "window:31,17+valid:100-200"};

/// Dims whose fields want padding, two batch elements, as many heads as there are ranks.
layouts::Problem awkward_problem() {
    auto p = small_problem();
    p.batch = 2;
    p.tokens = 48;
    p.query_heads = 8;
    p.kv_heads = 2;
    p.head_dim = 24;
    p.value_dim = 20;
    return p;
}

const Names schedule_names([] { return schedules_for(awkward_problem(), {1, 2, 4}); });

/// A pass, resolved, and the memory of all its ranks.
struct MappedPass {
    MappedPass(const Passes& passes, Pass pass, bool served, gpu::MapOptions options)
        : schedule(pass == Pass::forward ? *passes.forward : *passes.backward),
          program(resolve(schedule, served ? layouts::Fetches::served : layouts::Fetches::one_sided)) {
        options.output_arrives = gpu::output_arrives(pass == Pass::forward ? program : resolve(*passes.forward));
        for (int rank = 0; rank < schedule.ranks(); ++rank)
            maps.emplace_back(*passes.forward, passes.backward.get(), rank, options);
    }

    const gpu::SlotMap& map(int rank) const { return maps[static_cast<std::size_t>(rank)]; }

    const layouts::Schedule& schedule;
    layouts::Program program;
    std::vector<gpu::SlotMap> maps;
};

/// Calls visit(byte, bytes of it) for every element of a place, in an order that does not depend on where it lies.
template <class Visit>
void for_each_element(const gpu::SlotMap& map, const gpu::Frame& frame, const Place& place, Visit visit) {
    for (std::size_t direction = 0; direction < map.fields(frame.pool); ++direction) {
        const auto field = map.field(frame, place, direction);
        const auto bytes = layouts::bytes_of(field.dtype);
        for (std::int64_t b = 0; b < field.extent.batch; ++b)
            for (std::int64_t t = 0; t < field.extent.tokens; ++t)
                for (std::int64_t h = 0; h < field.extent.heads; ++h)
                    for (std::int64_t d = 0; d < field.extent.dim; ++d) {
                        const auto at = b * field.strides.batch + t * field.strides.token + h * field.strides.head + d;
                        visit(field.begin + static_cast<std::size_t>(at * bytes), static_cast<std::size_t>(bytes));
                    }
    }
}

/// How many elements pieces put somewhere else than to the same element of the other place, or leave out; how many
/// stretches overlap or lie outside.
int misplaced(const gpu::SlotMap& from_map, const gpu::Frame& from_frame, const Place& from, const gpu::SlotMap& to_map,
              const gpu::Frame& to_frame, const Place& to, std::span<const gpu::Piece> pieces) {
    struct Stretch {
        std::size_t from, bytes;
    };
    std::map<std::size_t, Stretch> moved;  // by byte at the receiver
    int wrong = 0;
    for (const auto& piece : pieces)
        for (std::size_t row = 0; row < piece.rows; ++row) {
            const auto out = piece.from + row * piece.from_pitch, in = piece.to + row * piece.to_pitch;
            if (out + piece.bytes > from_map.bytes() || in + piece.bytes > to_map.bytes()) ++wrong;
            moved[in] = {out, piece.bytes};
        }
    std::size_t end = 0;
    for (const auto& [in, stretch] : moved) {
        wrong += in < end;
        end = in + stretch.bytes;
    }
    std::vector<std::size_t> source;
    for_each_element(from_map, from_frame, from, [&](std::size_t byte, std::size_t) { source.push_back(byte); });
    auto expected = source.begin();
    for_each_element(to_map, to_frame, to, [&](std::size_t byte, std::size_t bytes) {
        const auto after = moved.upper_bound(byte);
        const auto wanted = *expected++;
        if (after == moved.begin()) {
            ++wrong;
            return;
        }
        const auto& [in, stretch] = *std::prev(after);
        wrong += byte + bytes > in + stretch.bytes || stretch.from + (byte - in) != wanted;
    });
    return wrong + (expected != source.end());
}

BOOST_AUTO_TEST_SUITE(slot_map)

void check_messages(const std::string& schedule, int ranks, bool served) {
    for (const std::string layout : {"contiguous", "zigzag"})
        for (const auto accumulation : {layouts::Accumulation::carry, layouts::Accumulation::partials}) {
            const RingCase c{awkward_problem(), "window:17,3", layout, schedule, ranks, accumulation};
            BOOST_TEST_CONTEXT(c) {
                const auto passes = make_passes(c);
                for (const auto direction : {Pass::forward, Pass::backward}) {
                    const MappedPass pass(passes, direction, served, {});
                    for (const auto& rank : pass.program.ranks)
                        for (const auto& instruction : rank.code) {
                            const auto& op = instruction.op;
                            const bool fetches = op.kind == OpKind::fetch && instruction.partner < 0;
                            if (!instruction.sends() && !fetches) continue;
                            const auto& own = pass.map(rank.rank);
                            const auto& peer = pass.map(op.peer);
                            const auto pieces = message_pieces(pass.schedule, pass.program, instruction, own, peer);
                            const auto here = place_of(pass.schedule, instruction, op.pool);
                            if (fetches) {
                                auto there = own_place(pass.schedule, op.peer, op.pool);
                                there.heads = op.part.heads;
                                BOOST_TEST(misplaced(peer, peer.frame(direction, there), there, own,
                                                     own.frame(direction, here), here, pieces) == 0);
                                continue;
                            }
                            const auto& receive = pass.program.ranks[static_cast<std::size_t>(op.peer)]
                                                      .code[static_cast<std::size_t>(instruction.partner)];
                            const auto there = place_of(pass.schedule, receive, op.pool);
                            BOOST_TEST(misplaced(own, own.message_frame(direction, here), here, peer,
                                                 peer.message_frame(direction, there), there, pieces) == 0);
                            BOOST_TEST((message_pieces(pass.schedule, pass.program, receive, peer, own) == pieces));
                        }
                }
            }
        }
}

BOOST_DATA_TEST_CASE(every_message_moves_every_element_to_its_place,
                     data::make(schedule_names) * data::make({false, true}), schedule, served) {
    Combinations combinations;
    for (const int ranks : {1, 2, 4}) {
        if (!combinations.take(suits(awkward_problem(), schedule, ranks))) continue;
        check_messages(schedule, ranks, served);
    }
}

BOOST_DATA_TEST_CASE(slots_of_a_pass_do_not_overlap, data::make(schedule_names) * data::make({false, true}), schedule,
                     rounds) {
    for (const auto accumulation : {layouts::Accumulation::carry, layouts::Accumulation::partials}) {
        const RingCase c{awkward_problem(), "causal", "zigzag", schedule, 4, accumulation};
        const auto passes = make_passes(c);
        for (const auto direction : {Pass::forward, Pass::backward}) {
            const MappedPass pass(passes, direction, false, {.round_results = rounds});
            const auto& map = pass.map(1);
            std::map<std::size_t, std::size_t> taken;  // begin and end
            int overlaps = 0;
            const auto take = [&](const gpu::Frame& frame, const Place& place) {
                for (std::size_t field = 0; field < map.fields(frame.pool); ++field) {
                    const auto f = map.field(frame, place, field);
                    const auto begin = f.begin;
                    auto end = begin + static_cast<std::size_t>(f.extent.heads * f.strides.head * bytes_of(f.dtype));
                    if (frame.pool == Pool::kv || frame.pool == Pool::dkv) {
                        if (field > 0) continue;
                    }
                    for (const auto& [b, e] : taken) overlaps += b < end && begin < e;
                    taken[begin] = end;
                    BOOST_TEST(end <= map.bytes());
                }
            };
            const auto own = [&](Pool pool) { return own_place(pass.schedule, 1, pool); };
            for (const auto pool : {Pool::q, Pool::kv, Pool::output}) take(map.frame(direction, own(pool)), own(pool));
            if (direction == Pass::backward)
                for (const auto pool : {Pool::dout, Pool::dkv}) take(map.frame(direction, own(pool)), own(pool));
            std::map<Pool, int> slot;
            for (const auto& group : pass.schedule.slots())
                for (int i = 0; i < group.count; ++i) {
                    const Place place{group.pool,   ++slot[group.pool], 0,
                                      group.tokens, {0, group.heads},   {0, group.tokens}};
                    take(map.frame(direction, place), place);
                }
            BOOST_TEST_CONTEXT(c) { BOOST_TEST(overlaps == 0); }
            // The state's output is the one exception: it lies where the result will be.
            if (direction == Pass::forward && accumulation == layouts::Accumulation::carry)
                BOOST_TEST(map.frame(direction, own(Pool::state)).begins[0] ==
                           map.frame(direction, own(Pool::output)).begins[0]);
        }
    }
}

BOOST_AUTO_TEST_CASE(whole_blocks_of_keys_are_one_piece) {
    const RingCase c{small_problem(), "causal", "zigzag", "ring", 4};
    const auto passes = make_passes(c);
    for (const auto direction : {Pass::forward, Pass::backward}) {
        const MappedPass pass(passes, direction, false, {});
        for (const auto& rank : pass.program.ranks)
            for (const auto& instruction : rank.code) {
                if (!instruction.op.transfers()) continue;
                const auto pieces = message_pieces(pass.schedule, pass.program, instruction, pass.map(rank.rank),
                                                   pass.map(instruction.op.peer));
                BOOST_TEST(pieces.size() == 1u);
                BOOST_TEST(pieces.front().rows == 1u);
                BOOST_TEST(pieces.front().bytes == static_cast<std::size_t>(instruction.op.bytes));
            }
    }
}

// A rank has 12 tokens, 2 batch elements and 8 query heads: fields of a head are padded to 128 elements.
BOOST_AUTO_TEST_CASE(what_a_caller_lends_takes_no_exchange_memory) {
    const RingCase c{awkward_problem(), "causal", "zigzag", "ring", 4};
    const auto passes = make_passes(c);
    const auto map = [&](gpu::Lent lent) {
        const gpu::MapOptions options{.round_results = true, .lent = lent};
        return gpu::SlotMap(*passes.forward, passes.backward.get(), 0, options);
    };
    const auto with_rows = map(gpu::Lent::rounded), without_rows = map(gpu::Lent::rounded_and_rows);
    const auto nothing = map(gpu::Lent::nothing).memory(), rounded = with_rows.memory(), rows = without_rows.memory();
    constexpr std::int64_t q = 8 * 640 * 2, dout = 8 * 512 * 2, o_rounded = 8 * 512 * 2, lse = 8 * 128 * 4;
    BOOST_TEST(nothing.inputs == rounded.inputs);
    BOOST_TEST(nothing.results >= rounded.results + o_rounded);
    BOOST_TEST(rounded.inputs == rows.inputs + q + dout);
    BOOST_TEST(rounded.results == rows.results + lse);
    BOOST_TEST(nothing.slots == rows.slots);
    // dQ in fp32, which the forward pass's output shares, and behind it the maximum and the sum of its softmax.
    constexpr std::size_t dq = 8 * 640 * 4, statistics = 2 * 8 * 128 * 4;
    BOOST_TEST(with_rows.local_bytes() == 0u);
    BOOST_TEST(without_rows.local_bytes() == dq + statistics);
    BOOST_TEST(without_rows.bytes() + without_rows.local_bytes() < with_rows.bytes());
}

// Three of four ranks have a query token. Each of them gets rows from two peers and results from three.
BOOST_AUTO_TEST_CASE(messages_of_launches_that_merge_lie_between_the_flags_and_the_tensors) {
    auto problem = awkward_problem();
    problem.queries = {{problem.tokens - 3, problem.tokens}};
    const auto passes = make_passes({problem, "causal", "striped", "joined-merge", 4});
    constexpr std::size_t rows = 2 * 8, q = rows * 24 / 2, result = rows * 20 + rows, flags = 100;
    const auto pairs = gpu::merging_pairs(*passes.forward, resolve(*passes.forward));
    BOOST_TEST(pairs == 2 * q + 3 * result);
    const gpu::SlotMap map(*passes.forward, nullptr, 1, {.arrival_flags = flags, .merging_pairs = pairs});
    BOOST_TEST(map.merging_pairs() >= flags * sizeof(std::uint32_t));
    BOOST_TEST(map.merging_pairs() % sizeof(std::max_align_t) == 0u);
    BOOST_TEST(map.zeroed_bytes() >= map.merging_pairs() + pairs * sizeof(gpu::Pair));
    const auto own = own_place(*passes.forward, 1, Pool::q);
    BOOST_TEST(map.field(map.frame(Pass::forward, own), own, 0).begin >= map.zeroed_bytes());
}

BOOST_AUTO_TEST_CASE(launches_with_many_rows_do_not_merge) {
    auto problem = awkward_problem();
    for (const int tokens : {256, 257}) {
        problem.tokens = 2 * tokens;
        const auto passes = make_passes({problem, "causal", "contiguous", "joined-merge", 2});
        BOOST_TEST((gpu::merging_pairs(*passes.forward, resolve(*passes.forward)) > 0) == (tokens == 256));
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
