#include "layouts/program/program.hpp"

#include "layouts/program/deadlock_check.hpp"
#include "layouts/program/timeline.hpp"
#include "tests/layouts/cases.hpp"
#include "tests/layouts/schedule_checker.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

std::unique_ptr<Schedule> made(const std::string& schedule_name, Pass pass, const std::string& mask = "full",
                               const std::string& layout = "contiguous", int ranks = 4) {
    const Problem problem{.batch = 2, .tokens = 48, .query_heads = 8, .kv_heads = 4, .head_dim = 24, .value_dim = 16};
    return make_schedule(problem, make_mask(mask, 48), make_layout(layout, 48, ranks),
                         {.schedule = schedule_name, .pass = pass});
}

bool is(const Op& op, OpKind kind, int step) { return op.kind == kind && op.step == step; }

}  // namespace

BOOST_AUTO_TEST_SUITE(program)

struct BrokenRule {
    std::function<void(int rank, Op& op)> edit;
    std::string said;  // part of the error
};

// Of a forward ring on 4 ranks.
const std::vector<BrokenRule> broken_rules{
    {[](int rank, Op& op) { op.slot(Pool::kv) = rank == 2 && is(op, OpKind::attend, 1) ? 1 : op.slot(Pool::kv); },
     "rank 2: operation 5, attend to block 1, step 1: K,V slot 1 is read for heads 0..3 of block 1, but "},
    {[](int rank, Op& op) { op.bytes = rank == 1 && is(op, OpKind::send, 0) ? 7 : op.bytes; },
     "rank 1: operation 0, send K,V of block 1, step 0, to rank 2: it has 7 bytes; its part has 7680"},
    {[](int rank, Op& op) { op.peer = rank == 1 && op.kind == OpKind::receive ? 3 : op.peer; }, "has no receive there"},
    {[](int rank, Op& op) { op.part.block = rank == 0 && is(op, OpKind::receive, 1) ? 2 : op.part.block; },
     "K,V slot 2 is read for heads 0..3 of block 3, but holds heads 0..3 of block 2"},
    {[](int, Op& op) { op.slot(Pool::kv) = op.kind == OpKind::receive ? 9 : op.slot(Pool::kv); },
     "it uses K,V slot 9, but the schedule asks for scratch slots 1..2"},
    {[](int, Op& op) { op.peer = op.kind == OpKind::send ? 4 : op.peer; }, "there is no such peer"},
    {[](int, Op& op) { op.rows().heads.begin = 1; }, "query heads 1..7 do not read K,V heads 0..3 as one block"},
    {[](int, Op& op) { op.ends = false; }, "rank 0: attends of rows of block 0 begin and never end"},
    {[](int, Op& op) { op.channel = op.transfers() ? 2 : 0; }, "channel 2 of 1 channels"},
    {[](int, Op& op) { op.run_after(0); }, "it waits for operation 0, a later one"},
    {[](int, Op& op) { op.slot(Pool::kv) = op.kind == OpKind::attend ? 0 : op.slot(Pool::kv); },
     "K,V slot 0 is that of block "},
    // Blocks take turns in two slots; in one alone each would be overwritten while it is passed on.
    {[](int, Op& op) {
         op.slot(Pool::kv) = std::min(op.slot(Pool::kv), 1);
         op.after_count = 0;
     },
     "nothing makes it wait for operation"},
};

BOOST_AUTO_TEST_CASE(a_schedule_that_breaks_its_rules_is_refused_with_rank_operation_and_reason) {
    for (const auto& [edit, said] : broken_rules) {
        const auto schedule = made("ring", Pass::forward);
        auto ops = written(*schedule);
        for (std::size_t rank = 0; rank < ops.size(); ++rank)
            for (auto& op : ops[rank]) edit(static_cast<int>(rank), op);
        const auto error = error_of([&] { resolve(WrittenSchedule(*schedule, ops)); });
        BOOST_TEST(error.find(said) != std::string::npos, said << " in " << error);
    }
}

BOOST_AUTO_TEST_CASE(halves_of_messages_point_at_each_other) {
    for (const auto& schedule_name : schedule_names_of_4_ranks) {
        const auto schedule = made(schedule_name, Pass::backward);
        const auto program = resolve(*schedule);
        std::size_t messages = 0;
        for (const auto& rank : program.ranks)
            for (std::size_t i = 0; i < rank.code.size(); ++i) {
                const auto& one = rank.code[i];
                BOOST_TEST((one.partner >= 0) == (one.op.kind == OpKind::send || one.op.kind == OpKind::receive));
                if (one.partner < 0) continue;
                const auto& other =
                    program.ranks[static_cast<std::size_t>(one.op.peer)].code[static_cast<std::size_t>(one.partner)];
                BOOST_TEST(other.partner == static_cast<OpIndex>(i));
                BOOST_TEST(other.op.peer == rank.rank);
                BOOST_TEST(other.op.bytes == one.op.bytes);
                ++messages;
            }
        BOOST_TEST(messages > 0u, schedule_name);
    }
}

BOOST_AUTO_TEST_CASE(a_message_may_come_early_where_nothing_was_in_its_slot) {
    const auto check = [](const std::string& schedule_name, Pass pass, const auto& expected) {
        const auto schedule = made(schedule_name, pass, "full", "zigzag");
        const auto program = resolve(*schedule);
        for (const auto& rank : program.ranks)
            for (const auto& one : rank.code) {
                if (one.partner < 0) continue;
                const auto& peer = program.ranks[static_cast<std::size_t>(one.op.peer)];
                const auto& other = peer.code[static_cast<std::size_t>(one.partner)];
                BOOST_TEST(one.may_arrive_early == expected(one.sends() ? other.op : one.op),
                           describe(rank.rank, static_cast<OpIndex>(&one - rank.code.data()), one.op));
            }
    };
    const auto is_keys = [](const Op& op) { return op.pool == Pool::kv; };
    // Two slots in turns; of gradients those of steps 1 and 2, not those that come home.
    const auto first_two = [](const Op& op) { return op.slot() > 0 && op.step <= 2; };
    check("ring", Pass::forward, first_two);
    check("joined-ring:2", Pass::forward, is_keys);
    // From several peers. An attend waits for the last block alone, whose arrival says nothing of the others'.
    check("all-gather", Pass::forward, [](const Op&) { return false; });
    // From several peers as well, but each gradient is waited for by the addition of that gradient.
    const auto always = [](const Op&) { return true; };
    check("pull", Pass::backward, always);
    check("joined-ring:steps", Pass::backward, always);
    // Gradients of the first half begin at home, in the slot of step 2; those of the second at step 1, in the other
    // one.
    check("joined-ring:1", Pass::backward, [&](const Op& op) {
        const bool second_half = op.part.heads.begin > 0;
        return is_keys(op) || (op.slot() > 0 && op.step == (second_half ? 2 : 1));
    });
}

BOOST_AUTO_TEST_CASE(a_message_travels_beside_its_senders_next_attend) {
    const auto schedule = made("ring", Pass::backward);
    const auto program = resolve(*schedule);
    for (const auto& rank : program.ranks) {
        std::vector<double> flop;  // by step
        for (const auto& one : rank.code)
            if (one.op.kind == OpKind::attend) flop.push_back(schedule->flop(one.op));
        BOOST_TEST_REQUIRE(flop.size() == 4u);
        for (const auto& one : rank.code) {
            if (!one.sends()) continue;
            // K and V beside the attend to them, their gradient beside the next one; the last has none.
            const auto step = static_cast<std::size_t>(one.op.step) + (one.op.pool == Pool::dkv);
            BOOST_TEST(one.overlapped_flop == (step < flop.size() ? flop[step] : 0));
            const auto& peer = program.ranks[static_cast<std::size_t>(one.op.peer)];
            BOOST_TEST(peer.code[static_cast<std::size_t>(one.partner)].overlapped_flop == one.overlapped_flop);
        }
    }
}

// What comes before the only attend hides nothing, of what comes in turns the first.
BOOST_AUTO_TEST_CASE(a_message_that_the_next_attend_waits_for_travels_beside_none) {
    const auto beside = [](const char* schedule_name, Pass pass = Pass::forward) {
        const auto program = resolve(*made(schedule_name, pass));
        std::vector<bool> any;  // of a rank's messages
        for (const auto& one : program.ranks[1].code)
            if (one.receives()) any.push_back(one.overlapped_flop > 0);
        return any;
    };
    const auto each = boost::test_tools::per_element();
    BOOST_TEST(beside("ulysses") == std::vector<bool>(beside("ulysses").size(), false), each);
    BOOST_TEST(beside("ring") == std::vector<bool>({true, true, true}), each);
    // One launch: the attends before the one that waits hide the message.
    const auto joined = beside("joined-ring:2", Pass::backward);
    BOOST_TEST(joined == std::vector<bool>(joined.size(), true), each);
}

BOOST_AUTO_TEST_CASE(halves_of_paced_messages_wait_for_the_same_step) {
    auto program = resolve(*made("ring", Pass::backward));
    pace_messages(program);
    for (const auto& rank : program.ranks)
        for (const auto& one : rank.code) {
            if (one.partner < 0) continue;
            // Two slots of K and V in turns: from step 3 on a block is taken once the attend two steps before has
            // ended, and not sent sooner. A gradient comes when the step before has ended at its sender: with the
            // attend that begins it, from then on with an addition.
            int step = -1;
            if (one.op.pool == Pool::kv && one.sends() && one.op.step >= 2) step = one.op.step - 1;
            if (one.op.pool == Pool::dkv && one.receives()) step = one.op.step - 1;
            BOOST_TEST_CONTEXT(describe(rank.rank, static_cast<OpIndex>(&one - rank.code.data()), one.op)) {
                BOOST_TEST_REQUIRE((one.paced_by < 0) == (step < 0));
                if (step < 0) continue;
                const auto& computation = rank.code[static_cast<std::size_t>(one.paced_by)].op;
                const bool adds = one.op.pool == Pool::dkv && step > 0;
                BOOST_TEST((computation.kind == (adds ? OpKind::add : OpKind::attend)));
                BOOST_TEST(computation.step == step);
            }
        }
}

// Ranks 0 and 1, and ranks 2 and 3, share a host, and copies inside it need no SMs.
BOOST_AUTO_TEST_CASE(only_messages_that_are_kernels_are_paced) {
    auto all = resolve(*made("ring", Pass::backward)), between_hosts = all;
    pace_messages(all);
    pace_messages(between_hosts, [](int rank, int peer) { return rank / 2 != peer / 2; });
    for (std::size_t rank = 0; rank < all.ranks.size(); ++rank)
        for (std::size_t i = 0; i < all.ranks[rank].code.size(); ++i) {
            const auto& one = all.ranks[rank].code[i];
            const bool inside = static_cast<int>(rank) / 2 == one.op.peer / 2;
            BOOST_TEST(between_hosts.ranks[rank].code[i].paced_by == (inside ? -1 : one.paced_by));
        }
}

BOOST_AUTO_TEST_CASE(paced_programs_come_to_an_end_and_joined_attends_pace_nothing) {
    for (const auto& schedule_name : schedule_names_of_4_ranks)
        for (const std::string layout : {"contiguous", "zigzag"})
            for (const std::string mask : {"full", "causal"}) {
                auto program = resolve(*made(schedule_name, Pass::backward, mask, layout), Fetches::served);
                pace_messages(program);
                BOOST_TEST(!find_deadlock(program).has_value(), schedule_name << ' ' << layout << ' ' << mask);
                for (const auto& rank : program.ranks)
                    for (const auto& join : rank.fused_launches)
                        for (const auto& one : rank.code)
                            BOOST_TEST((std::ranges::count(join.attends, static_cast<std::size_t>(one.paced_by)) == 0));
            }
}

// Rank 1 takes the first message in step with its own attend, which waits for the second one; and rank 0 sends that
// behind the first.
BOOST_AUTO_TEST_CASE(nothing_is_paced_where_ranks_would_wait_for_each_other) {
    const auto operation = [](OpKind kind, int channel, OpIndex after, OpIndex partner) {
        Instruction one;
        one.op.kind = kind;
        one.op.channel = static_cast<std::int16_t>(channel);
        one.op.peer = kind == OpKind::send ? 1 : 0;
        one.op.part.heads = {0, 1};
        one.op.run_after(after);
        one.partner = partner;
        return one;
    };
    Program program{.pass = Pass::backward, .lanes = 5, .ranks = std::vector<RankProgram>(2)};
    program.ranks[0].code = {operation(OpKind::attend, 0, -1, -1), operation(OpKind::send, 0, 0, 2),
                             operation(OpKind::send, 1, 1, 0)};
    program.ranks[1].code = {operation(OpKind::receive, 1, -1, 2), operation(OpKind::attend, 0, 0, -1),
                             operation(OpKind::receive, 0, -1, 1)};
    const auto wanted = [&] { return program.ranks[1].code[2].paced_by; };
    pace_messages(program);
    BOOST_TEST(wanted() == -1);
    program.ranks[0].code[2].op.after_count = 0;
    pace_messages(program);
    BOOST_TEST(wanted() == 1);
}

BOOST_AUTO_TEST_CASE(a_served_fetch_is_a_message_of_its_owner) {
    const auto schedule = made("pull", Pass::forward);
    const auto one_sided = resolve(*schedule), served = resolve(*schedule, Fetches::served);
    BOOST_TEST(one_sided.fetches());
    for (const auto& rank : served.ranks) {
        BOOST_TEST(rank.operations == one_sided.ranks[static_cast<std::size_t>(rank.rank)].code.size());
        for (std::size_t i = 0; i < rank.code.size(); ++i) {
            const auto& one = rank.code[i];
            if (one.op.kind != OpKind::fetch && !one.served) continue;
            const auto& other =
                served.ranks[static_cast<std::size_t>(one.op.peer)].code[static_cast<std::size_t>(one.partner)];
            BOOST_TEST(other.partner == static_cast<OpIndex>(i));
            BOOST_TEST(other.served != one.served);
            BOOST_TEST((other.op.part == one.op.part));
        }
    }
}

BOOST_AUTO_TEST_CASE(what_has_to_start_as_zero_or_empty_is_said) {
    const auto zero = [](const std::string& schedule_name, const std::string& mask, const std::string& layout) {
        std::string ranks;
        for (const auto& rank : resolve(*made(schedule_name, Pass::backward, mask, layout)).ranks)
            ranks += !rank.needs_zeroed.empty() ? '1' : '0';
        return ranks;
    };
    BOOST_TEST(zero("ring", "causal", "contiguous") == "0000");
    // Keys of the last ranks are padding, which nobody sees.
    BOOST_TEST(zero("ring", "causal+valid:0-20", "contiguous") == "0011");
    BOOST_TEST(zero("all-gather", "causal", "contiguous") == "0000");
    const auto empty = [](const std::string& mask) {
        std::string ranks;
        for (const auto& rank : resolve(*made("ring", Pass::forward, mask)).ranks)
            ranks += rank.has_unwritten_output ? '1' : '0';
        return ranks;
    };
    BOOST_TEST(empty("causal") == "0000");
    BOOST_TEST(empty("causal+valid:30-40") == "1100");
}

// A message's bytes can move from when both sides have been posted.
BOOST_AUTO_TEST_CASE(a_message_begins_when_the_later_side_is_posted) {
    const auto schedule = made("ring", Pass::forward, "full", "contiguous", 2);
    const auto program = resolve(*schedule);
    Timeline timeline{2, {}};
    for (const auto& rank : program.ranks)
        for (std::size_t i = 0; i < rank.code.size(); ++i) {
            const auto& op = rank.code[i].op;
            Span span;
            span.rank = rank.rank;
            span.op = static_cast<OpIndex>(i);
            span.kind = op.kind;
            span.lane = op.lane();
            span.peer = op.peer;
            span.posted = 100 * (rank.rank + 1) + static_cast<Picoseconds>(i);
            span.end = 1000;
            timeline.spans.push_back(span);
        }
    set_begins(timeline, program);
    for (const auto& span : timeline.spans) {
        const auto& one = program.ranks[static_cast<std::size_t>(span.rank)].code[static_cast<std::size_t>(span.op)];
        BOOST_TEST(span.begin == (one.partner < 0 ? span.posted
                                                  : std::max<Picoseconds>(
                                                        span.posted, 200 + (span.rank == 1 ? span.op : one.partner))));
    }
    for (const auto& rank : totals(timeline)) BOOST_TEST(rank.waiting >= 0);
    BOOST_TEST(totals(timeline)[0].waiting > 0);
}

using Sizes = std::vector<std::size_t>;

Sizes sizes_of_joins(const Schedule& schedule) {
    const auto program = resolve(schedule);
    Sizes sizes;
    for (const auto& join : program.ranks[1].fused_launches) sizes.push_back(join.attends.size());
    return sizes;
}

BOOST_AUTO_TEST_CASE(attends_are_joined_as_the_schedule_says) {
    const auto check = [](const std::string& schedule_name, const Sizes& forward, const Sizes& backward) {
        const auto of_forward = sizes_of_joins(*made(schedule_name, Pass::forward, "full", "zigzag"));
        const auto of_backward = sizes_of_joins(*made(schedule_name, Pass::backward, "full", "zigzag"));
        BOOST_TEST_CONTEXT(schedule_name) {
            BOOST_TEST(of_forward == forward, boost::test_tools::per_element());
            BOOST_TEST(of_backward == backward, boost::test_tools::per_element());
        }
    };
    check("ring", {}, {});
    check("pull:2", {8}, {8});
    check("joined-ring", {4}, {});  // blocks are short
    check("joined-ring:2", {8}, {8});
    check("all-gather:2", {4, 4}, {3, 2});  // backward, parts that have come are added in between
}

// What adds to a gradient waits for attends of other ranks, which may wait for those of this one.
BOOST_AUTO_TEST_CASE(a_backward_join_says_which_of_its_attends_wait_for_others) {
    const auto program = resolve(*made("joined-ring:1", Pass::backward, "full", "zigzag"));
    for (const auto& rank : program.ranks) {
        BOOST_TEST_REQUIRE(rank.fused_launches.size() == 1u);
        // Own block, first half; halves of the others; own block, second half.
        BOOST_TEST(rank.fused_launches.front().attends.size() == 8u);
        BOOST_TEST(rank.fused_launches.front().section_begins == (Sizes{1, 3, 4, 5, 6, 7}),
                   boost::test_tools::per_element());
    }
}

/// Fetches one head after the other into the same slot, and says that all attends are one launch.
class OneSlot : public Schedule {
public:
    OneSlot(const Problem& problem, const Mask& mask, const Layout& layout) : Schedule(problem, mask, layout, {}) {
        set_channels({"K,V"});
        add_slots(Pool::kv, 1, 1, layout.largest_shard());
    }

    Ops ops(int rank) const override {
        const int other = 1 - rank;
        OpIndex read = -1;
        for (int head = 0; head < 2; ++head) {
            const HeadRange heads{head, head + 1};
            auto own = attend(0, part(rank, query_heads(heads)), part(rank, heads), 0, 0);
            own.begins = true;
            own.fused = head > 0;
            co_yield own;
            auto fetch = transfer(OpKind::fetch, 0, Pool::kv, 1, other, part(other, heads), 1);
            fetch.run_after(read);
            const auto arrival = co_yield fetch;
            auto last = attend(1, part(rank, query_heads(heads)), part(other, heads), 0, 1);
            last.ends = true;
            last.fused = true;
            last.run_after(arrival);
            read = co_yield last;
        }
    }
};

BOOST_AUTO_TEST_CASE(an_attend_that_waits_for_another_ones_end_is_not_joined_with_it) {
    const Problem problem{.tokens = 48, .query_heads = 4, .kv_heads = 2, .head_dim = 24, .value_dim = 16};
    const OneSlot schedule(problem, make_mask("full", 48), make_layout("zigzag", 48, 2));
    const auto sizes = sizes_of_joins(schedule);
    BOOST_TEST(sizes == Sizes{3}, boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(schedule_seen_sends_the_keys_that_rows_see_in_their_ranges,
                     data::make(mask_specs()) * data::make(layout_specs()), mask_spec, layout_spec) {
    for (const int ranks : {2, 4})
        for (const std::int64_t gap : {1, 7}) {
            const auto c = make_case(mask_spec, layout_spec, ranks);
            const auto schedule = schedule_of(c, {.schedule = "seen:" + std::to_string(gap)});
            for (int rank = 0; rank < ranks; ++rank) {
                std::map<int, std::vector<Interval>> sent;
                auto ops = schedule->ops(rank);
                while (const auto* op = ops.next())
                    if (op->kind == OpKind::send) sent[op->peer].push_back(op->part.tokens);
                for (int to = 0; to < ranks; ++to) {
                    const bool needed = to != rank && schedule->needs(to, rank);
                    const auto expected = needed ? seen_keys(c.mask, c.layout.shard(to), c.layout.shard(rank), gap)
                                                 : std::vector<Interval>{};
                    BOOST_TEST((sent[to] == expected));
                }
            }
        }
}

BOOST_AUTO_TEST_CASE(ranges_of_seen_keys_with_small_gaps_are_one) {
    const auto mask = make_mask("documents:10,10,10,10,8", 48);
    const auto layout = make_layout("contiguous", 48, 1);
    const Run rows[] = {{0, 1, 5}, {22, 1, 3}};
    const auto seen = [&](std::int64_t gap) { return seen_keys(mask, rows, layout.shard(0), gap); };
    BOOST_TEST((seen(1) == std::vector<Interval>{{0, 10}, {20, 30}}));
    BOOST_TEST((seen(10) == std::vector<Interval>{{0, 10}, {20, 30}}));
    BOOST_TEST((seen(11) == std::vector<Interval>{{0, 30}}));
}

BOOST_AUTO_TEST_SUITE_END()
